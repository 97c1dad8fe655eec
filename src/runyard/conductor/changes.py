"""Who waits for news of a run, and how they hear of it at once instead of asking again."""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator


class Watcher:
    """One waiting client; lives in an event loop."""

    def __init__(self, changes: "Changes") -> None:
        self._changes = changes
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def wait(self, timeout: float) -> bool:
        """True as soon as the run changed since the last wait; False after `timeout` seconds."""
        if self._changes.closed:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def poke(self) -> None:
        """Wake the waiter; from any thread. A loop that is gone has nobody to wake."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)


class Changes:
    """Spreads the word that a run has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        self._listeners: list[Callable[[str], None]] = []
        self.closed = False

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have it called with every run that has changed, at once, from any thread."""
        self._listeners.append(listener)

    def notify(self, run_id: str) -> None:
        """The run has changed, in whatever way. From any thread."""
        for listener in self._listeners:
            listener(run_id)
        with self._lock:
            watchers = list(self._watchers.get(run_id, ()))
        for watcher in watchers:
            watcher.poke()

    @contextlib.contextmanager
    def watch(self, run_id: str) -> Iterator[Watcher]:
        """A watcher for that run; look at the run only after you have it, or news may slip by."""
        watcher = Watcher(self)
        with self._lock:
            self._watchers[run_id].add(watcher)
        try:
            yield watcher
        finally:
            with self._lock:
                self._watchers[run_id].discard(watcher)
                if not self._watchers[run_id]:
                    del self._watchers[run_id]

    def close(self) -> None:
        """Wake everybody for good: the server stops."""
        self.closed = True
        with self._lock:
            everyone = [one for watchers in self._watchers.values() for one in watchers]
        for watcher in everyone:
            watcher.poke()
