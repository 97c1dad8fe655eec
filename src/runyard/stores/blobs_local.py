"""Contents as files in a folder: `ab/cdef…`, named by their sha256."""

import contextlib
import errno
import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from runyard.domain.errors import Invalid, NotFound, Unavailable
from runyard.domain.files import is_digest
from runyard_runtime.job_folder import sync_folder

CHUNK_BYTES = 1024 * 1024
# Unfinished files this old belong to nobody any more; an upload does not take a day.
STALE_SECONDS = 24 * 3600.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


class LocalBlobs:
    """Blobs in a local folder. A file is complete and on disk before it has its name."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder.absolute()
        self._unfinished = self._folder / "tmp"
        self._unfinished.mkdir(parents=True, exist_ok=True)
        self._sweep(now() - STALE_SECONDS)

    def put(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Keep the content; `Invalid` if it does not have that digest."""
        check_digest(digest)
        path = self._path(digest)
        if path.exists():
            check_content(digest, _hash(chunks))
        else:
            self._write(digest, chunks, path)
        sync_folder(str(path.parent))

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks."""
        size = self.size(digest)
        return _read(self._path(digest), start, size if end is None else min(end, size))

    def size(self, digest: str) -> int:
        """Its length in bytes, or `NotFound`."""
        if is_digest(digest):
            with contextlib.suppress(FileNotFoundError):
                return self._path(digest).stat().st_size
        raise blob_not_found(digest)

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are not here."""
        wanted = dict.fromkeys(check_digest(digest) for digest in digests)
        return [digest for digest in wanted if not self._path(digest).exists()]

    def folder(self) -> str | None:
        """The folder itself."""
        return str(self._folder)

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest[2:]

    def _write(self, digest: str, chunks: Iterable[bytes], path: Path) -> None:
        unfinished = self._unfinished / uuid.uuid4().hex
        try:
            with open(unfinished, "xb") as file:
                check_content(digest, _hash(chunks, file.write))
                file.flush()
                os.fsync(file.fileno())
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                sync_folder(str(self._folder))
            os.replace(unfinished, path)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise Unavailable(
                f"The content {digest[:12]}… could not be kept.",
                why=f"The disk that holds {self._folder} is full.",
                fix="Free some space, or set RUNYARD_BLOBS to a folder on a larger disk.",
            ) from error
        finally:
            unfinished.unlink(missing_ok=True)

    def _sweep(self, before: float) -> None:
        for path in self._unfinished.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process sweeps too
                if path.stat().st_mtime < before:
                    path.unlink()


def check_digest(digest: str) -> str:
    """The digest, or `Invalid`: no other text may become a file's name."""
    if not is_digest(digest):
        raise Invalid(
            f"{digest[:80]!r} is not a digest.", why="It needs 64 lower-case hexadecimal digits."
        )
    return digest


def check_content(digest: str, found: str) -> None:
    """`Invalid` if the content has another digest than the one it was sent under."""
    if found != digest:
        raise Invalid(
            f"The content sent as {digest} is not that content.",
            why=f"Its sha256 is {found}.",
            fix="Send it again; the file may have changed while it was read.",
        )


def blob_not_found(digest: str) -> NotFound:
    """The error for a content that is not there."""
    return NotFound(f"There is no content {digest[:80]!r}.")


def _hash(chunks: Iterable[bytes], write: Callable[[bytes], object] | None = None) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        if write is not None:
            write(chunk)
    return digest.hexdigest()


def _read(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        left = end - start
        while left > 0 and (chunk := file.read(min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk
