"""Models as v1 code uses them: a real server, a real job."""

import json
import os
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runyard import Dataset, Environment, Experiment, Model, ResourceConfiguration, ScriptRunConfig
from runyard.sdk.exceptions import (
    ModelNotFoundException,
    ModelPathNotFoundException,
    UserErrorException,
    WebserviceException,
)
from runyard.sdk.run import Run
from runyard.sdk.workspace import Workspace

pytestmark = pytest.mark.story


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def start(ws: Workspace, files: dict[str, str]) -> Run:
    """A run that logs from here, with some files."""
    run = Experiment(ws, "models").start_logging(snapshot_directory=None)
    for name, text in files.items():
        put(Path("made"), {name: text})
        run.upload_file(name, Path("made", name))
    return run


def test_a_file_a_folder_and_a_part_of_one_become_models(ws: Workspace, project: Path) -> None:
    put(project / "net", {"a.txt": "A", "deep/b ü.txt": "B", "deep/c.txt": "C", "d.txt": "D"})
    file = Model.register(ws, "net/a.txt", "one-file")
    assert (file.name, file.version, file.id) == ("one-file", 1, "one-file:1")
    assert [entry.path for entry in file._record.manifest] == ["a.txt"]
    folder = Model.register(ws, "net/", "folder")
    assert [entry.path for entry in folder._record.manifest] == [
        "net/a.txt",
        "net/d.txt",
        "net/deep/b ü.txt",
        "net/deep/c.txt",
    ]
    part = Model.register(ws, str(project / "net"), "part", child_paths=["deep", "a.txt"])
    assert [entry.path for entry in part._record.manifest] == [
        "net/a.txt",
        "net/deep/b ü.txt",
        "net/deep/c.txt",
    ]
    assert part.download("back") == str(Path("back", "net"))
    assert Path("back/net/deep/b ü.txt").read_text() == "B"
    assert file.download("back") == str(Path("back", "a.txt"))
    with pytest.raises(WebserviceException, match="exist_ok=True"):
        file.download("back")
    Path("back/a.txt").write_text("changed")
    file.download("back", exist_ok=True)
    assert Path("back/a.txt").read_text() == "A"


def test_what_cannot_be_a_model_is_refused_in_words(ws: Workspace, project: Path) -> None:
    put(project, {"x.pkl": "x"})
    (project / "empty").mkdir()
    put(project / "broken", {"a": "1"})
    (project / "broken" / "dead").symlink_to("nothing")
    with pytest.raises(ModelPathNotFoundException, match=r"no file or folder 'y\.pkl'"):
        Model.register(ws, "y.pkl", "m")
    with pytest.raises(WebserviceException, match="'empty' is empty"):
        Model.register(ws, "empty", "m")
    with pytest.raises(WebserviceException, match="a link to nothing"):
        Model.register(ws, "broken", "m")
    with pytest.raises(WebserviceException, match="leads out of the folder"):
        Model.register(ws, "broken", "m", child_paths=["../x.pkl"])
    with pytest.raises(WebserviceException, match="cannot be the name"):
        Model.register(ws, "x.pkl", "no spaces")
    with pytest.raises(WebserviceException, match="which framework"):
        Model.register(ws, "x.pkl", "m", model_framework_version="1")
    with pytest.raises(WebserviceException, match="not a dictionary"):
        Model.register(ws, "x.pkl", "m", tags=["a"])  # type: ignore[arg-type]
    with pytest.raises(WebserviceException, match="not a pair"):
        Model.register(ws, "x.pkl", "m", datasets=["d"])  # type: ignore[list-item]
    with pytest.raises(WebserviceException, match="cannot be of type str"):
        Model.register(ws, "x.pkl", "m", datasets=[("t", "d")])  # type: ignore[list-item]
    for configuration in (ResourceConfiguration(cpu=-1), ResourceConfiguration(gpu=-1), 3):
        with pytest.raises(WebserviceException, match=r"makes no sense|cannot be of type int"):
            Model.register(ws, "x.pkl", "m", resource_configuration=configuration)
    with pytest.warns(UserWarning, match="did you mean 'TensorFlow'"):
        Model.register(ws, "x.pkl", "close", model_framework="TensorFlwo")


def test_links_inside_a_model_are_its_files(ws: Workspace, project: Path) -> None:
    put(project, {"outside.bin": "o", "net/a": "1"})
    (project / "net" / "link").symlink_to(project / "outside.bin")
    (project / "net" / "loop").symlink_to(project / "net")
    model = Model.register(ws, "net", "linked")
    assert model.download("copy") == "copy/net"
    assert Path("copy/net/link").read_text() == "o"
    assert not Path("copy/net/link").is_symlink()


def test_files_of_a_run_become_a_model(ws: Workspace, project: Path) -> None:
    run = start(ws, {"outputs/model/a": "1", "outputs/model/b": "2", "outputs/net.pt": "3"})
    model = run.register_model(
        "of-run",
        "./outputs/model",
        tags={"accuracy": 0.9, "flag": None},
        properties={"epochs": 3},
        model_framework=Model.Framework.TENSORFLOW,
        model_framework_version="2.0",
        description="digits",
        resource_configuration=ResourceConfiguration(cpu=1, memory_in_gb=0.5),
    )
    assert (model.run_id, model.experiment_name) == (run.id, "models")
    assert model.run == run
    assert model.tags == {"accuracy": "0.9", "flag": None}
    assert model.properties == {"epochs": "3"}
    assert (model.model_framework, model.model_framework_version) == ("TensorFlow", "2.0")
    assert model.resource_configuration is not None
    assert model.resource_configuration.memory_in_gb == 0.5
    assert sorted(os.listdir(model.download("here"))) == ["a", "b"]
    assert run.register_model("net", "outputs/net.pt").download("here") == "here/net.pt"
    with pytest.raises(ModelPathNotFoundException, match=r"outputs/model/a.*\n.*'outputs/model'"):
        run.register_model("of-run", "outputs/modle")
    for nonsense in (".", "./", "/"):
        with pytest.raises(ModelPathNotFoundException, match="no file and no folder"):
            run.register_model("of-run", nonsense)
    with pytest.raises(WebserviceException, match="cannot be the name"):
        run.register_model("of run", "outputs/model")
    assert [one.id for one in Model.list(ws, run_id=run.id)] == ["net:1", "of-run:1"]
    run.complete()


def test_models_are_found_by_name_version_id_and_labels(ws: Workspace, project: Path) -> None:
    put(project, {"x": "x"})
    for stage, framework in (("old", "Onnx"), ("new", None), ("new", "PyTorch")):
        Model.register(
            ws,
            "x",
            "findable",
            tags={"stage": stage, stage: None},
            properties={"p": stage},
            model_framework=framework,
        )
    assert Model(ws, "findable").version == 3
    assert Model(ws, name="findable", version=1).version == 1
    assert Model(ws, id="findable:2").version == 2
    assert Model(ws, "findable", tags=["old"]).version == 1
    assert Model(ws, "findable", tags=[["stage", "new"]]).version == 3
    assert Model(ws, "findable", properties=["p=old"]).version == 1
    assert Model(ws, "findable", model_framework="Onnx").version == 1

    def listed(**filters: object) -> list[int]:
        found = Model.list(ws, "findable", **filters)  # type: ignore[arg-type]
        return [model.version for model in found]

    assert listed() == [3, 2, 1]
    assert listed(latest=True) == [3]
    assert listed(tags=["new", ["stage", "new"]], page_count=20, expand=False) == [3, 2]
    assert listed(properties=[["p", "old"]]) == [1]
    assert listed(model_framework="PyTorch") == [3]
    assert ws.models["findable"].version == 3
    with pytest.raises(UserErrorException, match="page_count=5"):
        Model.list(ws, page_count=5)
    with pytest.raises(UserErrorException, match="not a list"):
        Model.list(ws, tags="new")


def test_a_model_that_is_not_there_says_what_is(ws: Workspace, project: Path) -> None:
    put(project, {"x": "x"})
    Model.register(ws, "x", "there")
    for error in (ModelNotFoundException, WebserviceException):  # v1 code catches either
        with pytest.raises(error, match=r"ModelNotFound.*'thare'[\s\S]*Did you mean 'there'"):
            Model(ws, "thare")
    with pytest.raises(ModelNotFoundException, match="It has the versions: 1"):
        Model(ws, "there", version=7)
    with pytest.raises(ModelNotFoundException, match="no version fits the tag"):
        Model(ws, "there", tags=["never"])
    with pytest.raises(WebserviceException, match="NAME:VERSION"):
        Model(ws, id="there")
    with pytest.raises(WebserviceException, match="its name or its id"):
        Model(ws)
    with pytest.raises(WebserviceException, match="is not a version"):
        Model(ws, "there", version="latest")  # type: ignore[arg-type]


def test_labels_change_properties_stay(ws: Workspace, project: Path) -> None:
    put(project, {"x": "x"})
    model = Model.register(ws, "x", "labelled", tags={"a": "1"})
    model.add_tags({"b": 2})
    model.remove_tags(["a", "never"])
    model.add_properties({"p": 1})
    model.update_tags_properties({"c": None}, "b", {"q": "2"})
    again = Model(ws, "labelled")
    assert (again.tags, again.properties) == ({"c": None}, {"p": "1", "q": "2"})
    with pytest.raises(WebserviceException, match="has the property 'p' already"):
        again.add_properties({"p": "1"})
    again.update(
        tags={"only": "this"},
        description="new",
        resource_configuration=ResourceConfiguration(gpu=1),
    )
    found = Model.deserialize(ws, json.loads(json.dumps(model.serialize())))
    assert (found.tags, found.description) == ({"only": "this"}, "new")
    assert found.resource_configuration is not None
    assert found.resource_configuration.serialize() == {"cpu": None, "memoryInGB": None, "gpu": 1}
    found.delete()
    with pytest.raises(ModelNotFoundException):
        Model(ws, "labelled")
    assert Model.register(ws, "x", "labelled").version == 2


def test_datasets_registered_or_not_belong_to_a_model(ws: Workspace, project: Path) -> None:
    put(project, {"x": "x", "data/1.csv": "a\n1\n"})
    store = ws.get_default_datastore()
    store.upload("data", "model-data", show_progress=False)
    named = Dataset.File.from_files((store, "model-data/**")).register(ws, "model-digits")
    table = Dataset.Tabular.from_delimited_files((store, "model-data/1.csv"))
    model = Model.register(
        ws,
        "x",
        "with-data",
        datasets=[("training", named), ("training", table)],
        sample_input_dataset=table,
        sample_output_dataset=named,
    )
    assert [one.name for one in model.datasets["training"]] == ["model-digits", None]
    assert model.sample_input_dataset is not None
    assert model.sample_input_dataset.id == table.id
    assert model.sample_output_dataset is not None
    assert model.sample_output_dataset.name == "model-digits"
    model.add_dataset_references([("validation", table)])
    assert set(Model(ws, "with-data").datasets) == {"training", "validation"}
    for dataset in (named, table):
        assert [one.id for one in Model.list(ws, dataset_id=dataset.id)] == ["with-data:1"]


def test_the_path_of_a_model_is_v1s_cache_folder(ws: Workspace, project: Path) -> None:
    put(project, {"net/a": "1", "net/b": "2", "by-hand": "3"})
    Model.register(ws, "net", "cached")
    path = Model.get_model_path("cached", _workspace=ws)
    assert path == os.path.join("azureml-models", "cached", "1", "net")
    assert sorted(os.listdir(path)) == ["a", "b"]
    Path(path, "a").write_text("changed by hand")
    assert Path(Model.get_model_path("cached", _workspace=ws), "a").read_text() == "1"
    assert Model.get_model_path("cached") == path  # without a workspace: what is here
    assert Model.get_model_path("cached", version=1) == path
    assert Model.get_model_path("by-hand") == "by-hand"
    Model.register(ws, "net", "cached")
    assert Model.get_model_path("cached") == path
    assert Model.get_model_path("cached", version=2, _workspace=ws).endswith("2/net")
    for name, version in (("cached", 9), ("nowhere", None)):
        with pytest.raises(ModelNotFoundException, match="is not here"):
            Model.get_model_path(name, version=version)
    with pytest.raises(ModelNotFoundException, match="there is no model 'nowhere'"):
        Model.get_model_path("nowhere", _workspace=ws)


def test_two_who_register_at_once_get_two_versions(ws: Workspace, project: Path) -> None:
    put(project, {"x": "x"})
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: Model.register(ws, "x", "contended"), range(8)))
    assert sorted(model.version for model in made) == list(range(1, 9))


def test_a_job_registers_finds_and_fetches_models(ws: Workspace, project: Path) -> None:
    script = """
        import os
        from azureml.core import Model, Run
        from azureml.core.resource_configuration import ResourceConfiguration
        from azureml.exceptions import ModelPathNotFoundException

        run = Run.get_context()
        ws = run.experiment.workspace
        os.makedirs("outputs/model/variables")
        open("outputs/model/saved_model.pb", "w").write("graph")
        open("outputs/model/variables/v", "w").write("numbers")
        model = run.register_model(
            "by-job",
            model_path="./outputs/model",
            model_framework=Model.Framework.TENSORFLOW,
            model_framework_version="2.2",
            resource_configuration=ResourceConfiguration(1, 0.5),
        )
        print("registered", model.id)
        path = Model.get_model_path("by-job")
        print("fetched", path, sorted(os.listdir(path)))
        Model(ws, "by-job").add_tags({"seen": "yes"})
        print("latest", ws.models["by-job"].tags)
        open("plain.bin", "w").write("plain")
        print("local", Model.register(ws, "plain.bin", "by-job-local").download("again"))
        try:
            run.register_model("x", "outputs/other")
        except ModelPathNotFoundException as error:
            print("refused", "outputs/model/saved_model.pb" in str(error))
    """
    put(project, {"code/train.py": textwrap.dedent(script)})
    environment = Environment("user-managed")
    environment.python.user_managed_dependencies = True
    run = Experiment(ws, "models").submit(
        ScriptRunConfig("code", "train.py", environment=environment)
    )
    run.wait_for_completion()
    log = run.get_details_with_logs()["logFiles"]
    assert isinstance(log, dict)
    said = log["azureml-logs/70_driver_log.txt"]
    assert said.splitlines() == [
        "registered by-job:1",
        "fetched azureml-models/by-job/1/model ['saved_model.pb', 'variables']",
        "latest {'seen': 'yes'}",
        "Registering model by-job-local",
        "local again/plain.bin",
        "refused True",
    ]
    model = Model(ws, "by-job")
    assert (model.run_id, model.experiment_name) == (run.id, "models")
    assert Model(ws, "by-job-local").run_id == run.id  # what v1 did not know
    assert "outputs/model/variables/v" in run.get_file_names()
    # From here the same artifacts are a model, too, and nothing is uploaded or copied for it.
    again = run.register_model("by-job", "outputs/model")
    assert again._record.manifest == model._record.manifest
    assert again.version == 2
