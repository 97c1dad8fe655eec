"""Lays the snapshot out into the working directory."""

import errno
import fcntl
import hashlib
import os

from runyard_runtime import job_folder, wire

_PIECE = 1 << 20
_DONE = "layout.json"


class LayoutFailed(Exception):
    """The snapshot cannot be laid out; the text says why, for people."""


class InputFailed(Exception):
    """An input cannot be prepared; the text says why, for people."""


def lay_out(folder, node, snapshot, blobs, fetch):
    """Make `work/` with the snapshot's files. Returns the node that did it, perhaps earlier.

    Nodes that share the folder do it once. `fetch(digest, stream)` gets what the local folder of
    blobs does not have. Done again after a crash in the middle: nothing runs before it is over.
    """
    done = os.path.join(folder, _DONE)
    with open(os.path.join(folder, "layout.lock"), "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        known = job_folder.read_json(done)
        if known is not None:
            return known["node"]
        work = os.path.join(folder, wire.WORK_DIR)
        for name in (work, os.path.join(work, "outputs"), os.path.join(work, "logs")):
            os.makedirs(name, exist_ok=True)
        for path, digest, _, mode in snapshot:
            put(os.path.join(work, safe(path)), path, digest, mode, blobs, fetch)
        job_folder.write_atomically(done, b'{"node": %d}' % node)
        return node


def safe(path):
    """`path` if it stays below the folder it is joined to; else LayoutFailed."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts):
        raise LayoutFailed("The snapshot holds the path %r, which leads out of its folder." % path)
    return path


def put(target, path, digest, mode, blobs, fetch):
    """Make one file of the work folder, from the local folder of blobs or by `fetch`."""
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not (blobs and _copy(os.path.join(blobs, digest[:2], digest[2:]), target, digest)):
            with _fresh(target) as stream:
                fetch(digest, stream)
            if _digest(target) != digest:
                raise LayoutFailed("The content of %r arrived damaged." % path)
        os.chmod(target, (mode & 0o777) | 0o600)
    except OSError as error:
        raise LayoutFailed("%r cannot be laid out: %s." % (path, error.strerror or error))


def _copy(blob, target, digest):
    """Copy a blob that is on this machine; False if it is not there, or not what it should be."""
    found = hashlib.sha256()
    try:
        source = open(blob, "rb")
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    with source, _fresh(target) as stream:
        for piece in iter(lambda: source.read(_PIECE), b""):
            found.update(piece)
            stream.write(piece)
    return found.hexdigest() == digest


def _digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        for piece in iter(lambda: stream.read(_PIECE), b""):
            found.update(piece)
    return found.hexdigest()


def _fresh(target):
    # A half-made file of an earlier try may be there, perhaps read-only.
    try:
        os.unlink(target)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    return open(target, "xb")
