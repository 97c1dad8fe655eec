"""Digests of files that have not changed, so that an unchanged folder is not read again.

A file is known by path, size, time of change and inode. One that changed less than two seconds
ago is not trusted: it may change again within the clock's resolution.
"""

import hashlib
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from runyard.sdk.source_tree import SourceFile, SourceTree, unreadable

CHUNK_BYTES = 1 << 20
UNSETTLED_NS = 2_000_000_000


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What identifies a file's state, and the digest it had then."""

    size: int
    mtime_ns: int
    inode: int
    digest: str


_memory: dict[str, dict[str, Known]] = {}
_lock = threading.Lock()


def digests(tree: SourceTree, cache: Path, *, now_ns: int | None = None) -> dict[str, str]:
    """The digest of every file of the tree, by path. Only changed files are read."""
    moment = time.time_ns() if now_ns is None else now_ns
    store = cache / f"{hashlib.sha256(os.fsencode(tree.root)).hexdigest()[:32]}.json"
    with _lock:
        before = _memory.get(str(store))
    if before is None:
        before = _load(store)
    known: dict[str, Known] = {}
    found: dict[str, str] = {}
    for file in tree.files:
        entry = before.get(file.path)
        if entry is None or not _same(entry, file):
            entry = Known(file.size, file.mtime_ns, file.inode, digest_of(file))
        found[file.path] = entry.digest
        if moment - file.mtime_ns > UNSETTLED_NS:
            known[file.path] = entry
    with _lock:
        _memory[str(store)] = known
    if known != before:
        _save(store, known)
    return found


def _same(entry: Known, file: SourceFile) -> bool:
    return (entry.size, entry.mtime_ns, entry.inode) == (file.size, file.mtime_ns, file.inode)


def digest_of(file: SourceFile) -> str:
    """The digest of a file's content, read in pieces."""
    total = hashlib.sha256()
    try:
        with open(file.file, "rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                total.update(chunk)
    except OSError as error:
        raise unreadable(file.path, error) from None
    return total.hexdigest()


def _load(store: Path) -> dict[str, Known]:
    try:
        return msgspec.json.decode(store.read_bytes(), type=dict[str, Known])
    except (OSError, msgspec.DecodeError, ValueError):
        return {}  # a cache: absent or damaged means that everything is read


def _save(store: Path, known: dict[str, Known]) -> None:
    draft = store.with_name(f"{store.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(known))
        os.replace(draft, store)  # of two writers the later wins; both are right
    except OSError:
        # A cache: a full or read-only disk costs time, not the run.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
