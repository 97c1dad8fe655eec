"""The file a rank appends its events to, and the lines that go into it.

Logging must never wait for the platform and never fail because of it: an event is one `os.write`
on a descriptor opened for appending, so lines of several processes and threads stay whole and a
forked process can go on with the descriptor it has. There is no lock that a fork could leave held.
"""

import errno
import json
import os
import sys
import time
from json.encoder import encode_basestring_ascii

from runyard_runtime import wire

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

ACKED = ".acked"  # beside an event file: how far the agent has shipped it, as a decimal number

# The descriptor gets a number this high, so that a script that closes all files and opens its own
# (a daemon does) does not find its own file under our number.
_HIGH_DESCRIPTOR = 900

_now = time.time


class EventFile(object):
    """An event file that is opened when the first line is written."""

    def __init__(self, path):
        self.path = path
        self._fd = None
        self._torn = False  # the last write stopped in the middle of a line
        self._warned = set()

    def __reduce__(self):
        return (event_file, (self.path,))  # a descriptor means nothing in another process

    def append(self, line):
        """Write one line (bytes, newline included). A failure is told once, never raised."""
        if len(line) > wire.CHUNK_LIMIT_BYTES:
            self._warn("it is %d bytes long, %r…" % (len(line), line[:80]), "too long")
            return
        try:
            if self._fd is None:
                self._fd = _open(self.path)
            if self._torn:
                line = b"\n" + line
            try:
                written = os.write(self._fd, line)
            except OSError as problem:
                if problem.errno != errno.EBADF:  # the script closed all descriptors
                    raise
                self._fd = _open(self.path)
                written = os.write(self._fd, line)
            self._torn = False
            if written != len(line):
                self._torn = True
                os.write(self._fd, line[written:])  # a full disk says here what is wrong
                self._torn = False
        except OSError as problem:
            self._warn(problem)

    def flush(self, timeout, now=time.monotonic, sleep=time.sleep):
        """Wait until the agent has shipped all that is in the file now; False if it has not."""
        try:
            end = os.stat(self.path).st_size
        except OSError:
            return True  # nothing was ever logged
        deadline = now() + timeout
        delay = 0.002
        while self._acked() < end:
            if self._torn or now() + delay > deadline:
                return False
            sleep(delay)
            delay = min(delay * 1.5, 0.25)
        return True

    def _acked(self):
        try:
            with open(self.path + ACKED) as stream:
                return int(stream.read() or 0)
        except (OSError, ValueError):  # not there yet, or just being written
            return 0

    def _warn(self, problem, kind="not written"):
        if kind in self._warned:
            return
        self._warned.add(kind)
        text = "runyard: an event could not be written to %s (%s); training goes on without it.\n"
        try:
            sys.stderr.write(text % (self.path, problem))
        except (OSError, ValueError, AttributeError):  # stderr is closed, or on the full disk too
            pass


_FILES = {}


def event_file(path):
    """The event file at `path`; the same one however often a script asks for its run."""
    if path not in _FILES:
        _FILES[path] = EventFile(path)
    return _FILES[path]


def _open(path):
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        fd = os.open(path, flags, 0o644)
    except OSError as problem:
        if problem.errno != errno.ENOENT:
            raise
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, flags, 0o644)
    if fcntl is None:
        return fd
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
    except OSError:  # the limit on open files is lower
        return fd
    os.close(fd)
    return high


def line_end(run_id=None):
    """How the lines of a run end; None: the run of the job."""
    return "}\n" if run_id is None else ',"r":%s}\n' % encode_basestring_ascii(run_id)


def scalar_line(name, value, end):
    """The line of a plain number under a plain name; None if it needs `event_line`.

    Training loops call this at every step, so it does without `json.dumps`.
    """
    if isinstance(value, float):  # numpy's float64 is one
        text = float.__repr__(value)
        if text[-1] > "9":  # nan, inf
            return None
    elif type(value) is int and -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        text = value
    else:
        return None
    if not isinstance(name, str):
        return None
    quoted = encode_basestring_ascii(name)
    if "\\ud" in quoted:
        return None
    return ('{"e":"metric","t":%r,"n":%s,"v":%s%s' % (_now(), quoted, text, end)).encode("ascii")


def metric_line(kind, name, value, step, run_id):
    """The line of any other logged value, which must be fit for JSON already."""
    event = {"e": "metric", "t": _now(), "n": name, "v": value}
    if kind != "scalar":
        event["k"] = kind
    if step is not None:
        event["s"] = step
    return event_line(event, run_id)


def tag_line(kind, key, value, run_id):
    """The line of a tag that is set ("tag") or removed ("untag")."""
    event = {"e": kind, "t": _now(), "n": key}
    if kind == "tag":
        event["v"] = value
    return event_line(event, run_id)


def event_line(event, run_id=None):
    """An event as a line."""
    if run_id is not None:
        event["r"] = run_id
    text = wire.encode_event(event)
    if "\\ud" in text:
        # Half a surrogate pair (out of a file name, say) is no text that a reader could decode.
        whole = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
        text = wire.encode_event(json.loads(whole))
    return text.encode("ascii")
