"""Ranks in containers: the words before a rank's command, and the end of what it leaves.

A plan with a container has

    prefix   what stands before the command of each rank, e.g. docker run … IMAGE
    remove   what ends and removes containers; their names come after it

In `prefix` {name} is the rank's container, {job}, {work} and {runtime} are folders, the word
{variables} becomes one --env=NAME for each variable of the job, and {cache} a mount of the node's
cache where there is one. Values are never on the command line, which every user of the machine
can read: the container's engine takes them from the environment of its own command.

The rank's process is then that command. It passes SIGTERM on. If it is killed the container goes
on, but its processes carry the job's marker and are found by it like any other leftover.
"""

import os.path

from runyard_runtime import wire

# Of this machine, not of the image; unless the user gave them for the job.
HOST_ONLY = frozenset(
    "PATH HOME USER LOGNAME SHELL TMPDIR LD_LIBRARY_PATH SSL_CERT_FILE SSL_CERT_DIR "
    "REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CUDA_HOME CUDA_PATH CUDA_ROOT".split()
)
_REMOVE_SECONDS = 30


def container_name(marker, rank):
    """The name of a rank's container."""
    return "runyard-%s-%s" % (marker, rank)


def wrap(job, folder, own_name, env, argv):
    """The command of a rank as it is started here: in its container, if the job has one."""
    values = {
        "{name}": own_name,
        "{job}": folder,
        "{work}": os.path.join(folder, wire.WORK_DIR),
        "{runtime}": job["runtime"],
    }
    words = []
    for word in job.get("prefix") or ():
        if word == "{variables}":
            words.extend("--env=" + one for one in passed(job, env))
        elif word == "{cache}":
            if job.get("cache"):
                words.append("--mount=type=bind,source=%s,target=%s" % ((job["cache"],) * 2))
        else:
            for placeholder, value in values.items():
                word = word.replace(placeholder, value)
            words.append(word)
    return words + argv


def remove(job, marker, ranks):
    """End and remove the containers of these ranks, if any is left. Never fails."""
    if not job.get("remove") or not ranks:
        return
    import subprocess  # most jobs have no container, and none should wait for the import

    try:
        with open(os.devnull, "r+b") as null:
            subprocess.call(
                list(job["remove"]) + [container_name(marker, rank) for rank in ranks],
                stdin=null,
                stdout=null,
                stderr=null,
                timeout=_REMOVE_SECONDS,
            )
    except (OSError, subprocess.TimeoutExpired):
        pass  # it was removed when it ended; this is only for those whose keeper was killed


def passed(job, env):
    """The names of the variables that a job's container gets."""
    given = job.get("variables") or {}
    return sorted(one for one in env if one in given or one not in HOST_ONLY)
