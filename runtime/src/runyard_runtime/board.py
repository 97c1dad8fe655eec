"""Where the agents of one job leave notes for each other.

A note is a JSON object with the `node` that wrote it and its `kind`. Notes are only added, never
changed, so an agent that takes over reads them from the start and knows all its predecessor knew;
the same note twice means the same as once. A board has

    post(note)            add a note; returns when it is there
    try_to_post(note)     the same, but False at once if that is not possible now
    read(since)           (notes after that place, the place after them); the first place is 0
    wait(seconds)         until there may be something new, or somebody wakes us; at most about
                          so long
    listen()              from now on have news at hand: the ranks run, so there may be threads

What kinds there are stands in `gang`. Which board a job has is the plan's key `board`: "folder"
where all nodes see the job's folder, "server" where they share nothing.
"""

import json
import os
import time

from runyard_runtime import job_folder, wire

LOOK_SECONDS = 0.05  # between two looks at the file: nobody tells us that it grew
_FILE = "board.jsonl"
_FULL_DISK_PAUSE = 1.0
_ASK_SECONDS = 1  # that the server is asked to wait for news; a stop is not heard meanwhile
_LISTEN_SECONDS = 20  # the same of a thread that has nothing else to hear
_EARLY_SECONDS = 0.2


class FolderBoard:
    """A board that is a file in the job's folder."""

    def __init__(self, folder, wake):
        self._path = os.path.join(folder, _FILE)
        self._folder = folder
        self._wake = wake

    def post(self, note):
        """Add a note. The others wait for it, so a full disk is waited for."""
        while not self.try_to_post(note) and os.path.isdir(self._folder):
            time.sleep(_FULL_DISK_PAUSE)

    def try_to_post(self, note):
        """Add a note with one write, which the system keeps whole among those of others."""
        # The line before may be torn, if its writer found the disk full: ours begins a new one.
        line = b"\n" + json.dumps(note).encode("ascii") + b"\n"
        try:
            self._append(line)
        except OSError:
            return False
        return True

    def read(self, since):
        """The whole notes after that place, and the place after them."""
        try:
            # Opened anew: a network filesystem then asks for the present size.
            handle = os.open(self._path, os.O_RDONLY)
        except OSError:
            return [], since
        try:
            size = os.fstat(handle).st_size
            data = os.pread(handle, size - since, since) if size > since else b""
        finally:
            os.close(handle)
        whole = data[: data.rfind(b"\n") + 1]
        return [note for note in map(_parse, whole.split(b"\n")) if note], since + len(whole)

    def wait(self, seconds):
        """Until the next look, or until we are woken."""
        self._wake.wait(min(seconds, LOOK_SECONDS))

    def listen(self):
        """Nothing: a look at a file is quick."""

    def _append(self, line):
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(handle, line) != len(line):
                raise OSError("the disk is full")
        finally:
            os.close(handle)


class ServerBoard:
    """A board that the server keeps, for nodes that share no folder.

    Before the ranks run it asks in the thread that wants to know, because who forks must have no
    other threads. From `listen` on, one thread waits at the server for news and another sends what
    need not be waited for; so a server that is away never keeps anybody from looking after ranks.
    """

    def __init__(self, folder, wake):
        import threading

        plan = job_folder.read_json(os.path.join(folder, wire.PLAN_FILE))
        self._plan = plan
        self._folder = folder
        self._wake = wake
        self._path = _board_path(plan)
        self._changed = threading.Condition()
        self._notes = []
        self._has_asked = False
        self._outbox = []
        self._is_listening = False
        self._is_refused = False  # the run is gone, or not ours any more

    def post(self, note):
        """Add a note; waits for a server that is away as long as the job is wanted."""
        link = self._link()
        self._send(link, note)
        link.close()

    def try_to_post(self, note):
        """Have a note sent as soon as that is possible."""
        if not self._is_listening:
            return False
        with self._changed:
            self._outbox.append(note)
            self._changed.notify_all()
        return True

    def read(self, since):
        """The notes after that place, and the place after them."""
        if not self._is_listening and not self._has_asked:
            self._ask(self._link(), 0)
        with self._changed:
            return self._notes[since:], len(self._notes)

    def wait(self, seconds):
        """Until something is new; without threads, the server is asked to say so."""
        if self._is_listening or self._wake.asked_to_stop:
            self._wake.wait(min(seconds, LOOK_SECONDS))
        else:
            self._ask(self._link(), _ASK_SECONDS)

    def listen(self):
        """Let threads wait for news and send ours."""
        import threading

        if not self._is_listening:
            self._is_listening = True
            for work in (self._hear, self._speak):
                link = self._link()
                threading.Thread(target=work, args=(link,), name="board", daemon=True).start()

    def _hear(self, link):
        while self._may_wait():
            before = time.monotonic()
            if not self._ask(link, _LISTEN_SECONDS) and time.monotonic() < before + _EARLY_SECONDS:
                time.sleep(_EARLY_SECONDS)  # a server that is about to stop answers at once
        link.close()

    def _speak(self, link):
        while self._may_wait():
            with self._changed:
                if not self._outbox:
                    self._changed.wait(_ASK_SECONDS)
                note = self._outbox.pop(0) if self._outbox else None
            if note is not None:
                self._send(link, note)
        link.close()

    def _ask(self, link, seconds):
        """Take in what is new; True if there was anything."""
        return self._exchange(link, "GET", "&wait=%d" % seconds)

    def _send(self, link, note):
        """Add a note, and take in what is new with it: who posts sees it when they read."""
        self._exchange(link, "POST", "", note)

    def _exchange(self, link, verb, more, note=None):
        since = len(self._notes)
        path = "%s&since=%d%s" % (self._path, since, more)
        found = (self._call(link, verb, path, note) or {"notes": []})["notes"]
        with self._changed:
            self._has_asked = True
            self._notes += found[len(self._notes) - since :]  # the other thread may have been first
            self._changed.notify_all()
        return bool(found)

    def _call(self, link, verb, path, body=None):
        from runyard_runtime.server_link import Abandoned, Refused

        try:
            return link.call_json(verb, path, body)
        except Abandoned:
            return None
        except Refused:
            self._is_refused = True
            if self._wake is not None:
                self._wake.stop()
            return None
        finally:
            if not self._is_listening:
                link.close()  # keepers are forked off us, and must not hold it

    def _link(self):
        from runyard_runtime.server_link import ServerLink

        token, url = self._plan["agent_token"], self._plan["url"]
        address_file, wanted = self._plan.get("address_file"), self._is_wanted
        sleep = None if self._is_listening else self._pause
        return ServerLink(url, token, address_file, sleep=sleep, is_wanted=wanted)

    def _pause(self, seconds):
        """Between two tries of a thread that must hear when it is to stop."""
        from runyard_runtime.server_link import Abandoned

        if self._wake is None:
            time.sleep(seconds)
            return
        is_new = not self._wake.asked_to_stop
        self._wake.wait(seconds)
        if is_new and self._wake.asked_to_stop:
            raise Abandoned("asked to stop")

    def _may_wait(self):
        return not self._is_refused and self._is_wanted()

    def _is_wanted(self):
        return os.path.exists(os.path.join(self._folder, wire.PLAN_FILE))


def _board_path(plan):
    from runyard_runtime.server_link import run_path

    return run_path(plan["run_id"], "board") + "?attempt=%d" % (plan.get("attempt") or 1)


def _parse(line):
    try:
        note = json.loads(line.decode("utf-8"))
    except ValueError:
        return None  # torn, or an empty line between two
    return note if isinstance(note, dict) else None


# Each is made with the job's folder and the agent's Wake; None: who only posts.
BOARDS = {"folder": FolderBoard, "server": ServerBoard}
