"""Removes from a node what no job has used for a month: environments, runtimes, packages.

    FOLDER/runtime/DIGEST     used when its time says so
    ENVIRONMENTS/KEY          the same, of the file that says that it is whole
    ENVIRONMENTS/.packages    what uv keeps, used when an environment is made
    ENVIRONMENTS/.uv-DIGEST   uv itself, the same

A job that goes on touches what it uses from time to time, so nothing is removed under it. Nor is
anything that is not ours: a site may name any folder. Fetched data has a limit of its own size.
"""

import errno
import fcntl
import os
import re
import shutil
import time

KEEP_SECONDS = 30 * 86400.0
TOUCH_SECONDS = 3600.0  # between two times that a job says what it uses
WHOLE = "environment.json"  # in an environment that is whole
PACKAGES = ".packages"
_KEY = re.compile(r"[0-9a-f]{16,64}")
_LEFT = re.compile(r"([0-9a-f]{16,64}\.(making|going)-|\.fetched-uv-|\.uv-).*")


def touch(plan):
    """Say that a job uses the runtime and the environment of its plan."""
    key = (plan.get("environment") or {}).get("key")
    marks = [plan["runtime"]]
    marks += [os.path.join(plan["environments"], key, WHOLE)] if key else []
    for path in marks:
        try:
            os.utime(path)
        except OSError:
            pass  # an interpreter that a user looks after, or a folder of somebody else


def clear(folder, environments=None, keep_seconds=KEEP_SECONDS):
    """Remove what is old below a node's folder; what cannot be locked or removed stays."""
    runtimes = os.path.join(folder, "runtime")
    environments = environments or os.path.join(folder, "environments")
    for name in _listed(runtimes):
        if _KEY.match(name):
            path = os.path.join(runtimes, name)
            _locked(os.path.join(runtimes, "lock"), path, path, keep_seconds)
    for name in _listed(environments):
        path = os.path.join(environments, name)
        if _KEY.match(name) and os.path.exists(os.path.join(path, WHOLE)):
            _locked(path + ".lock", path, os.path.join(path, WHOLE), keep_seconds)
        elif name == PACKAGES or _LEFT.match(name):
            _locked(os.path.join(environments, ".uv.lock"), path, path, keep_seconds)


def _locked(lock, path, mark, keep_seconds):
    """Remove a path whose mark is old, unless somebody is about to make or to fetch the same."""
    try:
        if _is_old(mark, keep_seconds):
            with open(lock, "a") as stream:
                fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path, mark, keep_seconds)
    except OSError:
        pass  # it went by itself, it is somebody else's, or the folder knows no locks


def _remove(path, mark, keep_seconds):
    """Move it out of sight, and remove it unless a job came meanwhile and touched it."""
    going = "%s.going-%d" % (path, os.getpid())
    os.rename(path, going)
    if not _is_old(going + mark[len(path) :], keep_seconds):
        os.rename(going, path)
    elif os.path.isdir(going):
        shutil.rmtree(going, ignore_errors=True)
    else:
        os.unlink(going)


def _is_old(mark, keep_seconds):
    return time.time() - os.stat(mark).st_mtime > keep_seconds


def _listed(folder):
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES):
            raise
        return []
