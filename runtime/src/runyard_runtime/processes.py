"""The processes of this machine as /proc shows them: who lives, who belongs to a job.

On systems without /proc a process is known by its number alone and leftovers are not found.
"""

import collections
import errno
import os
import signal
import time
import zlib

_PR_SET_CHILD_SUBREAPER = 36
_ENDED_STATES = "ZXx"
_KILL_PATIENCE = 5.0  # a process that SIGKILL does not end in that time hangs in the kernel

Stat = collections.namedtuple("Stat", "state parent start ticks pages")


def job_marker(folder):
    """What marks the processes of the job in that folder: its key, and where it is.

    The place belongs to it because two servers on one machine may use the same key.
    """
    place = os.path.realpath(folder)
    return "%s-%08x" % (os.path.basename(place), zlib.crc32(os.fsencode(place)))


def node_marker(marker, node):
    """What marks the processes of one node of several; who looks for the job's finds them, too."""
    return "%s.n%d." % (marker, node)


def stat(pid):
    """What /proc says of a process, or None if there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            text = stream.read()
    except OSError:
        return None
    # The name is in parentheses and may hold anything, parentheses too.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        start=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
        pages=int(fields[21]),
    )


def start_time(pid):
    """When a process started, in ticks since boot; with the pid it names a process for good."""
    known = stat(pid)
    return known.start if known else 0


def is_alive(pid, start):
    """True if that very process runs: the same number and the same start, and no zombie."""
    if not pid:
        return False
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except OSError as error:
            return error.errno == errno.EPERM
        return True
    known = stat(pid)
    return known is not None and known.start == start and known.state not in _ENDED_STATES


def job_processes(marker, roots=()):
    """{pid: Stat} of a job: below `roots` (which do not count), or carrying its marker."""
    table = _table()
    found = _descendants(table, roots)
    text = b"RUNYARD_JOB_KEY=" + marker.encode("utf-8")
    found.update(pid for pid in table if pid not in found and text in environment(pid))
    # Zombies are over, and asking the kernel to end them changes nothing.
    return {
        pid: table[pid]
        for pid in found
        if pid not in roots and table[pid].state not in _ENDED_STATES
    }


def end_processes(find, grace, now=time.monotonic, sleep=time.sleep):
    """End what `find()` returns: SIGTERM, SIGKILL after `grace` seconds. What could not be."""
    deadline = now() + grace
    told = set()
    while True:
        left = set(find())
        if not left or now() >= deadline + _KILL_PATIENCE:
            return left
        if now() >= deadline:
            for pid in left:
                send(pid, signal.SIGKILL)
        else:
            for pid in left - told:
                send(pid, signal.SIGTERM)
            told |= left
        sleep(0.02)


def send(pid, number):
    """Send a signal to a process that may have ended meanwhile."""
    if pid <= 1:
        return  # 0, 1 and negative numbers are not one process
    try:
        os.kill(pid, number)
    except OSError:
        pass


def send_group(leader, number):
    """Send a signal to a process group that may have ended meanwhile."""
    if leader <= 1:
        return  # 0 is our own group, and 1 means every process of the machine
    try:
        os.killpg(leader, number)
    except OSError:
        pass


def become_subreaper():
    """Have orphans of our descendants handed to us instead of to init; False if impossible."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def _table():
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    known = ((int(name), stat(int(name))) for name in names if name.isdigit())
    return {pid: one for pid, one in known if one is not None}


def _descendants(table, roots):
    children = {}
    for pid, one in table.items():
        children.setdefault(one.parent, []).append(pid)
    # All processes descend from 0 and 1. A number that is not known must never mean those.
    found, waiting = set(), [pid for pid in roots if pid > 1]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def environment(pid):
    """The variables that a process was started with, as the system keeps them."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            return stream.read()
    except OSError:
        return b""  # somebody else's, or gone
