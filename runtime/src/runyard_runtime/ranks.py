"""Starts the processes of a job so that they outlive the agent, and finds them again.

Each rank has a *keeper*: a fork of the agent that only waits for it and notes how it ended. So
an agent that was killed loses nothing: its successor finds in the agent's folder

    rank-R.json   who the rank is: {"pid", "start", "keeper", "keeper_start", "at"}
    rank-R.exit   how it ended: {"exit_code", "at"}
    rank-R.done   it was ended because nothing was left for it to do: however it ends is good

A rank claims its first file before it becomes the user's command, so there is never a second.

A rank that `restarts` (a process of a service) is started again by its keeper when it ends, later
each time, as long as it has no .done file. One that ends before it ever was ready, which it says
by making `ready-R` in the job folder, has failed like any other.

How ranks come to be is a *starter*, chosen by the agent (its table of starters). `Direct` forks
them; `mpi_starter` has mpirun start them. A starter has

    start(mine)     have the ranks of this node, a `launch.Process` each, started or found; a Rank
                    each. One that another program starts later is `expect`ed: its file is awaited
    look(notes, reaped)   called about every 50 ms while the node's ranks run, and while a leader
                    waits for the others: new notes of the board, e.g. a daemon that this node is
                    to run (none in jobs of one node); {pid: wait status} of children that ended
    is_over()       True once nobody will start a rank that has no file yet: what is still
                    expected then counts as lost. The agent waits for it also when ranks are over
    failure()       if it failed by itself, what `diagnosis.choose_cause` is told of it, and all
                    ranks are ended; else None
    send(number)    a signal to what starts the ranks; they themselves get theirs before it
    pids()          processes of the starter's own, which are no leftovers of the ranks
    explain(candidates)   those for the job's error, with what only the starter knows of them
    close()         remove what it leaves, after all ranks are over
"""

import collections
import errno
import json
import os
import signal
import time

from runyard_runtime import job_folder, processes, wire

# As much of a `launch.Process` as its keeper needs.
Command = collections.namedtuple("Command", "rank argv env restarts")

LOST = -signal.SIGKILL  # the exit code of a rank that vanished without one
_TAKEN = b"taken"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # before a rank is started again: doubled each time …
_STEADY_SECONDS = 60.0  # … unless it lived that long
_TORN_SECONDS = 2.0  # a claim is one write; a file that stays torn longer will not become whole


class CannotBegin(Exception):
    """The job cannot begin on this node; the text says why, for people."""


class StartFailed(CannotBegin):
    """A rank could not be started; the text says why, for people."""


class Rank:
    """One process of the job, as its agent sees it. `exit_code` is None while it runs."""

    def __init__(self, number, folder, is_child, serves=False, restarts=False, called=None):
        self.number = number
        self.called = called or "rank %d" % number  # by people
        self.is_child = is_child  # of this agent, so that the kernel tells when it ends
        self.serves = serves  # it never ends by itself
        self.restarts = restarts  # its keeper starts it again, so its pid may change
        self.exit_code = None
        self.is_lost = False  # it is over, and nobody knows how it ended
        self.ended_at = None
        self._claim_path = _claim_path(folder, number)
        self._exit_path = exit_path(folder, number)
        self._done_path = os.path.join(folder, "rank-%d.done" % number)
        self.is_done = os.path.exists(self._done_path)
        self._read()

    @property
    def has_failed(self):
        """True if it ended badly by itself, or because we ended it before it was done."""
        return bool(self.exit_code) and not self.is_done

    @property
    def is_expected(self):
        """True if somebody else is still to start it."""
        return not self.pid and self.exit_code is None

    def look(self, reaped):
        """See whether it ended. `reaped` has the wait status of the agent's ended children."""
        if self.exit_code is not None:
            return
        if self.restarts or (not self.pid and os.path.exists(self._claim_path)):
            self._read()  # first: a quick one is over before it was ever seen
        if self._read_exit() or not self.pid:
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

    def keeper_pids(self):
        """Its keeper's number, while that very process runs: later it may be anybody's."""
        return (self.keeper,) if processes.is_alive(self.keeper, self._keeper_start) else ()

    def send(self, number):
        """Send a signal to its process group while it runs."""
        if self.restarts:
            self._read()
        if self.pid and self.exit_code is None:
            processes.send_group(self.pid, number)

    def let_go(self):
        """It has nothing left to do: its end, which comes now, will be a good one."""
        try:
            job_folder.claim(self._done_path, {"at": time.time()})
        except OSError:
            pass  # a full disk; only the next agent would have to know
        self.is_done = True

    def give_up(self):
        """Nobody will start it any more."""
        self.is_lost = True
        self._end(LOST)

    def _read(self):
        known = _read_claim(self._claim_path)
        self.pid = known.get("pid", 0)
        self.start = known.get("start", 0)
        self.keeper = known.get("keeper", 0)
        self._keeper_start = known.get("keeper_start", 0)
        self.started_at = known.get("at", 0.0)

    def _read_exit(self):
        known = job_folder.read_json(self._exit_path)
        if known is None:
            return False
        self._end(known["exit_code"], known["at"])
        return True

    def _end(self, code, at=None):
        self.exit_code = code
        self.ended_at = time.time() if at is None else at


class Direct:
    """The starter that forks the ranks off the agent."""

    def __init__(self, agent_folder, job, nice, note, command):
        self._own = agent_folder
        self._job = job  # the job's folder
        self._nice = nice
        self._note = note
        self._command = command  # for people

    def start(self, mine):
        """Find the ranks of this node, or start them."""
        found = []
        for process in mine:
            rank = find(process, self._own)
            if rank is not None:
                self._note("taking over %s, process %d" % (rank.called, rank.pid))
            else:
                log = os.path.join(self._job, process.log)
                work = os.path.join(self._job, wire.WORK_DIR)
                rank = start(process, self._own, log, work, self._nice)
                self._note("started %s: %s" % (rank.called, self._command))
            found.append(rank)
        return found

    def look(self, notes, reaped):
        """Nothing to do: the ranks run."""

    def is_over(self):
        """True: whoever was to start has started."""
        return True

    def send(self, number):
        """Nobody is between us and the ranks."""

    def pids(self):
        """Only keepers, and those are known by their ranks."""
        return ()

    def failure(self):
        """None: what fails is a rank."""

    def explain(self, candidates):
        """Nothing to add."""
        return candidates

    def close(self):
        """Nothing is left of it."""


def find(process, folder):
    """The rank that an earlier agent started, or None."""
    if not os.path.exists(_claim_path(folder, process.rank)):
        return None
    return Rank(process.rank, folder, is_child=False, **_nature(process))


def expect(process, folder):
    """A rank that another program starts, and that claims its place in that agent's folder."""
    return Rank(process.rank, folder, is_child=False, **_nature(process))


def start(process, folder, log, cwd, nice):
    """Start a rank with its keeper; the one that is there already if somebody was quicker.

    Only while the agent has a single thread: it forks without exec.
    """
    try:
        exits = job_folder.Reserved(exit_path(folder, process.rank))
        says, hears = os.pipe()
        keeper = os.fork()
    except OSError as error:  # no room for a file, or for a process
        raise StartFailed(_cannot_start(process, error))
    if keeper == 0:
        os.close(says)
        keep(process, folder, log, cwd, nice, exits, hears)
    os.close(hears)
    with os.fdopen(says, "rb") as stream:
        problem = stream.read()  # ends when the rank has become the user's command
    if problem and problem != _TAKEN:
        raise StartFailed(problem.decode("utf-8", "replace"))
    return Rank(process.rank, folder, is_child=not problem, **_nature(process))


def _cannot_start(process, error):
    return "rank %d cannot start: %s" % (process.rank, error)


def _nature(process):
    called = wire.task_name(process.log)
    return {"serves": process.serves, "restarts": process.restarts, "called": called}


def code_of(status):
    """An exit code from a wait status; negative is the signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def keep(process, folder, log, cwd, nice, exits, hears):
    """The keeper: start the rank, wait for it, note how it ended. Never returns."""
    code = 255
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keeper = os.getpid()
        try:
            child = os.fork()
        except OSError as error:  # who started us must not take the rank for started
            os.write(hears, _cannot_start(process, error).encode("utf-8"))
            return
        if child == 0:
            become(process, folder, log, cwd, nice, keeper, hears)
        os.close(hears)
        processes.become_subreaper()
        code = wait_for(child)
        if process.restarts:
            code = _keep_on(process, folder, log, cwd, nice, code)
        if _read_claim(_claim_path(folder, process.rank)).get("keeper") == keeper:
            settle(exits, {"exit_code": code, "at": time.time()}, folder)
    finally:
        os._exit(code if code >= 0 else 128 - code)


def _keep_on(process, folder, log, cwd, nice, code):
    """Start the rank again whenever it ends, until it is to end for good; its last exit code."""
    ready = os.path.join(os.path.dirname(folder), wire.ready_file(process.rank))
    pause, begun = _FIRST_PAUSE, time.monotonic()
    while os.path.exists(ready):
        if time.monotonic() - begun >= _STEADY_SECONDS:
            pause = _FIRST_PAUSE
        if not _pause_unless_done(process, folder, pause):
            return code
        pause, begun = min(2 * pause, _LONGEST_PAUSE), time.monotonic()
        keeper = os.getpid()
        try:
            child = os.fork()
        except OSError:
            continue  # no room for a process now; in a while there may be
        if child == 0:
            become(process, folder, log, cwd, nice, keeper, hears=2, again=True)
        code = wait_for(child)
    return code


def _pause_unless_done(process, folder, seconds):
    """Wait; False as soon as the rank is to end for good, or nobody wants to know any more."""
    done = os.path.join(folder, "rank-%d.done" % process.rank)
    deadline = time.monotonic() + seconds
    while True:
        if os.path.exists(done) or not os.path.isdir(folder):
            return False
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, 0.1))


def become(process, folder, log, cwd, nice, keeper, hears, again=False):
    """The rank: claim the place, then become the user's command. Never returns.

    `again`: the place is its predecessor's, which is over.
    """
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
            mine = _claim(_claim_path(folder, process.rank), note, again)
        except OSError as error:
            os.write(hears, _cannot_start(process, error).encode("utf-8"))
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


def _claim(path, note, again):
    if not again:
        return job_folder.claim(path, note)
    job_folder.write_atomically(path, json.dumps(note).encode("utf-8"))
    return True


def wait_for(child):
    """Wait for one child while orphans of the rank come and go."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return code_of(status)


def settle(exits, note, folder):
    """Note how a rank ended, however long it takes."""
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


def exit_path(folder, number):
    """Where it is noted how a rank ended."""
    return os.path.join(folder, "rank-%d.exit" % number)
