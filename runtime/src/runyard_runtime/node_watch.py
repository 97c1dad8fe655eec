"""Stands by the agent of a node inside a job of a batch system, and replaces it when it dies.

    watch → guard → agent → keepers → ranks

A batch system ends everything when the process that it started ends. If that were the agent, its
death would take the ranks along; so it is this watch, which does too little to fail. What it does
is done by its guard, which ends all when the watch is killed: not every batch system finds
processes that left their session. The watch hears

    SIGTERM    the job is to stop: the agent is told, again and again until it has ended
    SIGUSR2    all that runs here is ended at once

and ends with the exit code of the job on this node (128 + n for a signal n), or with LOST, or with
what `boot` ends with. It imports nothing of the runtime before the agent does, because its text may
travel alone.
"""

import json
import os
import signal
import sys
import time

LOST = 121  # the watch's exit code if agents died again and again, or all was to be ended
_NO_AGENT = (241, 242, 243, 244)  # how `boot` ends if it cannot start one; it said why
_HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_WATCH_DIED = signal.SIGUSR1  # what the guard hears then
_TELL_AGAIN_SECONDS = 0.5  # an agent that only starts does not hear yet
_LONG_WAIT = 3600.0
_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # before the next agent, if the last ones died soon
_STEADY_SECONDS = 120.0  # an agent that lived that long died of something new
_KILL_PATIENCE = 5.0
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # what prctl(2) is asked for
# The batch system's own account of its job. Ranks must not take it for theirs: several launchers
# and frameworks would start, count or connect processes by it instead of by what the plan says.
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_OURS = ("SLURM_CONF",)  # where the batch system is, for a script that asks it


class Watch:
    """Keeps an agent running.

    `begin()` is one, in a fork; `find_exit()` is the job's exit code, or None; `is_wanted()` is
    False once nobody needs an agent; `clear()`, in a fork, removes what is left of a killed job.
    """

    def __init__(self, begin, find_exit, is_wanted, clear=None):
        self._begin = begin
        self._find_exit = find_exit
        self._is_wanted = is_wanted
        self._clear = clear
        self._agent = 0
        self._status = 0  # the exit code of the last agent
        self._is_killed = False  # it had none
        self._stopping = False
        self._may_clear = False
        self._before = set()

    def run(self):
        """Until the agent has done its work; the exit code of this process."""
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        _prctl(_SUBREAPER, 1)  # orphans come to us, so none gets away
        me = os.getpid()
        guard = os.fork()
        if guard == 0:
            code = LOST
            try:
                _prctl(_SUBREAPER, 1)
                _prctl(_DEATH_SIGNAL, _WATCH_DIED)
                if os.getppid() == me:
                    os.setsid()  # the batch system signals the watch's group
                    code = self._guard()
            except BaseException:  # noqa: BLE001 - this is the top of a process
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        return self._relay(guard)

    def _relay(self, guard):
        """Be the watch; the guard's exit code."""
        while True:
            number = signal.sigwait(_HEARD)
            if number != signal.SIGCHLD:
                os.kill(guard, number)
                continue
            self._agent = guard
            self._reap()
            if not self._agent:
                if self._is_killed:
                    self._end_all()
                    return LOST
                return self._status

    def _guard(self):
        deaths, began = 0, time.monotonic()
        while True:
            self._fork(self._begin)
            if not self._wait(None):
                return self._kill()
            code = self._find_exit()
            if code is not None:
                return code if code >= 0 else 128 - code
            if time.monotonic() - began > _STEADY_SECONDS:
                deaths = 0
            if self._status in _NO_AGENT:
                return self._status  # it was patient enough
            if deaths == len(_PAUSES) or not self._is_wanted():
                self._end_all()
                return LOST
            if not self._wait(_PAUSES[deaths]):
                return self._kill()
            deaths, began = deaths + 1, time.monotonic()

    def _kill(self):
        self._end_all()
        if self._clear is not None and self._may_clear:
            self._fork(self._clear)
            self._wait(_KILL_PATIENCE)
        return LOST

    def _fork(self, act):
        self._agent = os.fork()
        if self._agent:
            return
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the agent can hear
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)
            code = act()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - this is the top of a process
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code or 0)

    def _wait(self, seconds):
        """Until the agent ended, or so long. False if all is to be ended."""
        is_pause = not self._agent
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            if not self._agent and (not is_pause or self._stopping):
                return True
            left = _LONG_WAIT if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return True
            if self._stopping and self._agent:
                left = min(left, _TELL_AGAIN_SECONDS)
            heard = signal.sigtimedwait(_HEARD, left)
            number = heard.si_signo if heard is not None else None
            if number in (signal.SIGUSR2, _WATCH_DIED):
                self._may_clear = number == signal.SIGUSR2
                return False
            self._stopping = self._stopping or number == signal.SIGTERM
            self._reap()
            if self._stopping and self._agent:
                os.kill(self._agent, signal.SIGTERM)

    def _reap(self):
        """Collect what ended: the agent, and orphans that came to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                pid = 0  # no children at all
            if not pid:
                return
            if pid == self._agent:
                self._agent, self._status, self._is_killed = 0, status >> 8, bool(status & 127)

    def _end_all(self):
        deadline = time.monotonic() + _KILL_PATIENCE
        if self._agent:
            os.kill(self._agent, signal.SIGKILL)  # first, or it would see its ranks fail
        while time.monotonic() < deadline:
            self._reap()
            left = _descendants(os.getpid())
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # it was quicker
            time.sleep(0.01)


def main(folder, node):
    """Watch over the agent of a job whose folder is here; the exit code of the process."""
    own = os.path.join(folder, "agent-%d" % node)

    def begin():
        from runyard_runtime import agent, processes, wire

        os.makedirs(own, exist_ok=True)
        _send_output_to(os.path.join(own, "log"))
        os.environ[wire.JOB_KEY] = processes.job_marker(folder)
        return agent.main(folder, node)

    def is_wanted():
        return os.path.exists(os.path.join(folder, "plan.json"))

    _forget_batch_system()
    return Watch(begin, lambda: read_exit(own), is_wanted).run()


def main_afar(text, node):
    """Watch over an agent whose job comes over HTTP, by the text of `boot`; the exit code."""
    told = os.environ
    told["RUNYARD_NODE_INDEX"] = str(node)
    folder = os.path.expanduser(told.get("RUNYARD_NODE_FOLDER") or "~/.runyard-node")
    place = os.path.join(folder, "jobs", "%s.%d" % (told["RUNYARD_NODE_KEY"], node))

    def begin():
        space = {"__name__": "runyard_boot"}
        exec(compile(text, "boot", "exec"), space)  # noqa: S102 - our own text
        return space["main"]()

    def clear():
        told["RUNYARD_NODE_ACTION"] = "end"
        return begin()

    def find_exit():
        left = read_exit(os.path.join(place, "agent-%d" % node))
        left = left if left is not None else read_exit(place, ".over")
        # The batch system gives one exit code for all nodes, and node 0 speaks for the job.
        return left if left is None or node == 0 else 0

    return Watch(begin, find_exit, lambda: True, clear).run()


def read_exit(own, name="/exit.json"):
    """The exit code that an agent left in its folder; None if there is none."""
    try:
        with open(own + name, "rb") as stream:
            return int(json.loads(stream.read().decode("utf-8"))["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _forget_batch_system():
    for name in list(os.environ):
        if name.startswith(_FOREIGN) and name not in _OURS:
            del os.environ[name]


def _send_output_to(path):
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(handle, number)
    os.close(handle)


def _prctl(what, value):
    try:
        import ctypes

        ctypes.CDLL(None).prctl(what, int(value), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # then the batch system alone ends what is left


def _descendants(root):
    """The processes below one, without zombies."""
    children, ended = {}, set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as stream:
                    fields = stream.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
            if fields[0] in (b"Z", b"X"):
                ended.add(int(name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return [pid for pid in found if pid not in ended]
