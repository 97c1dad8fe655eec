"""How services are looked after, over a real store; their processes are only records here."""

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


def wait_for_run(store: Store, id: str) -> RunRecord:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(NotFound):
            return store.records.get(RunRecord, id)
        time.sleep(0.01)
    raise AssertionError(id)


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


class StatusPage(BaseHTTPRequestHandler):
    """A front end that says it has one worker of the first revision."""

    def do_GET(self) -> None:
        body = json.dumps({"revisions": {"1": {"ready_workers": 1}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def front() -> Iterator[int]:
    """The port of a front end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), StatusPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_first_revision_is_looked_for_by_the_front_end_and_serves_when_that_has_found_it(
    store: Store, serve: Callable[..., Serving], tmp_path: Path, front: int
) -> None:
    made = keep_service(store, "digits", port=front)
    serving = serve()
    workers = wait_for_run(store, f"service-{made.uid}-r1-1")
    begun = store.records.get(ServiceRecord, made.id)
    assert begun.front is not None
    told = json.loads((tmp_path / "home" / "services" / made.uid / "front.json").read_text())
    assert [one["revision"] for one in told["revisions"]] == [1]
    assert [Path(path).name for path in told["revisions"][0]["sockets"]] == ["r1w0.sock"]
    assert stat.S_ISFIFO(os.stat(told["bell"]).st_mode)
    assert store.records.get(ServiceRecord, made.id).state is ServiceState.TRANSITIONING
    for run in (workers, wait_for_run(store, begun.front)):  # no agent has said yet that they run
        store.records.replace(msgspec.structs.replace(run, state=RunState.STARTING))
    serving.wake()
    found = settle(store, made.id, lambda one: one.state is ServiceState.HEALTHY)
    assert found.serving is not None
    assert found.serving.number == 1
    assert found.coming is None


def test_workers_do_not_spin_unless_their_environment_says_so(
    store: Store, serve: Callable[..., Serving]
) -> None:
    chosen = EnvironmentSpec(name="e", variables={"OPENBLAS_THREAD_TIMEOUT": "26"})
    serve()
    variables = []
    for name, environment in (("calm", EnvironmentSpec(name="e")), ("chosen", chosen)):
        draft = ServiceDraft(spec=ServiceSpec(models=("m1",), environment=environment))
        made = services.create_service(
            store, YARD, name, draft, secret=SECRET, host="127.0.0.1", now=NOW
        )
        script = wait_for_run(store, f"service-{made.uid}-r1-1").spec.script
        assert script is not None
        variables.append(script.variables)
    assert variables[0]["OPENBLAS_THREAD_TIMEOUT"] == "20"
    assert "OPENBLAS_THREAD_TIMEOUT" not in variables[1]


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
