"""Says in words why a process failed, from its exit code and the end of its log. Pure."""

import re
import signal

TAIL_BYTES = 64 * 1024  # how much of a log's end is looked at
_TRACEBACK = "Traceback (most recent call last):"
_KEEP_LINES = 60
_KEEP_CHARS = 2000

# The last line of a traceback: "ValueError: text", "pkg.mod.Error" or "KeyboardInterrupt".
_ERROR_LINE = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$", re.DOTALL)
_NO_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NO_SCRIPT = re.compile(r"can't open file '?(.*?)'?: \[Errno 2\]")
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


def diagnose(exit_code, tail, rank):
    """What a run's `error` says of a rank that ended with `exit_code`; None for a good end.

    An `exit_code` of None: it is over, but nobody knows how it ended.
    """
    if exit_code == 0:
        return None
    text = tail.decode("utf-8", "replace")
    traceback = last_traceback(text)
    return {
        "code": "UserError" if exit_code is not None else "ExitCodeUnknown",
        "message": _message(exit_code, text, traceback)[:_KEEP_CHARS],
        "rank": rank,
        "exit_code": exit_code,
        "traceback": traceback,
    }


def last_traceback(text):
    """The last complete traceback in a log; of chained ones the final. Empty if there is none."""
    lines = text.replace("\r\n", "\n").split("\n")
    for start in range(len(lines) - 1, -1, -1):
        if lines[start].strip().endswith(_TRACEBACK):
            found = _complete(lines, start)
            if found:
                return "\n".join(
                    found[:2] + ["  …"] + found[-_KEEP_LINES:]
                    if len(found) > _KEEP_LINES + 2
                    else found
                )
    return ""


def _complete(lines, start):
    """The lines of the traceback that starts there, if its error line is among them."""
    # Ranks of launchers prefix their lines ("[1,0]<stderr>:Traceback …"); what follows does too.
    prefix = lines[start][: lines[start].index(_TRACEBACK)]
    found = [_TRACEBACK]
    for line in lines[start + 1 :]:
        line = line[len(prefix) :] if line.startswith(prefix) else line
        if line.startswith((" ", "\t")) or not line.strip():
            found.append(line)
            continue
        if not _ERROR_LINE.match(line) or len(found) == 1:
            return None
        found.append(line)
        return found
    return None


def _message(exit_code, text, traceback):
    if exit_code is None:
        return (
            "The exit code of the script is not known: its agent and its keeper, the processes "
            "that watched it, were both killed. Was the machine restarted, or all killed at once?"
        )
    if exit_code < 0:
        name = _signal_name(-exit_code)
        return "The script ended by signal %s: %s." % (name, _SIGNALS.get(name, "it was killed"))
    if traceback:
        return _of_error(traceback.split("\n")[-1], exit_code)
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
    if exit_code > 128 and _signal_name(exit_code - 128).startswith("SIG"):
        name = _signal_name(exit_code - 128)
        return "The script ended with exit code %d, which stands for signal %s: %s." % (
            exit_code,
            name,
            _SIGNALS.get(name, "it was killed"),
        )
    line = _last_line(text)
    said = "The script ended with exit code %d." % exit_code
    return "%s Its last words: %s" % (said, line[:500]) if line else said


def _of_error(line, exit_code):
    found = _ERROR_LINE.match(line)
    kind = found.group(1).split(".")[-1] if found else ""
    if kind in ("ModuleNotFoundError", "ImportError"):
        module = _NO_MODULE.search(line)
        if module:
            return "%s. Add it to the environment of the run." % line.rstrip(".")
    if kind == "MemoryError":
        return "%s: the script ran out of memory." % line.split(":")[0]
    if kind == "KeyboardInterrupt":
        return "%s: the script was interrupted." % line
    return line


def _last_line(text):
    for line in reversed(text.replace("\r", "\n").split("\n")):
        if line.strip():
            return line.strip()
    return ""


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "number %d" % number
