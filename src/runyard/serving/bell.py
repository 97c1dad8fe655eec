"""The bell of the services: by it a front end tells the platform that there is something to see.

It is a named pipe, so whoever rings needs no address and no answer, and waits for nobody. Where no
server listens nothing happens; a server that starts looks at everything anyway.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

FILE_NAME = "bell"
_SOUND = b"!"
_MOST = 1 << 16  # what a pipe holds


class Bell:
    """What one thread waits for and others ring: threads of the same process, or `ring`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = threading.Lock()  # a closed descriptor may be somebody else's
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(self.path, 0o600)
            # For writing, too: a pipe that nobody has open for that is always at its end.
            both = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._ends: tuple[int, ...] = (both, both)
        except OSError:  # a disk without named pipes: then only this process can ring
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)

    def wait(self, seconds: float) -> bool:
        """True as soon as it rings, or has rung since the last time; False after `seconds`."""
        poll = select.poll()
        poll.register(self._ends[0], select.POLLIN)
        if not poll.poll(max(seconds, 0.0) * 1000):
            return False
        os.read(self._ends[0], _MOST)
        return True

    def ring(self) -> None:
        """End the wait that goes on, or the next one. From any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it may be full of rings already
            if self._ends:
                os.write(self._ends[1], _SOUND)

    def close(self) -> None:
        """Hear no more; nobody may be waiting."""
        with self._lock:
            with contextlib.suppress(OSError):
                self.path.unlink()
            for end in set(self._ends):
                os.close(end)
            self._ends = ()


def ring(path: str) -> None:
    """Ring the bell at that path, if somebody hears it."""
    with contextlib.suppress(OSError):
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, _SOUND)
        finally:
            os.close(pipe)
