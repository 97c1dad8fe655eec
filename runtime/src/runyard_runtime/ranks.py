"""Starts the processes of a job so that they outlive the agent, and finds them again.

Each rank has a *keeper*: a fork of the agent that only waits for it and notes how it ended. So
an agent that was killed loses nothing: its successor finds in the agent's folder

    rank-R.json   who the rank is: {"pid", "start", "keeper", "keeper_start", "at"}
    rank-R.exit   how it ended: {"exit_code", "at"}

A rank claims its first file before it becomes the user's command, so there is never a second.
"""

import errno
import os
import signal
import time

from runyard_runtime import job_folder, processes

LOST = -signal.SIGKILL  # the exit code of a rank that vanished without one
_TAKEN = b"taken"
_TORN_SECONDS = 2.0  # a claim is one write; a file that stays torn longer will not become whole


class StartFailed(Exception):
    """A rank could not be started; the text says why, for people."""


class Rank:
    """One process of the job, as its agent sees it. `exit_code` is None while it runs."""

    def __init__(self, number, folder, is_child):
        known = _read_claim(_claim_path(folder, number))
        self.number = number
        self.pid = known.get("pid", 0)
        self.start = known.get("start", 0)
        self.keeper = known.get("keeper", 0)
        self._keeper_start = known.get("keeper_start", 0)
        self.started_at = known.get("at", 0.0)
        self.is_child = is_child  # of this agent, so that the kernel tells when it ends
        self.exit_code = None
        self.is_lost = False  # it is over, and nobody knows how it ended
        self.ended_at = None
        self._exit_path = _exit_path(folder, number)

    def look(self, reaped):
        """See whether it ended. `reaped` has the wait status of the agent's ended children."""
        if self.exit_code is not None or self._read_exit():
            return
        if self.pid in reaped:  # its keeper was killed, so it came to us
            self._end(code_of(reaped[self.pid]))
        elif not self.is_alive() and not processes.is_alive(self.keeper, self._keeper_start):
            # Both may have ended since the first look.
            if not self._read_exit():
                code = _mirrored(reaped.get(self.keeper))
                self.is_lost = code is None
                self._end(LOST if code is None else code)

    def is_alive(self):
        """True while the process itself runs, whatever its keeper noted."""
        return processes.is_alive(self.pid, self.start)

    def send(self, number):
        """Send a signal to its process group while it runs."""
        if self.pid and self.exit_code is None:
            processes.send_group(self.pid, number)

    def _read_exit(self):
        known = job_folder.read_json(self._exit_path)
        if known is None:
            return False
        self._end(known["exit_code"], known["at"])
        return True

    def _end(self, code, at=None):
        self.exit_code = code
        self.ended_at = time.time() if at is None else at


def find(number, folder):
    """The rank that an earlier agent started, or None."""
    if not os.path.exists(_claim_path(folder, number)):
        return None
    return Rank(number, folder, is_child=False)


def start(process, folder, log, cwd, nice):
    """Start a rank with its keeper; the one that is there already if somebody was quicker.

    Only while the agent has a single thread: it forks without exec.
    """
    exits = job_folder.Reserved(_exit_path(folder, process.rank))
    says, hears = os.pipe()
    if os.fork() == 0:
        os.close(says)
        _keep(process, folder, log, cwd, nice, exits, hears)
    os.close(hears)
    with os.fdopen(says, "rb") as stream:
        problem = stream.read()  # ends when the rank has become the user's command
    if problem and problem != _TAKEN:
        raise StartFailed(problem.decode("utf-8", "replace"))
    return Rank(process.rank, folder, is_child=not problem)


def code_of(status):
    """An exit code from a wait status; negative is the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _keep(process, folder, log, cwd, nice, exits, hears):
    """The keeper: start the rank, wait for it, note how it ended. Never returns."""
    code = 255
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            _become(process, folder, log, cwd, nice, keeper, hears)
        os.close(hears)
        processes.become_subreaper()
        code = _wait_for(child)
        if _read_claim(_claim_path(folder, process.rank)).get("keeper") == keeper:
            _settle(exits, {"exit_code": code, "at": time.time()}, folder)
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _become(process, folder, log, cwd, nice, keeper, hears):
    """The rank: claim the place, then become the user's command. Never returns."""
    status = 126
    try:
        os.setsid()
        me = os.getpid()
        note = {
            "pid": me,
            "start": processes.start_time(me),
            "keeper": keeper,
            "keeper_start": processes.start_time(keeper),
            "at": time.time(),
        }
        try:
            mine = job_folder.claim(_claim_path(folder, process.rank), note)
        except OSError as error:
            os.write(hears, ("rank %d cannot start: %s" % (process.rank, error)).encode("utf-8"))
            os._exit(status)
        if not mine:
            os.write(hears, _TAKEN)
            os._exit(status)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        if nice:
            os.nice(nice)
        os.chdir(cwd)
        os.execvpe(process.argv[0], process.argv, process.env)
    except (OSError, ValueError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            status = 127
        why = getattr(error, "strerror", None) or error
        text = "runyard: cannot run %s: %s.\n" % (process.argv[0], why)
        os.write(2, text.encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _wait_for(child):
    """Wait for one child while orphans of the rank come and go."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return code_of(status)


def _settle(exits, note, folder):
    while os.path.isdir(folder):  # once it is removed, nobody wants to know any more
        try:
            exits.settle(note)
            return
        except OSError:
            time.sleep(1.0)  # the disk is full, and the exit code must not be lost


def _read_claim(path):
    deadline = time.monotonic() + _TORN_SECONDS
    while True:
        known = job_folder.read_json(path)
        if known is not None:
            return known
        if not os.path.exists(path) or time.monotonic() >= deadline:
            return {}
        time.sleep(0.01)


def _mirrored(status):
    """The code that a keeper ended with in its rank's stead when it could not note it; or None."""
    if status is None or os.WIFSIGNALED(status):
        return None
    code = os.WEXITSTATUS(status)
    return 128 - code if code > 128 else code


def _claim_path(folder, number):
    return os.path.join(folder, "rank-%d.json" % number)


def _exit_path(folder, number):
    return os.path.join(folder, "rank-%d.exit" % number)
