"""How services are looked after, over a real store; their processes are only records here."""

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runyard.conductor import runs, service_sockets, services
from runyard.conductor.changes import Changes
from runyard.conductor.serving import Serving, without_paths
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import NotFound
from runyard.domain.files import FileEntry
from runyard.domain.models import ModelRecord
from runyard.domain.runs import LauncherSpec, RunRecord, RunSpec, ScriptSpec
from runyard.domain.services import ServiceDraft, ServiceRecord, ServiceSpec, ServiceState
from runyard.domain.states import RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.stores.base import Store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = b"a secret for tests only"
YARD = WorkspaceRecord(id="w1", name="yard", created=NOW)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    opened.records.insert(YARD)
    model = ModelRecord(
        id="m1", workspace="yard", name="m1", manifest=(), size=0, created=NOW, framework="Onnx"
    )
    opened.records.insert(model)
    yield opened
    opened.close()


@pytest.fixture
def serve(store: Store, tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(secret: bytes = SECRET) -> Serving:
        settings = Settings(home=tmp_path / "home")
        serving = Serving(
            store, settings, secret, Changes(), lambda run: None, lambda: datetime.now(UTC)
        )
        started.append(serving)
        serving.start()
        return serving

    yield start
    for serving in started:
        serving.stop()


def keep_service(store: Store, name: str, **more: Any) -> ServiceRecord:
    draft = ServiceDraft(spec=ServiceSpec(models=("m1",)))
    made = services.create_service(
        store, YARD, name, draft, secret=SECRET, host="127.0.0.1", now=NOW
    )
    return store.records.replace(msgspec.structs.replace(made, **more))


def keep_run(store: Store, id: str, state: RunState) -> None:
    script = ScriptSpec(
        arguments=("x",),
        snapshot="s",
        environment=EnvironmentSpec(name="e"),
        launcher=LauncherSpec(),
    )
    run = runs.new_run(RunSpec(workspace="yard", experiment="e", id=id, script=script), NOW)
    store.records.insert(msgspec.structs.replace(run, state=state))


def settle(store: Store, id: str, wanted: Callable[[ServiceRecord], bool]) -> ServiceRecord:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = store.records.get(ServiceRecord, id)
        if wanted(found):
            return found
        time.sleep(0.01)
    raise AssertionError(store.records.get(ServiceRecord, id))


def wait_until_gone(store: Store, id: str) -> None:
    with pytest.raises(NotFound):
        settle(store, id, lambda _: False)


def test_a_service_that_does_not_answer_keeps_no_other_one_waiting(
    store: Store, serve: Callable[..., Serving]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        keep_run(store, "front", RunState.RUNNING)
        keep_service(store, "silent-one", front="front", port=silent.getsockname()[1])
        other = keep_service(store, "other-one", deleting=True)
        serve()
        link, _ = silent.accept()
        with link:
            wait_until_gone(store, other.id)
            # The silent one is still being waited for.
            link.setblocking(False)
            assert link.recv(1 << 16).startswith(b"GET")
            with pytest.raises(BlockingIOError):
                link.recv(1)


def test_a_service_whose_keys_cannot_be_read_says_so_and_can_be_deleted(
    store: Store, serve: Callable[..., Serving]
) -> None:
    keep_run(store, "front", RunState.RUNNING)
    made = keep_service(store, "digits", front="front")
    serving = serve(b"another secret")
    found = settle(store, made.id, lambda one: one.error is not None)
    assert found.state is ServiceState.FAILED
    assert found.error is not None
    assert "another secret" in found.error.message  # "than the server's present one"
    services.delete_service(store, YARD, "digits", NOW)
    serving.wake()
    deadline = time.monotonic() + 30
    while store.records.get(RunRecord, "front").state is RunState.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ended = store.records.get(RunRecord, "front")
    store.records.replace(msgspec.structs.replace(ended, state=RunState.CANCELED))
    wait_until_gone(store, made.id)


def test_a_revision_whose_model_is_gone_fails_in_words(
    store: Store, serve: Callable[..., Serving]
) -> None:
    made = keep_service(store, "digits")
    store.records.delete(store.records.get(ModelRecord, "m1"))
    serve()
    found = settle(store, made.id, lambda one: one.state is ServiceState.FAILED)
    assert (found.coming, found.serving) == (None, None)
    assert found.failed is not None
    assert found.error is not None
    assert "m1" in found.error.message


# ---- sockets ---------------------------------------------------------------------------------


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / ("x" * 100) / "uid"


def test_sockets_of_a_deep_home_have_a_folder_for_their_owner_alone(deep: Path) -> None:
    assert service_sockets.find_folder(deep) is None
    made = service_sockets.make_folder(deep)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert len(str(made)) < len(str(deep))
    assert service_sockets.find_folder(deep) == made
    assert service_sockets.make_folder(deep) == made
    service_sockets.remove_folders(deep)
    assert not made.exists()
    assert not deep.exists()


@pytest.mark.parametrize("how", ["open", "link", "gone"])
def test_a_folder_that_is_not_ours_alone_is_not_used(deep: Path, how: str) -> None:
    made = service_sockets.make_folder(deep)
    if how == "open":
        made.chmod(0o777)
    else:
        made.rmdir()
    if how == "link":
        elsewhere = deep.parent / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        os.symlink(elsewhere, made)
    assert service_sockets.find_folder(deep) is None
    assert service_sockets.make_folder(deep) != made
    service_sockets.remove_folders(deep)


# ---- files -----------------------------------------------------------------------------------


def test_files_of_the_user_are_left_out_only_where_they_are_in_the_way() -> None:
    paths = ["score.py", "azureml-models/m/1/x", "azureml-models/m/10/x", "spec.json.bak", "spec"]
    tree = tuple(FileEntry(path, "0" * 64, 1) for path in (*paths, "spec.json"))
    left = without_paths(tree, ("azureml-models/m/1", "spec.json"))
    assert [one.path for one in left] == [path for path in paths if path != paths[1]]
    folder = (FileEntry("azureml-models", "0" * 64, 1),)
    assert without_paths(folder, ("azureml-models/m/1",)) == []
