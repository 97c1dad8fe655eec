"""Mount points on this machine: which there are below a folder, and how they are taken away."""

import os
import re
import subprocess

_COMMANDS = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
_SECONDS = 10.0
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_points(below):
    """The mount points at or below a folder, the deepest first. Also those whose server died."""
    below = os.path.abspath(below)
    found = []
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            for line in stream:
                point = _ESCAPED.sub(_character, os.fsdecode(line.split()[4]))
                if point == below or point.startswith(below + os.sep):
                    found.append(point)
    except OSError:
        pass
    return sorted(found, key=len, reverse=True)


def unmount(point):
    """Take a mount point away, though it is in use or its server died; True if it is gone."""
    for command in _COMMANDS:
        try:
            subprocess.call(
                list(command) + [point],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if point not in mount_points(point):
            return True
    return point not in mount_points(point)


def clear(folder):
    """Take away every mount below a folder; those that could not be."""
    return [point for point in mount_points(folder) if not unmount(point)]


def _character(found):
    return chr(int(found.group(1), 8))
