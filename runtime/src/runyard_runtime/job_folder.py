"""Files of a job folder that must be whole whenever somebody looks, also after a crash."""

import errno
import json
import os

NODE_FULL = "NodeFull"  # the code of a run's error
MAKE_ROOM = "the disk of the node is full. Make room there, or give the nodes another folder."
_RESERVED_BYTES = 512  # more than any note that is settled; see Reserved


def write_atomically(path, data, mode=0o600, durable=False):
    """Write bytes so that a reader sees the old file or the new one, never a part.

    `durable`: that holds after a power cut, too.
    """
    temporary = "%s.%d.new" % (path, os.getpid())
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        _write_all(handle, data)
        if durable:
            os.fsync(handle)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(handle)
    os.rename(temporary, path)
    if durable:
        sync_folder(os.path.dirname(path) or ".")


def sync_folder(path):
    """Have the names in a folder survive a power cut, not only the files."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path):
    """The JSON in a file, or None if it is not there or not whole."""
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read().decode("utf-8"))
    except (OSError, ValueError):
        return None


def claim(path, note):
    """Make the file with that JSON unless it exists; True if it is ours now."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        if error.errno == errno.EEXIST:
            return False
        raise
    try:
        _write_all(handle, json.dumps(note).encode("utf-8"))
    finally:
        os.close(handle)
    return True


class Reserved:
    """A JSON note whose space is set aside now, so that a full disk cannot prevent it later."""

    def __init__(self, path):
        self._path = path
        self._temporary = "%s.%d.reserved" % (path, os.getpid())
        try:
            self._write(b"")
        except OSError:
            pass  # the disk is full already; it may not be when the time comes

    def settle(self, note):
        """Let the note appear; OSError if there is no way."""
        self._write(json.dumps(note).encode("utf-8"))
        os.rename(self._temporary, self._path)

    def _write(self, data):
        # Overwritten in place, with blanks that JSON ignores, so that no new block is needed.
        handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            _write_all(handle, data.ljust(_RESERVED_BYTES))
        finally:
            os.close(handle)


def _write_all(handle, data):
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def is_disk_full(error):
    """True if a full disk is behind an error."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__context__
    return False


def tail(path, size):
    """The end of a file, at most so many bytes; nothing if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(stream.tell() - size, 0))
            return stream.read()
    except OSError:
        return b""
