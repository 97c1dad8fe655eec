"""Walking a source folder: what is in it, without reading contents."""

import os
import stat
from pathlib import Path

import msgspec

from runyard.sdk.exceptions import SnapshotException, error_text
from runyard.sdk.ignore_rules import (
    ALWAYS,
    Ignores,
    choose_ignore_file,
    nothing_ignored,
    parse_ignore_file,
)

LARGEST_NAMED = 5


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to take along."""

    path: str  # relative to the root, POSIX
    file: str  # where its content is
    size: int
    mtime_ns: int
    inode: int
    mode: int


class SourceTree(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk found, and what it left out for a reason that the user should know."""

    root: str
    files: tuple[SourceFile, ...]
    notes: tuple[str, ...] = ()


def walk_source(folder: Path, *, leave_out: Path | None = None) -> SourceTree:
    """All files below a folder that its ignore file lets through.

    A link to something inside the folder is taken as a copy of it; a link that leaves the folder
    is never followed. `leave_out` is a folder that is skipped wherever it is.
    """
    root = os.path.realpath(folder)
    ignores, prune = _rules(root)
    skipped = os.path.realpath(leave_out) if leave_out is not None else None
    walk = _Walk(root, ignores, prune, skipped)
    walk.enter(root, "", (root,))
    return SourceTree(root=root, files=tuple(walk.files), notes=tuple(walk.notes))


def _rules(root: str) -> tuple[Ignores, bool]:
    chosen = choose_ignore_file(os.listdir(root))
    if chosen is None:
        return nothing_ignored, True
    try:
        text = Path(root, chosen).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotException(
            error_text(f"'{chosen}' in {root} cannot be read.", why=f"{error}.")
        ) from None
    try:
        return parse_ignore_file(text)
    except ValueError as error:
        raise SnapshotException(
            error_text(f"'{chosen}' in {root} has a line that makes no sense.", why=f"{error}.")
        ) from None


class _Walk:
    """One walk in progress."""

    def __init__(self, root: str, ignores: Ignores, prune: bool, skipped: str | None) -> None:
        self._root = root
        self._ignores = ignores
        self._prune = prune
        self._skipped = skipped
        self.files: list[SourceFile] = []
        self.notes: list[str] = []

    def enter(self, folder: str, prefix: str, above: tuple[str, ...]) -> None:
        """Take what is in `folder`, which the snapshot calls `prefix`."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise unreadable(prefix or folder, error) from None
        for entry in entries:
            if entry.name in ALWAYS:
                continue
            self._take(entry, _checked_name(prefix + entry.name), above)

    def _take(self, entry: "os.DirEntry[str]", path: str, above: tuple[str, ...]) -> None:
        real = entry.path
        if entry.is_symlink():
            if self._ignores(path):
                return
            real = os.path.realpath(entry.path)
            if not os.path.exists(real):
                self.notes.append(f"'{path}' is a link to nothing and was left out.")
                return
            if os.path.commonpath([real, self._root]) != self._root:
                self.notes.append(f"'{path}' is a link out of the folder and was left out.")
                return
        if os.path.isdir(real):
            self._take_folder(real, path, above)
        elif not self._ignores(path):
            self._take_file(real, path)

    def _take_folder(self, real: str, path: str, above: tuple[str, ...]) -> None:
        if real == self._skipped or (self._prune and self._ignores(path + "/")):
            return
        if real in above:
            self.notes.append(f"'{path}' is a link to a folder that holds it and was left out.")
            return
        self.enter(real, path + "/", (*above, real))

    def _take_file(self, real: str, path: str) -> None:
        try:
            info = os.stat(real)
        except OSError as error:
            raise unreadable(path, error) from None
        if not stat.S_ISREG(info.st_mode):
            self.notes.append(f"'{path}' is not an ordinary file and was left out.")
            return
        self.files.append(_source_file(real, path, info))


def lone_file(place: Path, path: str) -> SourceFile:
    """One file to take along as `path`; an error if it cannot be."""
    real = os.path.realpath(place)
    try:
        info = os.stat(real)
    except OSError as error:
        raise unreadable(str(place), error) from None
    if not stat.S_ISREG(info.st_mode):
        raise SnapshotException(error_text(f"'{place}' is not an ordinary file."))
    return _source_file(real, path, info)


def _source_file(real: str, path: str, info: os.stat_result) -> SourceFile:
    return SourceFile(
        path=path,
        file=real,
        size=info.st_size,
        mtime_ns=info.st_mtime_ns,
        inode=info.st_ino,
        mode=0o755 if info.st_mode & 0o111 else 0o644,
    )


def check_limits(tree: SourceTree, max_bytes: int, max_files: int | None) -> None:
    """`SnapshotException` if the folder is too large, naming what makes it so. Pure."""
    total = sum(file.size for file in tree.files)
    count = len(tree.files)
    over_count = max_files is not None and count > max_files
    if total <= max_bytes and not over_count:
        return
    largest = sorted(tree.files, key=lambda file: file.size, reverse=True)[:LARGEST_NAMED]
    named = ", ".join(f"{file.path} ({megabytes(file.size)})" for file in largest)
    limits = f"{megabytes(max_bytes)}" + (f" and {max_files} files" if max_files else "")
    raise SnapshotException(
        error_text(
            f"The source folder {tree.root} is too large to be taken along: "
            f"{megabytes(total)} in {count} files.",
            why=f"The limit is {limits}. The largest files: {named}.",
            fix="Name what the script does not need in a file .amlignore in that folder (one "
            "pattern a line, as in .gitignore), or keep the data elsewhere and pass its path as "
            "an argument."
            + (" AML_SNAPSHOT_NO_FILE_LIMIT=1 lifts the limit on the count." if over_count else ""),
        )
    )


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1_048_576:.1f} MB"


def _checked_name(path: str) -> str:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise SnapshotException(
            error_text(
                f"The file name {path!r} cannot be taken along.",
                why="It is not valid UTF-8.",
                fix="Rename the file, or name it in .amlignore.",
            )
        ) from None
    return path


def unreadable(path: str, error: OSError) -> SnapshotException:
    """The error for a file that is there and cannot be opened."""
    return SnapshotException(
        error_text(
            f"'{path}' in the source folder cannot be read.",
            why=f"{error.strerror or error}.",
            fix="Change its permissions, or name it in .amlignore.",
        )
    )
