"""The model registry over a real store."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import models, runs
from runyard.conductor.models import ModelSearch
from runyard.domain.data import (
    DataInput,
    DatasetRecord,
    DatasetSpec,
    InputMode,
    UrlSource,
)
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import BlobsMissing, Conflict, Invalid, NoModelFiles, NotFound
from runyard.domain.files import FileEntry
from runyard.domain.models import ModelDataset, ModelDraft, ModelPatch, ModelRecord
from runyard.domain.runs import RunRecord, RunSpec, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.stores import open_store
from runyard.stores.base import Store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    for name in ("ws", "other"):
        opened.records.insert(WorkspaceRecord(id=name, name=name, created=NOW))
    yield opened
    opened.close()


def keep(store: Store, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.blobs.put(digest, [data])
    return digest


def entry(store: Store, path: str, data: bytes = b"data") -> FileEntry:
    return FileEntry(path, keep(store, data), len(data))


def local(store: Store, name: str = "m", **more: object) -> ModelDraft:
    manifest = (entry(store, "model.pkl"),)
    return msgspec.structs.replace(ModelDraft(workspace="ws", name=name, manifest=manifest), **more)


def make_run(store: Store, *paths: str, workspace: str = "ws") -> RunRecord:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot="5" * 64,
        environment=EnvironmentSpec(name="env"),
        inputs=(DataInput(name="digits", mode=InputMode.MOUNT, dataset="d1"),),
    )
    spec = RunSpec(workspace=workspace, experiment="exp", script=script, submitted_by="ann")
    use = EnvironmentUse(key="k", interpreter="/python", python="3.8", lock=("numpy==1.0",))
    run = msgspec.structs.replace(runs.new_run(spec, NOW), environment=use)
    run = store.records.insert(run)
    store.artifacts.put(run.id, [entry(store, path, path.encode()) for path in paths])
    return run


def make_dataset(store: Store, id: str = "d1", workspace: str = "ws") -> None:
    spec = DatasetSpec(sources=(UrlSource(url="http://x/y"),))
    store.records.insert(
        DatasetRecord(id=id, workspace=workspace, spec=spec, created=NOW, name="mnist", number=2)
    )


def found(store: Store, **wanted: object) -> list[str]:
    search = msgspec.convert(wanted, ModelSearch)
    return [f"{one.name}:{one.number}" for one in models.find(store, search).models]


def test_a_model_of_a_run_copies_nothing_and_knows_its_run(store: Store) -> None:
    run = make_run(store, "outputs/model/a", "outputs/model/b/c", "outputs/other")
    draft = ModelDraft(
        workspace="ws", name="m", run=run.id, path="outputs/model", framework="tensorflow"
    )
    model = models.register(store, draft, NOW)
    assert [one.path for one in model.manifest] == ["model/a", "model/b/c"]
    kept = {info.path: info.digest for info in store.artifacts.list(run.id)}
    assert [one.digest for one in model.manifest] == [
        kept["outputs/model/a"],
        kept["outputs/model/b/c"],
    ]
    assert (model.is_folder, model.number, model.experiment) == (True, 1, "exp")
    assert (model.framework, model.created_by) == ("TensorFlow", "ann")


def test_without_a_path_the_models_name_is_meant(store: Store) -> None:
    run = make_run(store, "m/x")
    model = models.register(store, ModelDraft(workspace="ws", name="m", run=run.id), NOW)
    assert [one.path for one in model.manifest] == ["m/x"]


def test_a_path_that_is_not_there_lists_what_is(store: Store) -> None:
    run = make_run(store, "logs/a", "outputs/model/x")
    draft = ModelDraft(workspace="ws", name="m", run=run.id, path="outputs/modle")
    with pytest.raises(NoModelFiles) as caught:
        models.register(store, draft, NOW)
    assert caught.value.why == "It has: outputs/model/x, logs/a."  # outputs first
    assert "'outputs/model'" in caught.value.fix
    empty = ModelDraft(workspace="ws", name="m", run=make_run(store).id)
    with pytest.raises(NoModelFiles, match="no file and no folder 'm'") as caught:
        models.register(store, empty, NOW)
    assert "./outputs" in caught.value.fix


def test_removing_the_run_takes_nothing_from_the_model(store: Store) -> None:
    run = make_run(store, "outputs/model")
    draft = ModelDraft(workspace="ws", name="m", run=run.id, path="outputs/model")
    model = models.register(store, draft, NOW)
    store.records.delete(run)
    assert store.artifacts.list(run.id) == []
    kept = store.records.get(ModelRecord, model.id)
    assert b"".join(store.blobs.open(kept.manifest[0].digest)) == b"outputs/model"
    lineage = models.load_lineage(store, kept)
    assert (lineage.run, lineage.snapshot, lineage.environment) == (run.id, None, None)
    assert [one.id for one in lineage.inputs] == ["d1"]  # kept with the model


def test_lineage_leads_from_a_model_to_code_environment_and_data_and_back(store: Store) -> None:
    make_dataset(store)
    make_dataset(store, "d2")
    run = make_run(store, "outputs/model")
    uses = (ModelDataset(purpose="training", dataset="d2"),)
    draft = ModelDraft(workspace="ws", name="m", run=run.id, path="outputs/model", datasets=uses)
    lineage = models.load_lineage(store, models.register(store, draft, NOW))
    assert (lineage.run, lineage.experiment, lineage.snapshot) == (run.id, "exp", "5" * 64)
    assert lineage.environment_name == "env"
    assert lineage.environment is not None
    assert lineage.environment.lock == ("numpy==1.0",)
    assert [(one.purpose, one.name, one.number) for one in lineage.datasets] == [
        ("training", "mnist", 2)
    ]
    assert [(one.purpose, one.id) for one in lineage.inputs] == [("digits", "d1")]
    for key, value in {"run": run.id, "dataset": "d1"}.items():
        assert found(store, **{key: value}) == ["m:1"]
    assert found(store, dataset="d2") == ["m:1"]
    assert found(store, dataset="d3") == []


def test_many_who_register_at_once_get_a_version_each(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: models.register(store, local(store), NOW), range(40)))
    assert sorted(model.number for model in made) == list(range(1, 41))
    assert len({model.id for model in made}) == 40


def test_a_repeated_request_makes_one_model(store: Store) -> None:
    draft = local(store, id="mine")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: models.register(store, draft, NOW), range(8)))
    assert {(model.id, model.number) for model in made} == {("mine", 1)}
    with pytest.raises(Conflict, match="another model"):
        models.register(store, local(store, "n", id="mine"), NOW)


def test_numbers_are_not_given_again(store: Store) -> None:
    first, second = (models.register(store, local(store), NOW) for _ in range(2))
    models.delete(store, second.id)
    models.delete(store, first.id)
    with pytest.raises(NotFound):
        models.delete(store, first.id)
    assert models.register(store, local(store), NOW).number == 3
    assert models.register(store, local(store, workspace="other"), NOW).number == 1


def test_a_served_model_stays(store: Store) -> None:
    model = models.register(store, local(store), NOW)
    with pytest.raises(Conflict, match="is being served") as caught:
        models.delete(store, model.id, services=("digits-api",))
    assert "digits-api" in caught.value.why
    assert found(store) == ["m:1"]


@pytest.mark.parametrize(
    ("draft", "error", "words"),
    [
        (ModelDraft(workspace="ws", name="a b"), Invalid, "cannot be the name"),
        (ModelDraft(workspace="ws", name="m"), Invalid, "needs files, or a run"),
        (ModelDraft(workspace="ws", name="m", manifest=()), Invalid, "at least one file"),
        (ModelDraft(workspace="nowhere", name="m", manifest=()), NotFound, "Workspace 'nowhere'"),
        (ModelDraft(workspace="ws", name="m", run="nobody"), NotFound, "Run 'nobody'"),
        (
            ModelDraft(workspace="ws", name="m", manifest=(FileEntry("../x", "0" * 64, 1),)),
            Invalid,
            "plain relative path",
        ),
        (
            ModelDraft(workspace="ws", name="m", manifest=(FileEntry("x", "0" * 64, 1),)),
            BlobsMissing,
            "1 files of the model",
        ),
        (
            ModelDraft(workspace="ws", name="m", manifest=(), framework_version="1"),
            Invalid,
            "which framework",
        ),
        (
            ModelDraft(
                workspace="ws", name="m", datasets=(ModelDataset(purpose="t", dataset="d9"),)
            ),
            Invalid,
            "Dataset 'd9' does not exist",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    store: Store, draft: ModelDraft, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        models.register(store, draft, NOW)
    assert found(store) == []


def test_runs_and_datasets_of_other_workspaces_are_out_of_reach(store: Store) -> None:
    run = make_run(store, "m", workspace="other")
    with pytest.raises(Invalid, match="another workspace"):
        models.register(store, ModelDraft(workspace="ws", name="m", run=run.id), NOW)
    make_dataset(store, "d7", workspace="other")
    with pytest.raises(Invalid, match="Dataset 'd7' does not exist in workspace 'ws'"):
        models.register(store, local(store, sample_input="d7"), NOW)


def test_each_filter_narrows_the_search(store: Store) -> None:
    models.register(store, local(store, "a", tags={"stage": "old"}, framework="Onnx"), NOW)
    models.register(store, local(store, "a", properties={"p": "1"}), NOW)
    models.register(store, local(store, "b", tags={"stage": "new", "x": None}), NOW)
    models.register(store, local(store, "b", workspace="other"), NOW)
    assert found(store, workspace="ws") == ["b:1", "a:2", "a:1"]
    assert found(store, workspace="ws", latest=True) == ["b:1", "a:2"]
    assert found(store, workspace="ws", latest=True, framework="onnx") == ["a:1"]
    assert found(store, name="a") == ["a:2", "a:1"]
    assert found(store, name="a", number=1) == ["a:1"]
    assert found(store, name="a", number=9) == []
    assert found(store, tags={"stage": None}) == ["b:1", "a:1"]
    assert found(store, tags={"stage": "new", "x": None}) == ["b:1"]
    assert found(store, properties={"p": "1"}) == ["a:2"]
    assert found(store, workspace="ws", name="b", tags={"stage": "old"}) == []
    with pytest.raises(Invalid, match="Version 1 of which model"):
        models.find(store, ModelSearch(number=1))


def test_a_page_leads_to_the_next(store: Store) -> None:
    for _ in range(5):
        models.register(store, local(store), NOW)
    seen, after = [], None
    while True:
        page = models.find(store, ModelSearch(name="m"), limit=2, after=after)
        seen += [one.number for one in page.models]
        after = page.next
        if after is None:
            break
    assert seen == [5, 4, 3, 2, 1]


def test_labels_change_and_files_do_not(store: Store) -> None:
    make_dataset(store)
    model = models.register(store, local(store, tags={"a": "1", "b": "2"}), NOW)
    use = ModelDataset(purpose="t", dataset="d1")
    patch = ModelPatch(
        description="better",
        set_tags={"c": None},
        remove_tags=("a", "none"),
        add_properties={"p": "1"},
        add_datasets=(use, use),
        sample_input="d1",
    )
    changed = models.patch(store, model.id, patch, LATER)
    assert changed.tags == {"b": "2", "c": None}
    assert (changed.description, changed.properties) == ("better", {"p": "1"})
    assert (changed.datasets, changed.sample_input) == ((use,), "d1")
    assert (changed.manifest, changed.number, changed.modified) == (model.manifest, 1, LATER)
    assert models.patch(store, model.id, patch, LATER).version == changed.version  # nothing new
    with pytest.raises(Conflict, match="has the property 'p' already"):
        models.patch(store, model.id, ModelPatch(add_properties={"p": "2"}), LATER)
    assert models.patch(store, model.id, ModelPatch(tags={}), LATER).tags == {}
    assert found(store, tags={"b": "2"}) == []  # and what it is found by follows
    assert found(store, dataset="d1") == ["m:1"]
    with pytest.raises(Invalid, match="Dataset 'gone'"):
        models.patch(store, model.id, ModelPatch(sample_output="gone"), LATER)


def test_changes_at_once_are_all_there(store: Store) -> None:
    model = models.register(store, local(store), NOW)

    def tag(number: int) -> None:
        models.patch(store, model.id, ModelPatch(set_tags={str(number): None}), LATER)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tag, range(20)))
    assert len(store.records.get(ModelRecord, model.id).tags) == 20
