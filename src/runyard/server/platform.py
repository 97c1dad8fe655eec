"""What every handler works with: the store, the conductor, and the road between threads."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import ParamSpec, Protocol, TypeVar

from runyard.conductor.changes import Changes
from runyard.domain.runs import RunRecord
from runyard.domain.server import ServerInfo
from runyard.server.lineage import Lineage
from runyard.settings import Settings
from runyard.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")

# Stores block: on SQLite for a commit (milliseconds), on PostgreSQL for a round trip.
STORE_THREADS = 16
# Uploads are as slow as their senders, so they have threads of their own.
UPLOAD_THREADS = 16


class Attendant(Protocol):
    """The part of the conductor that the server needs."""

    def wake(self, run_id: str | None = None) -> None:
        """Look at that run now, or at all of them."""

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with their place in line, where they wait in one."""


class Platform:
    """One server's parts. Lives as long as the server; made and closed in its event loop."""

    def __init__(
        self,
        *,
        store: Store,
        settings: Settings,
        conductor: Attendant,
        changes: Changes,
        secret: bytes,
        owner_token: str,
        info: Callable[[], ServerInfo],
        stop: Callable[[], None],
    ) -> None:
        self.store = store
        self.settings = settings
        self.changes = changes
        self.secret = secret
        self.owner_token = owner_token
        self.info = info
        self.stop = stop
        self.lineage = Lineage(store.records)
        self.conductor = conductor
        self._threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="store")
        self._uploads = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="upload")

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that blocks, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        if kwargs:
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        return await loop.run_in_executor(self._threads, call, *args)

    async def in_upload_thread(self, call: Callable[[], T]) -> T:
        """Call something that waits for a client."""
        return await asyncio.get_running_loop().run_in_executor(self._uploads, call)

    def load_run(self, run_id: str) -> RunRecord:
        """The run as people see it, with its place in line; `NotFound` if there is none."""
        return self.conductor.describe([self.store.records.get(RunRecord, run_id)])[0]

    def changed(self, run_id: str, *, wake: bool = False) -> None:
        """Tell those who wait for news of the run; `wake`: its state may have to move."""
        self.changes.notify(run_id)
        if wake:
            self.conductor.wake(run_id)

    def close(self) -> None:
        """Finish what the threads are doing."""
        self._threads.shutdown()
        self._uploads.shutdown()


def utc_now() -> datetime:
    """The present moment."""
    return datetime.now(UTC)
