"""Plans every process of a job: its command and its variables. Pure.

    processes = plan(job, folder, hosts, base, virtual_env)

A launcher is one function and one row of `LAUNCHERS`.
"""

import collections
import os.path
import re

from runyard_runtime import wire

Process = collections.namedtuple("Process", "node rank local_rank argv env")

NEVER = "4102444800"  # the run's token is good until the run is over; v1 wants a time: 2100-01-01
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SHELL_TEXT = re.compile(r"[\s|&;<>()$`\"'*?#~=%]")


class UnknownLauncher(ValueError):
    """The plan asks for a launcher that this runtime does not have."""


def plan(job, folder, hosts, base=None, virtual_env=False, marker=""):
    """The processes of all nodes: one list, the same on every node.

    `job` is the plan of the job, `folder` its folder on this node, `base` the environment that
    every process starts from; `virtual_env` says whether the interpreter is a venv's.
    """
    kind = job["launcher"].get("kind", "single")
    if kind not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        raise UnknownLauncher("There is no launcher '%s'; this runtime has: %s." % (kind, known))
    common = environment(job, folder, base or {}, virtual_env, marker)
    return [
        Process(node, rank, local, command(job, env), env)
        for node, rank, local, extra in LAUNCHERS[kind](job["launcher"], hosts)
        for env in [dict(common, **dict(extra, **_rank_variables(rank)))]
    ]


def environment(job, folder, base, virtual_env, marker):
    """The variables that all processes share: v1's and ours around the user's own."""
    work = os.path.join(folder, wire.WORK_DIR)
    runtime = job["runtime"]
    env = dict(base, PYTHONUNBUFFERED="1")
    env.update(job.get("variables") or {})
    env.update(
        {
            wire.RUN_ID: job["run_id"],
            wire.RUN_TOKEN: job["token"],
            wire.RUN_TOKEN_EXPIRY: NEVER,
            wire.SUBSCRIPTION: job.get("subscription_id") or "",
            wire.RESOURCE_GROUP: job.get("resource_group") or "",
            wire.WORKSPACE: job["workspace"],
            wire.EXPERIMENT: job["experiment"],
            wire.EXPERIMENT_ID: job.get("experiment_id") or job["experiment"],
            wire.SERVICE_ENDPOINT: job["url"],
            wire.OUTPUT_DIRECTORY: os.path.join(work, "outputs"),
            wire.LOG_DIRECTORY: os.path.join(work, "logs"),
            wire.JOB_DIR: folder,
            wire.JOB_KEY: marker,
            wire.ADDRESS_FILE: job.get("address_file") or "",
        }
    )
    # Ours first: a v1 name in a job must be the one that works here. The source tree last: v1
    # let a script in a subfolder import from the root.
    shims = os.path.join(runtime, "runyard_runtime", "shims")
    env["PYTHONPATH"] = _joined(runtime, shims, env.get("PYTHONPATH"), work)
    interpreter = job.get("interpreter")
    if interpreter and os.path.dirname(interpreter):
        folder_of_it = os.path.dirname(interpreter)
        env["PATH"] = _joined(folder_of_it, env.get("PATH") or os.defpath)
        if virtual_env:
            env["VIRTUAL_ENV"] = os.path.dirname(folder_of_it)
    return env


def command(job, env):
    """The words of a process's command, with $NAME and ${NAME} put in where they are known."""
    arguments = [str(one) for one in job["arguments"]]
    if job.get("is_command"):
        if len(arguments) == 1 and _SHELL_TEXT.search(arguments[0]):
            return ["/bin/sh", "-c", arguments[0]]  # the shell expands its own variables
        return [expand(one, env) for one in arguments]
    return [job["interpreter"]] + [expand(one, env) for one in arguments]


def expand(text, env):
    """`text` with the variables that `env` has; others stay as they are written."""

    def value(found):
        return env.get(found.group(1) or found.group(2), found.group())

    return _VARIABLE.sub(value, text)


def _rank_variables(rank):
    variables = {wire.RANK: str(rank)}
    if rank:
        variables[wire.SECONDARY_INSTANCE] = "True"
    return variables


def _joined(*parts):
    return os.pathsep.join(part for part in parts if part)


def _single(launcher, hosts):
    """One process, on the first node."""
    return [(0, 0, 0, {})]


LAUNCHERS = {"single": _single}
