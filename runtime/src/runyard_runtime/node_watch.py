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

A batch system that loses sight of a node (its daemon there died) gives the job up without a word to
those who run. Then the server tells the agent to stop, in answer to its reports. Where the server
cannot be reached either, the guard asks the batch system itself whether the job is still there.
"""

import json
import os
import signal
import subprocess
import sys
import time

LOST = 121  # the watch's exit code if agents died again and again, or all was to be ended
NO_PYTHON = 245  # of the shell that should start the watch: the node has no interpreter for it
_NO_AGENT = (241, 242, 243, 244)  # how `boot` ends if it cannot start one; it said why
_HEARD = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_WATCH_DIED = signal.SIGUSR1  # what the guard hears then
_TELL_AGAIN_SECONDS = 0.5  # an agent that only starts does not hear yet
_PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # before the next agent, if the last ones died soon
_STEADY_SECONDS = 120.0  # an agent that lived that long died of something new
_KILL_PATIENCE = 5.0
_LOOK_SECONDS = 15.0  # between two looks whether the server is heard
_SILENCE_SECONDS = 600.0  # without the server until the batch system is asked, unless told
_ASK_SECONDS = 5.0  # for its answer: a stop waits for it
_TELL_SECONDS = 60.0  # for it to take a word
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # what prctl(2) is asked for
# The batch system's own account of its job. Ranks must not take it for theirs: several launchers
# and frameworks would start, count or connect processes by it instead of by what the plan says.
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_TO_ASK = ("PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_CONF")
_OURS = ("SLURM_CONF",)  # where the batch system is, for a script that asks it
# What `squeue` says of a job that is over, or nearly.
_OVER = ("COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED")
_OVER += ("TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "REVOKED")
_WORDS_CHARS = 300
# The comment of a job that cannot run: why, on which node, in words. 0: it is still being tried.
SAYS = "Runyard %d: %s: %s"
_stops = []  # what an agent heard before it could listen


class Watch:
    """Keeps an agent running.

    `begin()` is one, in a fork; `find_exit()` is the job's exit code, or None; `is_wanted()` is
    False once nobody needs an agent; `clear()`, in a fork, removes what is left of a killed job;
    `outside` is what the batch system does with the job, see `Outside`.
    """

    def __init__(self, begin, find_exit, is_wanted, clear, outside):
        self._begin = begin
        self._find_exit = find_exit
        self._is_wanted = is_wanted
        self._clear = clear
        self._outside = outside
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
        if self._may_clear:
            self._fork(self._clear)
            self._wait(_KILL_PATIENCE)
        return LOST

    def _fork(self, act):
        me = os.getpid()
        self._agent = os.fork()
        if self._agent:
            return
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, lambda *_: _stops.append(1))  # until the agent can hear
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            # Whoever kills all of us at once may miss one that was just forked. It then stops as
            # if it were told to, with its ranks.
            _prctl(_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != me:
                os._exit(code)
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
            left = self._outside.look_seconds if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return True
            if self._stopping and self._agent:
                left = min(left, _TELL_AGAIN_SECONDS)
            heard = signal.sigtimedwait(_HEARD, left)
            number = heard.si_signo if heard is not None else None
            if number is None and not is_pause and self._outside.is_over():
                number = signal.SIGUSR2
            if number in (signal.SIGUSR2, _WATCH_DIED):
                self._may_clear = number == signal.SIGUSR2
                return False
            if number == signal.SIGTERM and not self._stopping:
                self._stopping = True
                self._outside.note_why()  # first: the agent may be quick
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


class BatchJob:
    """The job of the batch system that this process is in."""

    def __init__(self, environ):
        self.id = environ.get("SLURM_JOB_ID", "")
        self._node = environ.get("SLURMD_NODENAME", "")
        self._environment = {name: environ[name] for name in _TO_ASK if name in environ}

    def is_over(self):
        """True if the batch system says that it is; False if it cannot be asked."""
        command = ["squeue", "--noheader", "--states=all", "--format=%T", "--jobs=" + self.id]
        state = self._ask(command)
        return bool(self.id) and (state.strip() in _OVER or "Invalid job id" in state)

    def why_ended(self):
        """The error of a run whose job the batch system ends; None if it does not, or not say."""
        said = self._ask(["scontrol", "--oneliner", "show", "job", self.id])
        facts = dict(word.partition("=")[::2] for word in said.split() if "=" in word)
        reason = facts.get("Reason")
        if facts.get("PreemptTime", "None") not in ("None", "Unknown", "N/A"):
            code, why = "Preempted", "it was preempted by a job of higher priority"
        elif reason == "TimeLimit":
            code, why = "ClusterTimeLimit", "its time limit, %s, is over" % facts.get("TimeLimit")
        elif reason == "NodeDown":
            code, why = "NodeLost", "a node of it failed"
        elif facts.get("JobState") in _OVER:
            code, why = "CanceledInCluster", "it was cancelled in Slurm"
        else:
            return None
        return {"code": code, "message": "Slurm ended this run's job %s: %s." % (self.id, why)}

    def tell(self, code, words):
        """Leave a word for the server why nothing can run here: the comment of the job."""
        text = SAYS % (code, self._node, " ".join(words.split())[-_WORDS_CHARS:])
        self._ask(["scontrol", "update", "JobId=" + self.id, "Comment=" + text], _TELL_SECONDS)

    def _ask(self, command, seconds=_ASK_SECONDS):
        """What a program of the batch system says, good or bad; empty if it cannot be asked."""
        try:
            process = subprocess.Popen(
                command,
                env=self._environment,  # that of an agent is cleared
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError:
            return ""
        try:
            return process.communicate(timeout=seconds)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""


class Outside:
    """What the batch system does with the job of an agent whose own folder is `own`."""

    def __init__(self, own, job, environ):
        self._own = own
        self._job = job
        self._seconds = float(environ.get("RUNYARD_NODE_SILENCE") or _SILENCE_SECONDS)
        self._ask_at = 0.0
        self.look_seconds = min(self._seconds, _LOOK_SECONDS)

    def is_over(self):
        """True if nobody will ever hear of the job again: not the server, nor the batch system."""
        since = _read(self._own + "/silent").get("at")  # the agent's note
        if since is None or time.time() - since < self._seconds or time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + self._seconds
        return self._job.is_over()

    def note_why(self):
        """Have the agent know why it is told to stop, if that is the batch system's doing."""
        text = json.dumps({"error": self._job.why_ended()})
        try:
            with open(self._own + "/why.new", "w") as stream:
                stream.write(text)
            os.rename(self._own + "/why.new", self._own + "/why.json")
        except OSError:
            pass  # there is no agent yet, or no room; it waits for a few seconds only


def main(folder, node):
    """Watch over the agent of a job whose folder is here; the exit code of the process."""
    own = os.path.join(folder, "agent-%d" % node)
    job = BatchJob(os.environ)
    outside = Outside(own, job, os.environ)

    def begin():
        from runyard_runtime import agent, processes, remote, wire

        os.makedirs(own, exist_ok=True)
        _send_output_to(os.path.join(own, "log"))
        with open(os.path.join(own, "batch.json"), "w") as stream:
            json.dump({"job": job.id}, stream)
        os.environ[wire.JOB_KEY] = processes.job_marker(folder)
        remote.catch_stop(folder, node, _stops)
        return agent.main(folder, node)

    def is_wanted():
        return os.path.exists(os.path.join(folder, "plan.json"))

    def clear():
        from runyard_runtime import remote

        remote.clear(folder, node)
        return 0

    _forget_batch_system()
    return Watch(begin, lambda: read_exit(own), is_wanted, clear, outside).run()


def main_afar(text, node):
    """Watch over an agent whose job comes over HTTP, by the text of `boot`; the exit code."""
    told = os.environ
    told["RUNYARD_NODE_INDEX"] = str(node)
    told["RUNYARD_NODE_WATCHED"] = "1"
    folder = os.path.expanduser(told.get("RUNYARD_NODE_FOLDER") or "~/.runyard-node")
    place = os.path.join(folder, "jobs", "%s.%d" % (told["RUNYARD_NODE_KEY"], node))
    job = BatchJob(os.environ)
    outside = Outside(os.path.join(place, "agent-%d" % node), job, os.environ)

    def begin():
        space = {"__name__": "runyard_boot"}
        exec(compile(text, "boot", "exec"), space)  # noqa: S102 - our own text
        sys.stderr = heard = _Heard(sys.stderr, lambda words: job.tell(0, words))
        code = space["main"]()
        if code in _NO_AGENT:
            job.tell(code, heard.last)
        return code

    def clear():
        told["RUNYARD_NODE_ACTION"] = "end"
        return begin()

    def find_exit():
        left = read_exit(os.path.join(place, "agent-%d" % node))
        left = left if left is not None else read_exit(place, ".over")
        # The batch system gives one exit code for all nodes, and node 0 speaks for the job.
        return left if left is None or node == 0 else 0

    return Watch(begin, find_exit, lambda: True, clear, outside).run()


class _Heard:
    """Passes on what is written; remembers the last of it, and tells what is said of the server."""

    def __init__(self, stream, tell):
        self._stream = stream
        self._tell = tell
        self.last = ""

    def write(self, text):
        self.last = text.replace("runyard: ", "", 1).strip() or self.last
        if text.startswith("runyard: the server") and "trying again" in text:
            self._tell(self.last)
        return self._stream.write(text)

    def flush(self):
        self._stream.flush()


def read_exit(own, name="/exit.json"):
    """The exit code that an agent left in its folder; None if there is none."""
    try:
        return int(_read(own + name)["exit_code"])
    except (ValueError, KeyError, TypeError):
        return None


def _read(path):
    try:
        with open(path, "rb") as stream:
            known = json.loads(stream.read().decode("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


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
