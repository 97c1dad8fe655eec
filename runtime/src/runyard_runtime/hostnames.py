"""Gives processes a host name of their own, so that nodes that share a machine look like several.

    enter(name)     this process, and those it starts, are on a host of that name

MPI takes processes of one host name for neighbours. Linux lets root, and on most systems
everybody, live under another name (a UTS namespace; for others than root inside a user namespace
of their own). Nothing else changes: files, network and process numbers are the machine's.
"""

import os

_NEW_UTS = 0x04000000
_NEW_USER = 0x10000000


def enter(name):
    """Have this process, and those it becomes or starts, live under that name. OSError if not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def ask(function, *arguments):
        if getattr(libc, function)(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, "%s: %s" % (function, os.strerror(number)))

    user, group = os.geteuid(), os.getegid()
    try:
        ask("unshare", _NEW_UTS)
    except OSError:
        ask("unshare", _NEW_UTS | _NEW_USER)
        # We stay who we are in it: files that we write must be ours.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", "%d %d 1" % (user, user))
        _write("/proc/self/gid_map", "%d %d 1" % (group, group))
    encoded = name.encode("utf-8")
    ask("sethostname", encoded, len(encoded))


def can_enter():
    """True if `enter` works here: tried in a child, which ends at once.

    Only while the process has a single thread: it forks without exec.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter("localhost")
            code = 0
        except Exception:  # noqa: BLE001 - no such call, not allowed, no ctypes: all the same
            pass
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _write(path, text):
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, text.encode("ascii"))
    finally:
        os.close(handle)
