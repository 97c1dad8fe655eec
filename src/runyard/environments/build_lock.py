"""One build per key at a time, over threads and processes of this machine."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from runyard.domain.errors import EngineFailed, ErrorBody, to_wire


class _Failure(msgspec.Struct, frozen=True):
    at: float
    error: ErrorBody


class BuildLock:
    """A lock file that the kernel frees when its holder dies.

    Child processes may inherit `descriptor`; the lock then lasts until they are gone too.
    Lock files are never removed: whoever waits on a removed one would lock nothing.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / key
        self._failure = folder / f"{key}.failure"
        self._since = time.time()
        self._waited = False
        self.descriptor = -1

    def __enter__(self) -> "BuildLock":
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.descriptor)

    def acquire(self, waiting: Callable[[], None]) -> None:
        """Get the lock; `waiting` is called first if somebody else has it."""
        if not self.try_acquire():
            self._waited = True
            waiting()
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Get the lock if nobody has it; False at once if somebody does."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def record_failure(self, error: EngineFailed) -> None:
        """Keep the failure for those who wait: they need not fail once more on their own."""
        failure = _Failure(at=time.time(), error=to_wire(error))
        with contextlib.suppress(OSError):  # a full disk: the others will see for themselves
            self._failure.write_bytes(msgspec.json.encode(failure))

    def failure_while_waiting(self) -> EngineFailed | None:
        """How the build ended that this one waited for; None if it did not fail."""
        if not self._waited:
            return None
        try:
            failure = msgspec.json.decode(self._failure.read_bytes(), type=_Failure)
        except (OSError, msgspec.MsgspecError):
            return None
        if failure.at < self._since:
            return None
        return EngineFailed(failure.error.what, why=failure.error.why, fix=failure.error.fix)
