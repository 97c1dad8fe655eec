"""The source folder of a run, taken along as a tree of contents."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from runyard.domain.files import FileEntry, Manifest, encode_manifest, manifest_digest
from runyard.sdk import snapshot_limits
from runyard.sdk.blob_upload import Content
from runyard.sdk.hash_cache import digests
from runyard.sdk.secret_scan import LARGEST_BYTES, find_secrets
from runyard.sdk.source_tree import (
    SourceFile,
    SourceTree,
    check_limits,
    lone_file,
    walk_source,
)
from runyard.settings import load_settings

CACHE_FOLDER = "cache/snapshots"  # below the home folder


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A source tree: its id, its files, and where their contents are."""

    id: str
    manifest: Manifest
    files: dict[str, SourceFile]  # by digest
    notes: tuple[str, ...] = ()

    def contents(self) -> dict[str, Content]:
        """What may have to be uploaded, by digest."""
        return {digest: _content(file) for digest, file in self.files.items()}

    def tree_content(self) -> Content:
        """The tree itself, as it is kept."""
        data = encode_manifest(self.manifest)
        return Content(name="the list of files", size=len(data), open=lambda: _bytes(data))

    def warn_of_secrets(self, wanted: Iterable[str]) -> None:
        """Warn of likely secrets among the contents that are about to be uploaded."""
        for digest in wanted:
            file = self.files.get(digest)
            if file is not None and digest not in _scanned:
                _scanned.add(digest)
                _warn_of_secrets(file)


_scanned: set[str] = set()  # contents that were looked into: one warning for each is enough


def take_snapshot(folder: Path, home: Path) -> Snapshot:
    """The tree below `folder`, within the limits. `home` is never part of it."""
    return _take(walk_source(folder, leave_out=home), home)


def take_file_snapshot(named: Mapping[str, Path], home: Path) -> Snapshot:
    """A tree of files and folders that lie anywhere, by the names they get in it."""
    files: dict[str, SourceFile] = {}
    notes: tuple[str, ...] = ()
    for name, place in named.items():
        if not place.is_dir():
            files[name] = lone_file(place, name)
            continue
        tree = walk_source(place, leave_out=home)
        notes += tree.notes
        for file in tree.files:
            path = f"{name}/{file.path}"
            files[path] = msgspec.structs.replace(file, path=path)
    root = "\n".join(str(place) for place in named.values())
    whole = SourceTree(root=root, files=tuple(files[path] for path in sorted(files)), notes=notes)
    return _take(whole, home)


def _take(tree: SourceTree, home: Path) -> Snapshot:
    any_count = load_settings().snapshot_any_count
    check_limits(
        tree,
        snapshot_limits.SNAPSHOT_MAX_SIZE_BYTES,
        None if any_count else snapshot_limits.SNAPSHOT_MAX_FILES,
    )
    found = digests(tree, home / CACHE_FOLDER)
    manifest = tuple(
        FileEntry(file.path, found[file.path], file.size, file.mode) for file in tree.files
    )
    for note in tree.notes:
        warnings.warn(note, stacklevel=3)
    return Snapshot(
        id=manifest_digest(manifest),
        manifest=manifest,
        files={found[file.path]: file for file in tree.files},
        notes=tree.notes,
    )


def _content(file: SourceFile) -> Content:
    return Content(name=file.path, size=file.size, open=lambda: open(file.file, "rb"))


def _bytes(data: bytes) -> BinaryIO:
    from io import BytesIO

    return BytesIO(data)


def _warn_of_secrets(file: SourceFile) -> None:
    try:
        with open(file.file, "rb") as source:
            content = source.read(LARGEST_BYTES + 1)
    except OSError:
        return  # the upload will say so
    found = find_secrets(file.path, content if len(content) <= LARGEST_BYTES else b"")
    if found:
        warnings.warn(
            f"'{file.path}' is being uploaded with the source folder and may hold a secret: "
            f"{'; '.join(found)}. Name it in .amlignore if it should stay here.",
            stacklevel=2,
        )
