"""A folder of this machine, or of the network, as a datastore. Nothing outside it can be reached.

Links inside it are followed as far as they stay inside: a link to a file is that file, a link to a
folder may be a part of a path, but walking does not go through it (it could go round for ever).
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from runyard.data.base import StoredFile
from runyard.domain.errors import Denied, Invalid, NotFound, Unavailable

CHUNK_BYTES = 1024 * 1024
_DRAFT = ".runyard-"  # files that are being written; nobody sees them


class FolderFiles:
    """The files below a folder. What is below `hidden` is as if it were not there."""

    def __init__(self, root: Path, *, hidden: Path | None = None) -> None:
        self._given = root
        self._root = os.path.realpath(root)
        self._hidden = os.path.realpath(hidden) if hidden is not None else None

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        """All files below a folder."""
        self._check_root()
        top = self._locate(folder)
        if top is None:
            return
        # A stack of our own: os.walk takes twice as long with a stat of every file.
        left = [(top, f"{folder}/" if folder else "")]
        while left:
            at, prefix = left.pop()
            try:
                entries = os.scandir(at)
            except NotADirectoryError:
                continue
            except FileNotFoundError:
                continue  # it vanished while we were looking elsewhere
            except OSError as error:
                raise self._failed(prefix or ".", error) from None
            with entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path != self._hidden:
                            left.append((entry.path, f"{prefix}{name}/"))
                        continue
                    path = prefix + name
                    if name.startswith(_DRAFT) or not (path.isascii() or _is_text(path)):
                        continue  # half written, or no answer could name it
                    status = self._status(entry, path)
                    if status is not None:
                        yield StoredFile(path, status.st_size, _stamp(status))

    def _status(self, entry: "os.DirEntry[str]", path: str) -> os.stat_result | None:
        """Of a file, or of the file in here that a link means; None for all else."""
        try:
            if entry.is_file(follow_symlinks=False):
                return entry.stat(follow_symlinks=False)
            real = self._locate(path) if entry.is_symlink() else None
            status = os.stat(real) if real is not None else None
        except OSError:
            return None  # it vanished
        return status if status is not None and stat.S_ISREG(status.st_mode) else None

    def find(self, path: str) -> StoredFile:
        """One file, or `NotFound`."""
        descriptor = self._open(path)
        try:
            status = os.fstat(descriptor)
            return StoredFile(path, status.st_size, _stamp(status))
        finally:
            os.close(descriptor)

    def open(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks."""
        return _read(self._open(path), start, end)

    def write(self, path: str, digest: str, chunks: Iterable[bytes]) -> None:
        """Write beside, sync, rename."""
        self._check_root()
        folder, _, name = path.rpartition("/")
        target = self._make_folder(folder)
        draft = os.path.join(target, f"{_DRAFT}{uuid.uuid4().hex}")
        try:
            with open(draft, "xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, os.path.join(target, name))
        except OSError as error:
            raise self._failed(path, error) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft)

    def _make_folder(self, folder: str) -> str:
        """The folder, made if need be, one part after the other: a link must not lead outside."""
        at = ""
        for part in folder.split("/") if folder else []:
            at = f"{at}/{part}" if at else part
            if self._locate(at) is None:
                try:
                    os.mkdir(os.path.join(self._locate(at.rpartition("/")[0]) or "", part))
                except FileExistsError:
                    if self._locate(at) is None:
                        raise self._outside(folder) from None
                except OSError as error:
                    raise self._failed(folder, error) from None
        found = self._locate(folder)
        if found is None or not os.path.isdir(found):
            raise Invalid(f"{folder!r} is not a folder of {self._given}.", why="A file is there.")
        return found

    def _open(self, path: str) -> int:
        self._check_root()
        real = self._locate(path)
        if real is None:
            raise self._not_found(path)
        try:
            # Not waiting: opening a pipe would, for ever.
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_found(path) from None
        except OSError as error:
            raise self._failed(path, error) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise self._not_found(path)
            # A folder on the way may have become a link between the two looks.
            if os.path.exists("/proc/self/fd") and not self._holds(
                os.path.realpath(f"/proc/self/fd/{descriptor}")
            ):
                raise self._not_found(path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _locate(self, path: str) -> str | None:
        """The real place of a path; None if it is not there or not in this folder."""
        real = os.path.realpath(os.path.join(self._root, path)) if path else self._root
        return real if self._holds(real) and os.path.lexists(real) else None

    def _holds(self, real: str) -> bool:
        if self._hidden is not None and _is_below(real, self._hidden):
            return False
        return _is_below(real, self._root)

    def _check_root(self) -> None:
        if not os.path.isdir(self._root):
            raise Unavailable(
                f"The folder {self._given} of the datastore is not there.",
                fix="Make it, mount it, or register the datastore with another folder.",
            )

    def _not_found(self, path: str) -> NotFound:
        return NotFound(f"There is no file {path!r} in {self._given}.")

    def _outside(self, path: str) -> Invalid:
        return Invalid(f"{path!r} is not in {self._given}.", why="A link leads out of it.")

    def _failed(self, path: str, error: OSError) -> Denied | Unavailable:
        kind = Denied if isinstance(error, PermissionError) else Unavailable
        return kind(
            f"{path!r} in {self._given} cannot be used.",
            why=f"{error.strerror}.",
            fix="See to the rights and the free space of that folder.",
        )


def _stamp(status: os.stat_result) -> str:
    """Changes when the content does: a file that is replaced is another one."""
    return f"{status.st_mtime_ns}-{status.st_ino}"


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _read(descriptor: int, start: int, end: int | None) -> Iterator[bytes]:
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        file.seek(start)
        left = end - start if end is not None else None
        while left is None or left > 0:
            chunk = file.read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
            if not chunk:
                return
            if left is not None:
                left -= len(chunk)
            yield chunk
