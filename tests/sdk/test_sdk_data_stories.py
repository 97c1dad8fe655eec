"""Whole roads of data: a real server, a real engine, real files on a web server."""

import functools
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from runyard import Dataset, Datastore, Experiment, OutputFileDatasetConfig, ScriptRunConfig
from runyard.sdk import embedded
from runyard.sdk.data_path import DataPath, DataPathComputeBinding
from runyard.sdk.exceptions import ActivityFailedException, UserErrorException
from runyard.sdk.file_dataset import FileDataset
from runyard.sdk.session import open_session
from runyard.sdk.tabular_dataset import TabularDataset
from runyard.sdk.workspace import Workspace
from runyard.settings import load_settings
from runyard.testing.fake_server import wait_until
from runyard.testing.fuse import why_no_fuse

pytestmark = pytest.mark.story

pd: Any = import_module("pandas")  # it has no types of its own

MNIST = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def website(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A web server and the folder it serves."""
    root = tmp_path_factory.mktemp("web")
    (root / "exdb" / "mnist").mkdir(parents=True)
    for name in MNIST:
        (root / "exdb" / "mnist" / f"{name}-ubyte.gz").write_bytes(name.encode() * 100)
    handler = functools.partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", root
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def data_home(
    tmp_path_factory: pytest.TempPathFactory, website: tuple[str, Path]
) -> Iterator[dict[str, str]]:
    """The variables that lead to a server whose mirror map knows where dead addresses live."""
    mirrors = json.dumps({"http://yann.lecun.com/": website[0] + "/"})
    variables = {
        "RUNYARD_HOME": str(tmp_path_factory.mktemp("data-home")),
        "RUNYARD_SAMPLE_SECONDS": "0",
        "RUNYARD_MIRRORS": mirrors,
    }
    yield variables
    settings = load_settings(variables)
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def project(data_home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in data_home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return folder


@pytest.fixture
def ws(project: Path) -> Workspace:
    return Workspace.create("data-stories", exist_ok=True)


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def run_script(
    ws: Workspace, project: Path, script: str, *arguments: object, **options: Any
) -> Any:
    put(project / "src", {"main.py": script})
    config = ScriptRunConfig("src", "main.py", list(arguments), **options)
    run = Experiment(ws, "data").submit(config)
    run.wait_for_completion()
    return run


def printed(run: Any) -> str:
    text: str = run.get_details_with_logs()["logFiles"]["azureml-logs/70_driver_log.txt"]
    return text


LIST = """
    import os, sys
    for root, _, names in sorted(os.walk(sys.argv[2])):
        for name in sorted(names):
            print(os.path.relpath(os.path.join(root, name), sys.argv[2]))
"""


def test_the_pages_web_files_are_mounted_under_data_folder(ws: Workspace, project: Path) -> None:
    # The pages' own lines.
    web_paths = [
        "http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz",
        "http://yann.lecun.com/exdb/mnist/train-labels-idx1-ubyte.gz",
        "http://yann.lecun.com/exdb/mnist/t10k-images-idx3-ubyte.gz",
        "http://yann.lecun.com/exdb/mnist/t10k-labels-idx1-ubyte.gz",
    ]
    dataset = Dataset.File.from_files(path=web_paths)
    dataset = dataset.register(
        workspace=ws,
        name="mnist-dataset",
        description="training and test dataset",
        create_new_version=True,
    )
    paths = dataset.to_path()
    assert all(path.startswith("/") for path in paths)
    assert sorted(path.rsplit("/", 1)[-1] for path in paths) == sorted(
        url.rsplit("/", 1)[-1] for url in web_paths
    )
    script = """
        import argparse, glob, os
        parser = argparse.ArgumentParser()
        parser.add_argument("--data-folder")
        parser.add_argument("--batch-size", type=int)
        folder = parser.parse_args().data_folder
        for found in sorted(glob.glob(os.path.join(folder, "**/*.gz"), recursive=True)):
            with open(found, "rb") as file:
                print(os.path.basename(found), len(file.read()))
    """
    mounted = dataset.as_mount()
    run = run_script(ws, project, script, "--data-folder", mounted, "--batch-size", 64)
    assert printed(run).count("-ubyte.gz 1") == 4
    (shown,) = run.get_details()["inputDatasets"]
    facts = {"id": dataset.id, "name": "mnist-dataset", "version": dataset.version}
    assert shown["dataset"] == facts
    assert shown["consumptionDetails"]["inputName"] == mounted.name
    assert run.input_datasets[mounted.name].name == "mnist-dataset"
    found = dataset.download("here")
    assert sorted(map(os.path.basename, found)) == sorted(map(os.path.basename, paths))


def test_one_address_in_a_list_is_the_file_itself(
    ws: Workspace, project: Path, website: tuple[str, Path]
) -> None:
    dataset = Dataset.File.from_files([f"{website[0]}/exdb/mnist/train-images-idx3-ubyte.gz"])
    script = "import sys; print(open(sys.argv[1], 'rb').read(5))"
    assert printed(run_script(ws, project, script, dataset.as_download())) == "b'train'\n"
    with pytest.raises(UserErrorException, match="404"):
        Dataset.File.from_files(f"{website[0]}/not-there.csv")
    late = Dataset.File.from_files(f"{website[0]}/not-there.csv", validate=False)
    with pytest.raises((UserErrorException, ActivityFailedException), match=r"404|not-there"):
        run_script(ws, project, script, late.as_mount())


def test_an_uploaded_folder_is_found_below_the_datastores_root(
    ws: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, {"data/mnist/a.gz": "a", "data/mnist/deep/b.gz": "bb"})
    ds = ws.get_default_datastore()
    assert (ds.name, ds.datastore_type) == ("workspaceblobstore", "AzureBlob")
    ds.upload(src_dir="./data/mnist", target_path="mnist", overwrite=True, show_progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Uploading an estimated of 2 files"
    assert lines[-1] == "Uploaded 2 files"
    assert sum(line.endswith("2 files out of an estimated total of 2") for line in lines) == 1
    ds.upload("data/mnist", "mnist")
    assert "Skipping upload for mnist/a.gz" in capsys.readouterr().out

    reference = ds.as_mount()
    script = """
        import argparse, os
        parser = argparse.ArgumentParser()
        parser.add_argument("--data-folder")
        folder = os.path.join(parser.parse_args().data_folder, "mnist")
        print(open(os.path.join(folder, "deep", "b.gz")).read())
    """
    assert printed(run_script(ws, project, script, "--data-folder", reference)) == "bb\n"
    # As a text among the arguments it must be in the run configuration as well.
    config = ScriptRunConfig("src", "main.py", ["--data-folder", str(reference)])
    config.run_config.data_references = {reference.data_reference_name: reference.to_config()}
    run = Experiment(ws, "data").submit(config)
    run.wait_for_completion()
    assert printed(run) == "bb\n"
    definition: Any = run.get_details()["runDefinition"]
    assert list(definition["dataReferences"]) == ["workspaceblobstore"]


def test_a_mounted_place_with_nothing_in_it_is_written_to_and_kept(
    ws: Workspace, project: Path
) -> None:
    ds = ws.get_default_datastore()
    script = """
        import os, sys
        place = os.path.join(sys.argv[2], "deep")
        os.makedirs(place, exist_ok=True)
        open(os.path.join(place, "ckpt.bin"), "w").write("1")
    """
    place = ds.path("checkpoints/first").as_mount()
    with pytest.warns(UserWarning, match="There is nothing at 'checkpoints/first'"):
        run_script(ws, project, script, "--output_dir", place)
    kept = Dataset.File.from_files((ds, "checkpoints/first"))
    assert kept.to_path() == ["/deep/ckpt.bin"]
    # What is there is read, as ever; a path that only begins alike is another.
    read = run_script(ws, project, LIST, "--x", ds.path("checkpoints/first").as_mount())
    assert printed(read) == "deep/ckpt.bin\n"
    with pytest.warns(UserWarning, match="There is nothing at 'checkpoints/fir'"):
        run_script(ws, project, LIST, "--x", ds.path("checkpoints/fir").as_mount())


def test_the_outputs_of_a_run_are_mounted_in_the_next(ws: Workspace, project: Path) -> None:
    # Private in v1, and in its notebook on resumed training.
    script = """
        import os
        os.makedirs("outputs/ckpt")
        open("outputs/ckpt/1.txt", "w").write("1")
    """
    first = run_script(ws, project, script)
    path = first._get_outputs_datapath()
    reference = path.create_data_reference(
        datapath_compute_binding=DataPathComputeBinding(mode="mount")
    )
    assert printed(run_script(ws, project, LIST, "--resume-from", reference)) == "ckpt/1.txt\n"


def test_downloads_keep_their_paths_and_stay_in_their_folder(
    ws: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, {"in/x/1.txt": "1", "in/2.txt": "2", "odd/ü ö%2F?.txt": "odd"})
    ds = Datastore(ws, "workspacefilestore")
    ds.upload("in", "d", show_progress=False)
    ds.upload_files(["odd/ü ö%2F?.txt", "in/x/1.txt"], relative_root=".", target_path="e")
    capsys.readouterr()
    assert ds.download("out", prefix="d", show_progress=False) == 2
    assert capsys.readouterr().out == ""
    assert (project / "out/d/x/1.txt").read_text() == "1"
    (project / "out/d/2.txt").write_text("mine")
    assert ds.download("out", prefix="d") == 0
    assert (project / "out/d/2.txt").read_text() == "mine"
    assert ds.download("out", prefix="d", overwrite=True) == 2
    assert (project / "out/d/2.txt").read_text() == "2"
    assert ds.download("out", prefix="e/") == 2
    assert (project / "out/e/odd/ü ö%2F?.txt").read_text() == "odd"
    (project / "trap").mkdir()
    (project / "trap/d").symlink_to(project / "elsewhere")
    with pytest.raises(UserErrorException, match="leads out"):
        ds.download("trap", prefix="d")
    for wrong in (
        lambda: ds.upload("nothing here"),
        lambda: ds.upload_files(["nothing.txt"]),
        lambda: ds.upload("in", "../up"),
        lambda: ds.upload_files(["in/2.txt"], relative_root="odd"),
        lambda: Datastore(ws, "workspaceblobstor"),
    ):
        with pytest.raises(UserErrorException):
            wrong()


def test_further_datastores_are_registered_chosen_and_forgotten(
    ws: Workspace, project: Path
) -> None:
    put(project, {"share/a/1.csv": "n\n1\n", "share/b/2.csv": "n\n2\n"})
    share = Datastore.register_folder(ws, "share", project / "share")
    assert share.datastore_type == "Folder"
    assert set(ws.datastores) >= {"share", "workspaceblobstore", "workspacefilestore"}
    assert Dataset.File.from_files((share, "**/*.csv")).to_path() == ["/a/1.csv", "/b/2.csv"]
    with pytest.raises(UserErrorException, match="exists already"):
        Datastore.register_folder(ws, "share", project)
    share.upload_files(["share/a/1.csv"], target_path="c")
    assert (project / "share/c/1.csv").read_text() == "n\n1\n"
    ws.set_default_datastore("share")
    try:
        assert ws.get_default_datastore() == share
        kept = OutputFileDatasetConfig("result")
        script = """
            import os
            with open(os.path.join(os.environ["result"], "r.txt"), "w") as file:
                file.write("r")
        """
        run = run_script(ws, project, script, kept)
        assert (project / f"share/dataset/{run.id}/result/r.txt").read_text() == "r"
    finally:
        ws.set_default_datastore("workspaceblobstore")
    share.unregister()
    with pytest.raises(UserErrorException, match="no datastore 'share'"):
        Datastore(ws, "share")
    assert (project / "share/a/1.csv").exists()
    with pytest.raises(UserErrorException, match=r"azure") as caught:
        Datastore.register_azure_blob_container(ws, "blobs", "c", "acme", account_key="s3cret")
    assert "s3cret" not in str(caught.value)


def test_versions_of_datasets(ws: Workspace, project: Path) -> None:
    put(project, {"v/1.txt": "1", "v/2.txt": "22"})
    ds = ws.get_default_datastore()
    ds.upload("v", "versions", show_progress=False)
    first = Dataset.File.from_files((ds, "versions/1.txt")).register(
        ws, "versioned", "one", {"k": "v"}
    )
    assert (first.name, first.version, first.description, first.tags) == (
        "versioned",
        1,
        "one",
        {"k": "v"},
    )
    both = Dataset.File.from_files(DataPath(ds, "versions"))
    with pytest.raises(UserErrorException, match="create_new_version"):
        both.register(ws, "versioned")
    assert both.register(ws, "versioned", create_new_version=True).version == 2
    latest = Dataset.get_by_name(ws, "versioned")
    assert isinstance(latest, FileDataset)
    assert (latest.version, latest.to_path()) == (2, ["/1.txt", "/2.txt"])
    old = Dataset.get_by_name(ws, "versioned", version=1)
    assert (old.version, Dataset.get_by_id(ws, str(old.id)).version) == (1, 1)
    assert Dataset.get_all(ws)["versioned"].version == ws.datasets["versioned"].version == 2
    with pytest.raises(UserErrorException, match="no version 9"):
        Dataset.get_by_name(ws, "versioned", 9)
    assert latest.skip(1).to_path() == ["/2.txt"]
    assert latest.filter(latest.file_metadata["Size"] > 1).to_path() == ["/2.txt"]
    half, rest = latest.random_split(0.5, seed=3)
    assert sorted(half.to_path() + rest.to_path()) == ["/1.txt", "/2.txt"]
    latest.unregister_all_versions()
    with pytest.raises(UserErrorException, match="no dataset 'versioned'"):
        Dataset.get_by_name(ws, "versioned")
    with pytest.raises(UserErrorException, match=r"versions/\*\.csv"):
        Dataset.File.from_files((ds, "versions/*.csv"))


def test_local_paths_are_uploaded(
    ws: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(project, {"loc/a.csv": "n\n1\n2\n", "loc/b.csv": "n\n3\n", "loc/c.txt": "x"})
    assert Dataset.File.from_files("loc").to_path() == ["/a.csv", "/b.csv", "/c.txt"]
    assert "Uploading 'loc' to the datastore" in capsys.readouterr().out
    assert Dataset.File.from_files("./loc/*.csv").to_path() == ["/a.csv", "/b.csv"]
    table = Dataset.Tabular.from_delimited_files("loc/a.csv").to_pandas_dataframe()
    assert table["n"].tolist() == [1, 2]
    with pytest.raises(UserErrorException, match=r"nothing at 'loc/d\.csv'"):
        Dataset.File.from_files("loc/d.csv")


def test_a_dataset_as_a_folder_on_this_machine(ws: Workspace, project: Path) -> None:
    put(project, {"m/a.txt": "a", "m/deep/b.txt": "b"})
    dataset = Dataset.File.upload_directory("m", (ws.get_default_datastore(), "mounted"))
    with dataset.mount() as context:
        point = Path(context.mount_point)
        assert sorted(os.listdir(point)) == ["a.txt", "deep"]
        assert (point / "deep/b.txt").read_text() == "b"
    assert not point.exists()
    mine = dataset.mount("mine")
    mine.start()
    assert (project / "mine/a.txt").read_text() == "a"
    mine.stop()
    assert list((project / "mine").iterdir()) == []
    put(project, {"full/x": "x"})
    with pytest.raises(UserErrorException, match="not empty"):
        dataset.mount("full").start()
    with pytest.raises(UserErrorException, match="exists already"):
        dataset.download("m")
    only = Dataset.File.upload_directory("m", DataPath(ws.get_default_datastore(), "o"), "*.txt")
    assert only.to_path() == ["/a.txt"]


FORGETFUL = """
import os, signal, sys
from runyard import Dataset, Workspace
context = Dataset.get_by_name(Workspace.get("data-stories"), "forgotten").mount("left")
context.start()
print(os.path.realpath("left"), context._mount.note()["pid"], open("left/a.txt").read())
sys.stdout.flush()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
child = os.fork()
if not child:
    sys.exit()  # the end of a child is not the end of the mount
os.waitpid(child, 0)
assert sorted(os.listdir("left")) == ["a.txt", "b.txt"]
"""


@pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())
@pytest.mark.parametrize("end", ["ended", "killed"])
def test_a_mount_that_nobody_stopped_ends_with_its_program(
    ws: Workspace, project: Path, end: str
) -> None:
    put(project, {"m/a.txt": "a", "m/b.txt": "b"})
    dataset = Dataset.File.upload_directory("m", (ws.get_default_datastore(), f"left-{end}"))
    dataset.register(ws, "forgotten", create_new_version=True)
    command = [sys.executable, "-c", FORGETFUL, end]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == (0 if end == "ended" else -signal.SIGKILL)
    point, pid, content = done.stdout.split()
    assert content == "a"
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    assert not os.path.exists(os.path.dirname(point))  # the token was in there
    if end == "ended":
        assert list((project / "left").iterdir()) == []


TABLES = """
    import json
    from azureml.core import Dataset, Run

    run = Run.get_context()
    ws = run.experiment.workspace
    direct = run.input_datasets["csv"].to_pandas_dataframe()
    print(direct["n"].tolist(), str(direct["when"][0].date()))
    print(Dataset.get_by_name(ws, "numbers-parquet").take(1).to_pandas_dataframe()["n"].tolist())
    lines = Dataset.get_by_name(ws, name="numbers-lines")
    print(lines.filter(lines["n"] > 1).to_pandas_dataframe()["n"].tolist())
    half, rest = run.input_datasets["csv"].random_split(0.5, seed=5)
    print(json.dumps([one.to_pandas_dataframe()["n"].tolist() for one in (half, rest)]))

    store = ws.get_default_datastore()
    with open("made.csv", "w") as file:
        file.write("n\\n7\\n")
    store.upload_files(["made.csv"], target_path="from-job", overwrite=True)
    made = Dataset.Tabular.from_delimited_files((store, "from-job/made.csv"))
    made.register(ws, "from-job", create_new_version=True)
    print(store.download("back", prefix="from-job"), open("back/from-job/made.csv").read().split())
    with ws.datasets["numbers-files"].mount() as files:
        import os
        print(sorted(os.listdir(files.mount_point)))
    print("none" if "x" not in run.input_datasets else "some")
"""


def test_tables_are_the_same_here_and_in_a_job(ws: Workspace, project: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3], "when": pd.to_datetime(["2020-01-31"] * 3)})
    csv, lines = io.StringIO(), io.StringIO()
    frame.to_csv(csv, index=False)
    frame.assign(when="x").to_json(lines, orient="records", lines=True)
    put(project, {"t/n.csv": csv.getvalue(), "t/n.jsonl": lines.getvalue()})
    ds = ws.get_default_datastore()
    ds.upload("t", "tables", show_progress=False)
    table = Dataset.Tabular.from_delimited_files(path=(ds, "tables/*.csv"))
    table.register(ws, "numbers-csv", create_new_version=True)
    parquet = Dataset.Tabular.register_pandas_dataframe(frame, (ds, "p"), "numbers-parquet")
    assert isinstance(parquet, TabularDataset)
    jsonl = Dataset.Tabular.from_json_lines_files((ds, "tables/n.jsonl"))
    jsonl.register(ws, "numbers-lines", create_new_version=True)
    Dataset.File.from_files((ds, "tables")).register(ws, "numbers-files", create_new_version=True)

    assert table.to_pandas_dataframe().equals(
        parquet.to_pandas_dataframe().astype({"when": "M8[us]"})
    )
    half, rest = table.random_split(0.5, seed=5)
    halves = [one.to_pandas_dataframe()["n"].tolist() for one in (half, rest)]
    assert sorted(halves[0] + halves[1]) == [1, 2, 3]
    again = table.drop_columns("when").to_csv_files()
    assert again.to_path() == ["/part-00000.csv"]
    assert Path(again.download()[0]).read_text() == "n\n1\n2\n3\n"
    assert table.to_parquet_files().to_path() == ["/part-00000.parquet"]

    run = run_script(ws, project, TABLES, table.as_named_input("csv"))
    assert printed(run).splitlines()[:4] == [
        "[1, 2, 3] 2020-01-31",
        "[1]",
        "[2, 3]",
        json.dumps(halves),
    ]
    assert printed(run).splitlines()[-3:] == ["1 ['n', '7']", "['n.csv', 'n.jsonl']", "none"]
    made: Any = Dataset.get_by_name(ws, "from-job")
    assert made.to_pandas_dataframe()["n"].tolist() == [7]
    assert run.input_datasets["csv"].id == table.id


def test_outputs_are_kept_and_registered(ws: Workspace, project: Path) -> None:
    ds = ws.get_default_datastore()
    result = OutputFileDatasetConfig("result", (ds, "results/{run-id}")).register_on_complete(
        "the-results", tags={"from": "story"}
    )
    model = OutputFileDatasetConfig("model").as_upload(source_globs=["**/*.bin"])
    written = ds.path("written", "w").as_upload()
    script = """
        import os, sys
        from azureml.core import Run
        result, model, written, table = sys.argv[1:]
        with open(os.path.join(table, "n.csv"), "w") as file:
            file.write("n\\n5\\n")
        outputs = Run.get_context().output_datasets
        assert outputs["result"] == result and outputs["model"] == model, (outputs, sys.argv)
        made = ((result, "deep/r.txt"), (model, "m.bin"), (model, "m.tmp"), (written, "w.txt"))
        for folder, name in made:
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(name)
    """
    table = OutputFileDatasetConfig("table").read_delimited_files().register_on_complete("a-table")
    run = run_script(ws, project, script, result, model, written, table)
    kept: Any = Dataset.get_by_name(ws, "the-results")
    assert (kept.to_path(), kept.tags) == (["/deep/r.txt"], {"from": "story"})
    assert ds.download("got", show_progress=False, prefix=f"dataset/{run.id}/model") == 1
    assert (project / f"got/dataset/{run.id}/model/m.bin").read_text() == "m.bin"
    assert Dataset.File.from_files((ds, "written")).to_path() == ["/w.txt"]
    shown = [one["outputDetails"]["outputName"] for one in run.get_details()["outputDatasets"]]
    assert shown == ["result", "model", "table"]
    read: Any = Dataset.get_by_name(ws, "a-table")
    assert read.to_pandas_dataframe()["n"].tolist() == [5]
    assert run.get_details()["outputDatasets"][2]["dataset"]["id"] == read.id


def test_resume_from_leads_to_the_checkpoint(ws: Workspace, project: Path) -> None:
    put(project, {"ck/model.ckpt": "weights"})
    ds = ws.get_default_datastore()
    ds.upload("ck", "checkpoints", show_progress=False)
    script = """
        import os, sys
        assert sys.argv[1] == "--resume-from"
        assert sys.argv[2] == os.environ["AZUREML_DATAREFERENCE_MODEL_LOCATION"]
        print(open(os.path.join(sys.argv[2], "model.ckpt")).read())
    """
    run = run_script(ws, project, script, resume_from=DataPath(ds, "checkpoints"))
    assert printed(run) == "weights\n"


def test_two_inputs_of_one_name_are_refused(ws: Workspace, project: Path) -> None:
    put(project, {"n/1.txt": "1", "src/main.py": ""})
    ds = ws.get_default_datastore()
    ds.upload("n", "names", show_progress=False)
    one = Dataset.File.from_files((ds, "names")).as_named_input("data").as_mount()
    two = Dataset.File.from_files((ds, "names/1.txt")).as_named_input("data").as_mount()
    with pytest.raises(UserErrorException, match="called 'data'"):
        Experiment(ws, "data").submit(ScriptRunConfig("src", "main.py", [one, two]))
    other = Workspace.create("data-other", exist_ok=True)
    with pytest.raises(UserErrorException, match="belongs to the workspace"):
        Experiment(other, "data").submit(ScriptRunConfig("src", "main.py", [one]))
    # The same input twice is one input.
    run = run_script(ws, project, LIST, "--d", one, "--again", one)
    assert printed(run) == "1.txt\n"


def test_an_empty_folder_is_uploaded_as_nothing(ws: Workspace) -> None:
    Path("empty").mkdir()
    ws.get_default_datastore().upload("empty", target_path="nothing", show_progress=False)
    assert ws.get_default_datastore().download("back", prefix="nothing") == 0
