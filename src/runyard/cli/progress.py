"""How far a transfer is: a bar for people, nothing for programs."""

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import BinaryIO

from runyard.cli import console
from runyard.cli.render import render_span, size_text

_BETWEEN_SECONDS = 0.1
_BAR = 24


class Progress:
    """Counts bytes and shows them on a terminal. Threads may share it."""

    def __init__(
        self, verb: str, total: int, *, shown: bool, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._verb = verb
        self._total = total
        self._shown = shown and sys.stderr.isatty()
        self._now = now
        self._began = now()
        self._painted = 0.0
        self._lock = threading.Lock()
        self.done = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            console.overwrite(self._line(), last=True)

    def advance(self, count: int) -> None:
        """So many bytes more."""
        with self._lock:
            self.done += count
            if self._shown and self._now() - self._painted >= _BETWEEN_SECONDS:
                self._painted = self._now()
                console.overwrite(self._line())

    def _line(self) -> str:
        return render_progress(self._verb, self.done, self._total, self._now() - self._began)


def render_progress(verb: str, done: int, total: int, seconds: float) -> str:
    """`Uploading ████████░░░░  50%  1.0 of 2.0 GB  120 MB/s  8.0s left`. Pure."""
    rate = done / seconds if seconds > 0 else 0.0
    speed = f"{size_text(int(rate))}/s"
    if total <= 0:  # how much it will be is not known
        return f"{verb} {size_text(done)}  {speed}"
    share = min(1.0, done / total)
    full = round(share * _BAR)
    bar = "█" * full + "░" * (_BAR - full)
    left = ""
    if done < total and rate > 0:
        left = f"  {render_span(timedelta(seconds=(total - done) / rate))} left"
    return f"{verb} {bar} {share:4.0%}  {size_text(done)} of {size_text(total)}  {speed}{left}"


class CountedFile:
    """A file that says how much of it was read or written. As much of a file as is needed here."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress

    def read(self, size: int = -1) -> bytes:
        """Some bytes."""
        data = self._file.read(size)
        self._progress.advance(len(data))
        return data

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._progress.advance(len(data))
        return self._file.write(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go elsewhere: what was read is read again, and counts once."""
        self._progress.advance(-self._file.tell())
        return self._file.seek(offset, whence)

    def seekable(self) -> bool:
        """True: a cut transfer can begin again."""
        return True

    def tell(self) -> int:
        """Where it stands."""
        return self._file.tell()

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> "CountedFile":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()
