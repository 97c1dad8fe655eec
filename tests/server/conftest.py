"""A server in a thread: real sockets, a real store, and a conductor that only takes notes."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import urllib3
import uvloop

from runyard import __version__
from runyard.conductor import runs, services
from runyard.conductor.changes import Changes
from runyard.domain.compute import EngineRef, NodeResources
from runyard.domain.errors import Unsupported
from runyard.domain.files import FileEntry
from runyard.domain.runs import RunError, RunRecord, RunSpec
from runyard.domain.server import ServerInfo
from runyard.domain.services import ServiceRecord
from runyard.domain.states import RunState
from runyard.domain.tokens import Role, mint
from runyard.engines.base import Capabilities
from runyard.planning.services import FRONT, Seen, plan_service
from runyard.server import serving
from runyard.server.app import build_app
from runyard.server.platform import Platform
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.testing.fake_builder import FakeBuilder

SECRET = b"a secret for tests only"
OWNER_TOKEN = "the-owner's-token"
WORKSPACE = "yard"


class NoteTaker:
    """Stands where the conductor would, and remembers what it was told."""

    def __init__(self) -> None:
        self.woken: list[str | None] = []
        self.bug: Exception | None = None  # raised by `describe`
        self.plan = b"{}"  # what nodes are told
        self.trouble = ""  # of all clusters
        self.refusal: Exception | None = None  # what clusters say when they are asked
        self.asked: list[NodeResources | None] = []  # of each node

    def wake(self, run_id: str | None = None) -> None:
        self.woken.append(run_id)

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        if self.bug is not None:
            raise self.bug
        return found

    def capabilities_of(self, engine: EngineRef | None) -> Capabilities:
        is_here = engine is not None and "127.0.0.1" in engine.options.get("address", "")
        return Capabilities(shared_folder=True, finds_server=is_here)

    def trouble_of(self, engine: EngineRef) -> str:
        return self.trouble

    def check_room(self, engine: EngineRef, nodes: int, each: NodeResources | None) -> None:
        pass

    def check_engine(
        self, engine: EngineRef, nodes: int = 1, each: NodeResources | None = None
    ) -> None:
        if engine.kind not in ("ray", "slurm"):
            raise Unsupported(f"There is no engine '{engine.kind}'.")
        self.asked.append(each)
        if self.refusal is not None:
            raise self.refusal

    def plan_of(self, run: RunRecord) -> bytes:
        return self.plan


class LiveServer:
    """A server on loopback that tests can look into."""

    def __init__(self, home: Path, *, body_limit_mb: int = 1, compute: str = "local") -> None:
        self.settings = Settings(
            home=home,
            body_limit_mb=body_limit_mb,
            allowed_hosts=("yard.example",),
            compute=compute,
        )
        self.store = open_store(self.settings.database_url, self.settings.blobs_url)
        self.conductor = NoteTaker()
        self.changes = Changes()
        self.builder = FakeBuilder()
        self._listener = serving.bind("127.0.0.1", 0, None)
        self.url = serving.url_of(self._listener)
        self.http = urllib3.PoolManager(num_pools=4, maxsize=40)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        self._made = 0
        self.request("POST", "/api/v1/workspaces", json={"name": WORKSPACE})

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        info = ServerInfo(
            pid=1, url=self.url, version=__version__, started=datetime.now(UTC), home="home"
        )
        platform = Platform(
            store=self.store,
            settings=self.settings,
            conductor=self.conductor,
            serving=self.conductor,
            changes=self.changes,
            secret=SECRET,
            owner_token=OWNER_TOKEN,
            info=lambda: info,
            stop=self._stop.set,
            builders=[self.builder],
        )
        self.platform = platform
        try:
            await serving.serve(
                build_app(platform),
                self._listener,
                self._stop,
                ready=self._ready.set,
                end_streams=self.changes.close,
            )
        finally:
            await asyncio.to_thread(platform.close)

    def close(self) -> None:
        """Stop, as a signal would; returns when everything is over."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self.http.clear()
        self.store.close()

    def request(
        self,
        verb: str,
        path: str,
        *,
        json: object = None,
        body: bytes | Iterator[bytes] | None = None,
        token: str | None = OWNER_TOKEN,
        headers: dict[str, str] | None = None,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """One request; `path` is sent exactly as it is written here."""
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if json is not None:
            body = msgspec.json.encode(json)
        pool = self.http.connection_from_url(self.url)
        return pool.urlopen(
            verb,
            path,
            body=body,
            headers=sent,
            retries=False,
            redirect=False,
            preload_content=not stream,
            timeout=30,
        )

    def run_token(self, run_id: str) -> str:
        return mint(SECRET, Role.RUN, run_id, int(time.time()) + 1000)

    def agent_token(self, run_id: str) -> str:
        return mint(SECRET, Role.AGENT, run_id, int(time.time()) + 1000)

    def ticket(self, seconds: int = 1000, run_id: str = "") -> str:
        return mint(SECRET, Role.VIEWER, run_id, int(time.time()) + seconds)

    def make_run(self, parent: str | None = None, **more: object) -> RunRecord:
        """A running interactive run, written through the store."""
        self._made += 1
        spec = RunSpec(
            experiment="trials",
            parent=parent,
            id=f"run.{self._made}",
            **{"workspace": WORKSPACE, **more},  # type: ignore[arg-type]
        )
        return self.store.records.insert(runs.new_run(spec, datetime.now(UTC)))

    def change(self, run_id: str, how: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Change a run behind the server's back, and say so."""
        changed = runs.change(self.store, run_id, how)
        self.changes.notify(run_id)
        return changed

    def complete(self, run_id: str) -> RunRecord:
        run = runs.complete(self.store, run_id, datetime.now(UTC))
        self.changes.notify(run_id)
        return run

    def end_long_ago(self, run_id: str) -> RunRecord:
        """Complete a run, eleven minutes back."""
        ended = datetime.now(UTC) - timedelta(minutes=11)
        run = self.complete(run_id)
        return self.change(run.id, lambda now: msgspec.structs.replace(now, ended=ended))

    def keep(self, data: bytes) -> str:
        """Put a blob; its digest."""
        digest = hashlib.sha256(data).hexdigest()
        self.store.blobs.put(digest, [data])
        return digest

    def keep_file(self, run_id: str, path: str, data: bytes) -> None:
        self.store.artifacts.put(run_id, [FileEntry(path, self.keep(data), len(data))])

    def append_log(self, run_id: str, name: str, data: bytes) -> None:
        """Append through the API, as an agent does."""
        end = self.store.streams.end(run_id, name)
        path = f"/api/v1/runs/{run_id}/streams/log/{name}?offset={end}"
        assert self.request("POST", path, body=data).status == 200


class Stage:
    """Stands where services are kept: what is asked for is there at once, or fails as told."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self.error: RunError | None = None  # with which the next revision fails
        self.held = False  # True: nothing happens until `release`

    def wake(self) -> None:
        if not self.held:
            for service in services.list_services(self._server.store, None):
                self._settle(service)

    def release(self) -> None:
        """Let what was asked for happen now."""
        self.held = False
        self.wake()

    def lose(self, name: str, error: RunError) -> None:
        """Have the workers of a service gone, for good."""
        service = self._service(name)
        assert service.serving is not None
        assert service.serving.run is not None
        seen = {**self._all_well(service), service.serving.run: _failed(error)}
        self._store(service, seen)

    def _service(self, name: str) -> ServiceRecord:
        found = services.list_services(self._server.store, None)
        return next(service for service in found if service.name == name)

    def _settle(self, service: ServiceRecord) -> None:
        if service.deleting:
            self._server.store.records.delete(service)
            self._server.changes.notify(service.id)
            return
        service = msgspec.structs.replace(service, settled=True)  # the front end knows at once
        for _ in range(4):  # start the front end and the workers; take over; see the old ones go
            seen = self._all_well(service)
            coming = service.coming
            if self.error is not None and coming is not None and coming.run is not None:
                seen[coming.run] = _failed(self.error)
            service = self._store(service, seen)

    def _store(self, service: ServiceRecord, seen: dict[str, Seen]) -> ServiceRecord:
        step = plan_service(service, seen, (), datetime.now(UTC))
        service = step.service
        for number in step.start:
            if number == FRONT:
                service = msgspec.structs.replace(service, front="front")
            elif service.coming is not None and service.coming.number == number:
                coming = msgspec.structs.replace(service.coming, run=f"workers-{number}", starts=1)
                service = msgspec.structs.replace(service, coming=coming)
        service = self._server.store.records.replace(service)
        self._server.changes.notify(service.id)
        return service

    def _all_well(self, service: ServiceRecord) -> dict[str, Seen]:
        well = Seen(state=RunState.RUNNING, is_ready=True, is_answering=True)
        revisions = (service.serving, service.coming)
        known = [service.front, *(one.run for one in revisions if one is not None)]
        return {run: well for run in known if run}


def _failed(error: RunError) -> Seen:
    return Seen(state=RunState.FAILED, error=error)


@pytest.fixture
def stage(server: LiveServer) -> Iterator[Stage]:
    """Services that come up when they are asked for, without any process; they go with the test."""
    made = Stage(server)
    before, server.platform.serving = server.platform.serving, made
    yield made
    made.error = None
    for service in services.list_services(server.store, None):
        server.store.records.delete(service)
    server.platform.serving = before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server for all tests of a file; each makes its own runs."""
    live = LiveServer(tmp_path_factory.mktemp("home"))
    yield live
    live.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server for one test alone, which may stop it."""
    live = LiveServer(tmp_path)
    yield live
    live.close()


@pytest.fixture
def cluster_server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server whose plain targets have the nodes of a cluster."""
    live = LiveServer(tmp_path, compute="slurm:gpu")
    yield live
    live.close()
