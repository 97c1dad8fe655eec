"""What every handler works with: the store, the conductor, and the road between threads."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import ParamSpec, Protocol, TypeVar

from runyard.conductor.changes import Changes
from runyard.data.opening import Datastores
from runyard.domain.compute import EngineRef, Machine, NodeResources
from runyard.domain.runs import RunRecord, redact_run
from runyard.domain.server import ServerInfo
from runyard.engines.base import Capabilities
from runyard.environments.base import Builder
from runyard.server.environment_builds import EnvironmentBuilds
from runyard.server.heartbeats import Heartbeats
from runyard.server.lineage import Lineage
from runyard.settings import Settings
from runyard.stores.base import Store
from runyard_runtime.fetch import Fetcher

P = ParamSpec("P")
T = TypeVar("T")

# Stores block: on SQLite for a commit (milliseconds), on PostgreSQL for a round trip.
STORE_THREADS = 16
# Uploads are as slow as their senders, so they have threads of their own.
UPLOAD_THREADS = 16
# Datastores elsewhere and web addresses are as slow as the network.
DATA_THREADS = 16
# Of a question to a web address while somebody waits for the answer; the fetcher asks five times.
ASK_SECONDS = 5.0


class Attendant(Protocol):
    """The part of the conductor that the server needs."""

    def capabilities_of(self, engine: EngineRef | None) -> Capabilities:
        """What an engine can do; None: this machine's."""

    def trouble_of(self, engine: EngineRef) -> str:
        """Why a cluster cannot be used now, in words; empty: it can."""

    def check_engine(
        self, engine: EngineRef, nodes: int = 1, each: NodeResources | None = None
    ) -> None:
        """Ask a cluster whether it takes jobs, of such nodes; raises what is wrong, in words."""

    def check_room(self, engine: EngineRef, nodes: int, each: NodeResources | None) -> None:
        """Raise if a cluster will never have such nodes."""

    def wake(self, run_id: str | None = None) -> None:
        """Look at that run now; None: at the compute targets."""

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with their place in line, where they wait in one."""

    def plan_of(self, run: RunRecord) -> bytes:
        """The plan of the run's present attempt, for a node that asks for it."""


class ServiceAttendant(Protocol):
    """The part of what keeps services that the server needs."""

    def wake(self) -> None:
        """Look at the services now."""


class Platform:
    """One server's parts. Lives as long as the server; made and closed in its event loop."""

    def __init__(
        self,
        *,
        store: Store,
        settings: Settings,
        conductor: Attendant,
        serving: ServiceAttendant,
        changes: Changes,
        secret: bytes,
        owner_token: str,
        info: Callable[[], ServerInfo],
        stop: Callable[[], None],
        machine: Machine | None = None,
        builders: Sequence[Builder] = (),
    ) -> None:
        self.store = store
        self.settings = settings
        self.changes = changes
        self.secret = secret
        self.owner_token = owner_token
        self.info = info
        self.stop = stop
        self.lineage = Lineage(store.records)
        self.heartbeats = Heartbeats(changes)
        self.conductor = conductor
        self.serving = serving
        self.machine = machine or Machine(cores=1)  # what nodes are made of
        self.builds = EnvironmentBuilds(builders)
        self.datastores = Datastores(store, secret=secret, home=settings.home)
        self.fetcher = Fetcher(
            mirrors=settings.mirrors,
            allow_private=settings.allows_private,
            max_bytes=settings.fetch_limit_bytes,
            connect_seconds=ASK_SECONDS,
            read_seconds=ASK_SECONDS,
        )
        self._threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="store")
        self._uploads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")
        self._data = ThreadPoolExecutor(DATA_THREADS, thread_name_prefix="data")

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that blocks, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        if kwargs:
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        return await loop.run_in_executor(self._threads, call, *args)

    async def in_upload_thread(self, call: Callable[[], T]) -> T:
        """Call something that waits for a client."""
        return await asyncio.get_running_loop().run_in_executor(self._uploads, call)

    async def in_data_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that waits for a store elsewhere, or for the web."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._data, lambda: call(*args, **kwargs))

    def load_run(self, run_id: str) -> RunRecord:
        """The run as people see it; `NotFound` if there is none."""
        return self.show([self.store.records.get(RunRecord, run_id)])[0]

    def show(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs as people see them: with their place in line, and without the passwords of
        package indexes, which are kept for those who build environments."""
        return [redact_run(run) for run in self.conductor.describe(found)]

    def changed(self, run_id: str, *, wake: bool = False) -> None:
        """Tell those who wait for news of the run; `wake`: its state may have to move."""
        self.changes.notify(run_id)
        if wake:
            self.conductor.wake(run_id)

    def close(self) -> None:
        """Finish what the threads are doing."""
        self._threads.shutdown()
        self._uploads.shutdown()
        self._data.shutdown()
        self.fetcher.close()


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)
