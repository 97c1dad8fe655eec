"""Processes that fetch small files ahead of their reader.

They are not threads, because the one that answers the kernel must not wait for Python's lock. They
are told numbers of files by a pipe and say by another which are here. When the mount ends, however
it does, their pipe ends too, and so do they.
"""

import os
import struct
import threading
from collections.abc import Callable, Iterable

PROCESSES = 2
THREADS = 4  # in each: what they mostly do is wait for the network
_NUMBER = struct.Struct("<I")
_BATCH = 1024 * _NUMBER.size


class Ahead:
    """Does `fetch(number)` elsewhere, and `done(number)` here for those that it was true for."""

    def __init__(self, fetch: Callable[[int], bool], done: Callable[[int], None]) -> None:
        self._fetch = fetch
        self._done = done
        self._requests, self._told = os.pipe()
        self._answers, self._say = os.pipe()

    def start(self) -> None:
        """Start them. Only while this process has a single thread: it forks."""
        for _ in range(PROCESSES):
            if os.fork() == 0:
                self._serve()
        os.close(self._requests)
        os.close(self._say)
        os.set_blocking(self._told, False)

    def listen(self) -> None:
        """Start to hear of what is done."""
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, numbers: Iterable[int]) -> None:
        """Have files fetched; not all, if very many wait already: nothing depends on it."""
        data = b"".join(map(_NUMBER.pack, numbers))
        for start in range(0, len(data), _BATCH):  # a write this small is whole or not at all
            try:
                os.write(self._told, data[start : start + _BATCH])
            except OSError:
                return

    def _listen(self) -> None:
        rest = b""
        while data := os.read(self._answers, 1 << 16):
            data = rest + data
            whole = len(data) - len(data) % _NUMBER.size
            rest = data[whole:]
            for (number,) in _NUMBER.iter_unpack(data[:whole]):
                self._done(number)

    def _serve(self) -> None:
        """What such a process does. Never returns."""
        try:
            os.close(self._told)
            os.close(self._answers)
            threads = [threading.Thread(target=self._work) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            os._exit(0)

    def _work(self) -> None:
        while data := os.read(self._requests, _NUMBER.size):
            (number,) = _NUMBER.unpack(data)
            if self._fetch(number):
                os.write(self._say, data)
