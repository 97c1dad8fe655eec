"""Starts an agent on a machine that has nothing of ours: fetches this package, and calls `remote`.

The text of this file is given to a bare interpreter, `python -S -E -c TEXT`, so it imports nothing
of ours before that is there. What it is told are variables, see `remote`.
"""

import errno
import fcntl
import os
import signal
import sys
import time

UNREACHABLE, REFUSED, NO_ROOM, DAMAGED = 241, 242, 243, 244  # exit codes; see `remote.WORDS`
PATIENCE = 900.0  # seconds in which a server that is away may come back
_FIRST_DELAY, _LONGEST_DELAY, _SAY_AGAIN = 0.1, 5.0, 60.0
_ANSWER_SECONDS = 20.0  # where nobody is, there may be no answer at all: that is told soon
_LOOK_SECONDS = 0.1


class Stop(Exception):
    """It cannot go on: an exit code, and why."""


def say(text):
    """Tell whoever reads what the engine keeps of our output."""
    sys.stderr.write("runyard: %s\n" % text)
    sys.stderr.flush()


def no_room(error, folder):
    """The Stop for a folder that cannot be written."""
    why = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        why = "the disk of this node is full; make room, or give another folder"
    return Stop(NO_ROOM, "%s cannot be written: %s" % (folder, why))


class Patience:
    """Waits between tries, longer and longer; Stop when the time for them is up.

    `stops` is not empty as soon as nobody wants a further try.
    """

    def __init__(self, url, seconds, stops=()):
        self._url = url
        self._stops = stops
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self._delay = _FIRST_DELAY
        self._say_at = 0.0

    def wait(self, why):
        """Until the next try."""
        if self._stops:
            text = "told to stop before the server %s could be reached: %s"
            raise Stop(UNREACHABLE, text % (self._url, why))
        if time.monotonic() >= self._until:
            text = "the server %s cannot be reached from this node within %g s: %s"
            raise Stop(UNREACHABLE, text % (self._url, self._seconds, why))
        if time.monotonic() >= self._say_at:
            say("the server %s does not answer (%s); trying again" % (self._url, why))
            self._say_at = time.monotonic() + _SAY_AGAIN
        time.sleep(self._delay)
        self._delay = min(self._delay * 2, _LONGEST_DELAY)


def refusal(status, words):
    """What a server says that refuses; only 401 is about the token."""
    return words + (" (the token is not valid there)" if status == 401 else "")


def words_of(body):
    """The words in the body of an answer that refuses."""
    import json

    text = body.decode("utf-8", "replace")
    try:
        said = json.loads(text)
        return " ".join(str(said[key]) for key in ("what", "why", "fix") if said.get(key))
    except (ValueError, AttributeError, TypeError):
        return text[:300]


def fetch(url, path, token, seconds, stops=()):
    """(content, digest) of a file of the server."""
    import hashlib
    import http.client
    import urllib.error
    import urllib.request

    asked = urllib.request.Request(url + path, headers={"Authorization": "Bearer " + token})
    # Straight, as agents do: a proxy is for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    patience = Patience(url, seconds, stops)
    while True:
        try:
            with opener.open(asked, timeout=_ANSWER_SECONDS) as answer:
                content, named = answer.read(), (answer.headers["ETag"] or "").strip('"')
            if hashlib.sha256(content).hexdigest() == named:
                return content, named
            why = "what it sent is damaged"
        except urllib.error.HTTPError as error:
            why = "it answers %d: %s" % (error.code, words_of(error.read(4000)))
            if error.code < 500 and error.code not in (408, 425, 429):
                raise Stop(REFUSED, "the server %s refused: %s" % (url, refusal(error.code, why)))
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
        patience.wait(why)


def wait_for(lock, seconds, stops):
    """Have the lock, if that makes sense: of several agents that come up, one fetches.

    In a shared folder without locks several fetch, and one is first.
    """
    until, is_said = time.monotonic() + seconds, False
    while not stops and time.monotonic() < until:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return
        if not is_said:
            say("waiting for another agent of this node, which fetches the runtime")
            is_said = True
        time.sleep(_LOOK_SECONDS)


def is_there(place):
    """Whether a folder is there; it is used from now on, so it is not removed as an old one."""
    try:
        os.utime(place)
        return True
    except OSError:
        return os.path.isdir(place)  # somebody else's


def runtime(folder, digest, url, token, seconds, stops=()):
    """The folder of this package on this node, fetched unless it is there."""
    place = os.path.join(folder, "runtime", digest)
    if digest and is_there(place):
        return place
    import io
    import shutil
    import tempfile
    import zipfile

    try:
        os.makedirs(os.path.join(folder, "runtime"), 0o700, exist_ok=True)
        with open(os.path.join(folder, "runtime", "lock"), "w") as lock:
            wait_for(lock, seconds, stops)
            if digest and is_there(place):
                return place
            content, digest = fetch(url, "/api/v1/runtime", token, seconds, stops)
            place = os.path.join(folder, "runtime", digest)
            if is_there(place):
                return place
            making = tempfile.mkdtemp(dir=os.path.dirname(place))
            try:
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    archive.extractall(making)
                os.rename(making, place)
            except OSError:
                if not os.path.isdir(place):  # else another was quicker
                    raise
            finally:
                shutil.rmtree(making, ignore_errors=True)
            return place
    except OSError as error:
        raise no_room(error, folder)


def main():
    """Be the agent; the exit status."""
    told, stops = os.environ, []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))  # until the agent is there to hear it
    try:
        folder = told.get("RUNYARD_NODE_FOLDER") or "~/.runyard-node"
        folder = os.path.abspath(os.path.expanduser(folder))
        url, token = told["RUNYARD_NODE_URL"].rstrip("/"), told["RUNYARD_NODE_TOKEN"]
        seconds = float(told.get("RUNYARD_NODE_PATIENCE") or PATIENCE)
        place = runtime(folder, told.get("RUNYARD_NODE_RUNTIME") or "", url, token, seconds, stops)
        sys.path.insert(0, place)
        from runyard_runtime import remote

        return remote.main(folder, place, stops)
    except Stop as stop:
        say(stop.args[1])
        return stop.args[0]


if __name__ == "__main__":
    sys.exit(main())
