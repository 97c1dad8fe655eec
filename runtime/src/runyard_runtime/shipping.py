"""Ships what a job writes: logs and events, from where the server's copy ends.

A log below work/logs that shrinks or is replaced (rotation) goes on as a new stream with "~2",
"~3" … after its name, so nothing that was shipped is overwritten.
"""

import hashlib
import json
import os
import stat
import threading

from runyard_runtime import job_folder, wire
from runyard_runtime.server_link import DENIED, SUPERSEDED, Abandoned, Refused, run_path

LOG_CHUNK = 1 << 20
EVENT_CHUNK = 4 << 20
_PAUSE = 0.1  # between two looks at the files
_DENIED_PAUSE = 1.0
_WALK_EVERY = 10  # looks between two walks of work/logs, which may hold many files
STATE_FILE = "streams.json"


class Stream:
    """One file on its way to the server."""

    def __init__(self, kind, name, path, offset=None, base=0, follow=False):
        self.kind = kind
        self.name = name
        self.path = path
        self.offset = offset  # how much of the file the server has; None: ask
        self.base = base  # where the file's first byte is in the server's stream
        self.follow = follow  # a file of the user's, which may be replaced
        self.generation = 1
        self.inode = None
        self.refused = False
        self.is_inside_line = False  # of one that is too long to be an event

    def server_name(self):
        """What the server calls the stream."""
        return self.name if self.generation == 1 else "%s~%d" % (self.name, self.generation)

    def read(self, final):
        """The next bytes that can go; empty if there are none yet."""
        limit = LOG_CHUNK if self.kind == wire.LOG_STREAM else EVENT_CHUNK
        handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.lseek(handle, self.offset, os.SEEK_SET)
            data = _read(handle, limit)
            if self.kind == wire.LOG_STREAM:
                return data
            while b"\n" not in data and len(data) == limit and limit < wire.CHUNK_LIMIT_BYTES:
                data += _read(handle, limit)
                limit *= 2
            whole = data.rfind(b"\n") + 1
            # The line that a killed process left unfinished is the last of its file.
            last = final and len(data) < limit
            # A line that is too long travels in parts, which the server leaves out.
            too_long = not whole and len(data) >= wire.CHUNK_LIMIT_BYTES
            self.is_inside_line = too_long or (self.is_inside_line and not whole)
            return data if last or too_long else data[:whole]
        finally:
            os.close(handle)


class Shipper(threading.Thread):
    """The thread that ships. `finish` has it ship the rest and end."""

    def __init__(
        self,
        link,
        plan,
        folder,
        agent_folder,
        theirs,
        only=None,
        note=None,
        fresh=True,
        logs="logs",
    ):
        threading.Thread.__init__(self, name="shipper", daemon=True)
        self.link = link
        self.given_up = None  # why nothing is shipped any more, in words
        self._run_id = plan["run_id"]
        self._attempt = plan.get("attempt") or 1
        self._folder = folder
        self._state_path = os.path.join(agent_folder, STATE_FILE)
        self._state = job_folder.read_json(self._state_path) or {}
        self._logs = logs  # what the server calls the folder work/logs of this node
        self._theirs = theirs  # names that agents of other nodes ship
        self._only = only  # names to ship; None: all others
        self._note = note
        self._fresh = fresh and self._attempt == 1
        self._streams = {}
        self._looks = 0
        self._unsaved = False
        self._wake = threading.Event()
        self._finishing = False
        self._first = []
        self._is_denied = False

    def before_all(self, call):
        """Have the thread do this first, as the report that the ranks are running."""
        self._first.append(call)

    def run(self):
        try:
            for call in self._first:
                self._insist(call)
            # A short script is over before the first look, and all goes in one piece.
            self._wake.wait(_PAUSE)
            while not self._finishing:
                if not self._insist(self.ship):
                    self._wake.wait(_PAUSE)
        except (Refused, Abandoned) as error:
            self._give_up(error)

    def _insist(self, call):
        """Call again while the ranks go on: who does not take our token may do so tomorrow.

        It may be a server of another home, or ours with a wrong secret or name; somebody mends it.
        """
        while True:
            try:
                return call()
            except Refused as error:
                if error.status not in (401, 403) or self._finishing:
                    raise
                if not self._is_denied:
                    self._note("warning: logs and metrics are not taken now: %s" % error)
                self._is_denied = True
                self._wake.wait(_DENIED_PAUSE)

    def finish(self):
        """Ship everything there is and end the thread. Waits as long as it takes."""
        self._finishing = True
        self._wake.set()
        if self.is_alive():
            self.join()
        self.ship_rest()

    def ship_rest(self):
        """Ship what was written since, in the caller's thread; only after `finish`."""
        try:
            while self.given_up is None and self.ship(final=True):
                pass
        except (Refused, Abandoned) as error:
            self._give_up(error)

    def ship(self, final=False):
        """One chunk of every stream that has one; True if anything moved."""
        self._discover(final)
        moved = False
        for stream in list(self._streams.values()):
            if not stream.refused:
                moved = self._ship_one(stream, final) or moved
        if self._unsaved:
            self._save()
        return moved

    def _ship_one(self, stream, final):
        try:
            known = os.stat(stream.path)
            if stream.offset is None:
                self._locate(stream, known)
            if stream.follow:
                self._notice_rotation(stream, known)
            was_inside = stream.is_inside_line
            data = stream.read(final) if known.st_size > stream.offset else b""
        except OSError:
            return False  # it vanished, or cannot be read now
        if not data:
            return False
        if stream.is_inside_line and not was_inside:
            text = "warning: a line of %s is not kept: it is longer than %d bytes"
            self._note(text % (stream.name, wire.CHUNK_LIMIT_BYTES))
        path = self._path(stream)
        try:
            offset = stream.base + stream.offset
            answer = self.link.call("POST", "%s?offset=%d" % (path, offset), data)
            stream.offset = _end(answer) - stream.base
        except Refused as error:
            if error.status == 409:
                stream.offset = self._server_end(stream) - stream.base
            elif error.status in DENIED or error.status == SUPERSEDED:
                raise
            else:
                stream.refused = True
                self._note("warning: the rest of %s is not kept: %s" % (stream.name, error))
                return False
        if stream.kind == wire.EVENT_STREAM:
            self._acknowledge(stream)
        return True

    def _locate(self, stream, known):
        """Ask where the server's copy ends, and remember where an attempt's log begins."""
        end = self._server_end(stream)
        kept = self._state.get(stream.name) or {}
        if self._attempt > 1 and stream.kind == wire.LOG_STREAM:
            # The log of an earlier attempt has the same name: this one goes on after it.
            stream.base = kept.get("base", end)
            self._remember(stream, base=stream.base)
        stream.offset = max(end - stream.base, 0)
        if kept.get("restored"):
            self._check_restored(stream, kept.pop("restored"))

    def _check_restored(self, stream, restored):
        """A script may have written its log anew before the first look at it."""
        if not _begins_with(stream.path, restored["size"], restored["digest"]):
            self._rotate(stream, os.stat(stream.path).st_ino)
        else:
            self._save()

    def _notice_rotation(self, stream, known):
        if stream.inode is None:
            stream.inode = known.st_ino
            self._state.setdefault(stream.name, {})["inode"] = known.st_ino
            self._unsaved = True
        elif stream.inode == known.st_ino and known.st_size >= stream.offset:
            return
        if stream.inode != known.st_ino or known.st_size < stream.offset:
            self._rotate(stream, known.st_ino)

    def _rotate(self, stream, inode):
        stream.generation += 1
        stream.inode = inode
        stream.base = 0
        stream.offset = self._server_end(stream)
        self._remember(stream, base=0, inode=inode, generation=stream.generation)

    def _remember(self, stream, **facts):
        self._state.setdefault(stream.name, {}).update(facts)
        self._save()

    def _save(self):
        self._unsaved = False
        _try_to_write(self._state_path, json.dumps(self._state).encode("utf-8"))

    def _server_end(self, stream):
        return _end(self.link.call("GET", self._path(stream)))

    def _path(self, stream):
        return run_path(self._run_id, "streams", stream.kind, stream.server_name())

    def _acknowledge(self, stream):
        """Tell readers of the event file how much of it the server knows."""
        _try_to_write(stream.path + ".acked", b"%d" % stream.offset)

    def _discover(self, final):
        self._list("azureml-logs", wire.LOG_STREAM)
        self._list(wire.EVENTS_DIR, wire.EVENT_STREAM)
        if self._only is None and (final or self._looks % _WALK_EVERY == 0):
            self._walk(os.path.join(self._folder, wire.WORK_DIR, "logs"), "logs")
        self._looks += 1

    def _list(self, below, kind):
        try:
            names = os.listdir(os.path.join(self._folder, below))
        except OSError:
            return
        for name in sorted(names):
            relative = "%s/%s" % (below, name)
            if relative in self._streams or not self._is_mine(relative):
                continue
            if kind == wire.EVENT_STREAM and not name.endswith(".jsonl"):
                continue
            self._add(Stream(kind, self._stream_name(kind, relative, name), relative), relative)

    def _stream_name(self, kind, relative, name):
        if kind == wire.LOG_STREAM:
            return relative
        return name if self._attempt == 1 else "attempt-%d/%s" % (self._attempt, name)

    def _walk(self, top, prefix):
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                path = os.path.join(folder, name)
                relative = os.path.join(prefix, os.path.relpath(path, top))
                if relative in self._streams or not _is_plain(path):
                    continue
                name = os.path.join(self._logs, os.path.relpath(path, top))
                text = os.fsencode(name).decode("utf-8", "replace")
                self._add(Stream(wire.LOG_STREAM, text, path, follow=True), relative)

    def _add(self, stream, key):
        stream.path = os.path.join(self._folder, stream.path)
        kept = self._state.get(stream.name) or {}
        stream.generation = kept.get("generation", 1)
        stream.inode = kept.get("inode")
        if self._fresh and not kept:
            stream.offset = 0  # nobody shipped anything of this job before
        self._streams[key] = stream

    def _is_mine(self, relative):
        return relative in self._only if self._only is not None else relative not in self._theirs

    def _give_up(self, error):
        self.given_up = str(error)
        if isinstance(error, Refused):
            self._note("warning: logs and metrics are no longer kept: %s" % error)


def _read(handle, limit):
    pieces, left = [], limit
    while left:
        piece = os.read(handle, left)
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _end(answer):
    return int(json.loads(answer.decode("utf-8"))["end"])


def _begins_with(path, size, digest):
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        while size:
            piece = stream.read(min(size, LOG_CHUNK))
            if not piece:
                return False
            found.update(piece)
            size -= len(piece)
    return found.hexdigest() == digest


def _is_plain(path):
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _try_to_write(path, data):
    try:
        job_folder.write_atomically(path, data, 0o644)
    except OSError:
        pass  # a full disk; what is not written is found out again by asking the server
