"""Plans every process of a job: its command and its variables. Pure.

    processes = plan(job, folder, hosts, base, virtual_env)

A launcher is one function and one row of `LAUNCHERS`.
"""

import collections
import os.path
import re
import shlex

from runyard_runtime import contained, wire

Process = collections.namedtuple("Process", "node rank local_rank argv env")
Data = collections.namedtuple("Data", "variables placeholders")

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SHELL_TEXT = re.compile(r"[\s|&;<>()$`\"'*?#~=%]")


class UnknownLauncher(ValueError):
    """The plan asks for a launcher that this runtime does not have."""


def plan(job, folder, hosts, base=None, virtual_env=False, marker="", data=None):
    """The processes of all nodes: one list, the same on every node.

    `job` is the plan of the job, `folder` its folder on this node, `base` the environment that
    every process starts from; `virtual_env` says whether the interpreter is a venv's; `data` are
    the variables of inputs and outputs, and what their placeholders in arguments stand for.
    """
    kind = job["launcher"].get("kind", "single")
    if kind not in LAUNCHERS:
        known = ", ".join(sorted(LAUNCHERS))
        raise UnknownLauncher("There is no launcher '%s'; this runtime has: %s." % (kind, known))
    ranks = LAUNCHERS[kind](job["launcher"], hosts)
    told = data or Data({}, {})
    common = environment(job, folder, base or {}, virtual_env, marker, told.variables)
    return [
        Process(node, rank, local, _argv(job, folder, marker, rank, env, told.placeholders), env)
        for node, rank, local, extra in ranks
        for own in [_node_variables(job, node, ranks, common)]
        for env in [dict(common, **dict(own, **dict(extra, **_rank_variables(rank))))]
    ]


def environment(job, folder, base, virtual_env, marker, data=None):
    """The variables that all processes share: v1's and ours around the user's own."""
    work = os.path.join(folder, wire.WORK_DIR)
    runtime = job["runtime"]
    env = dict(base, PYTHONUNBUFFERED="1")
    env.update(job.get("variables") or {})
    env.update(data or {})
    env.update(
        {
            wire.RUN_ID: job["run_id"],
            wire.RUN_TOKEN: job["token"],
            wire.RUN_TOKEN_EXPIRY: str(wire.NEVER),
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


def _argv(job, folder, marker, rank, env, placeholders):
    own_name = contained.container_name(marker, rank)
    return contained.wrap(job, folder, own_name, env, command(job, env, placeholders))


def command(job, env, placeholders=None):
    """The words of a process's command, with $NAME and ${NAME} put in where they are known."""
    arguments = [str(one) for one in job["arguments"]]
    if job.get("is_command") and len(arguments) == 1 and _SHELL_TEXT.search(arguments[0]):
        # The shell expands its own variables.
        return ["/bin/sh", "-c", put_in(arguments[0], placeholders, shlex.quote)]
    arguments = [expand(put_in(one, placeholders), env) for one in arguments]
    return arguments if job.get("is_command") else [job["interpreter"]] + arguments


def placeholders_of(inputs, outputs):
    """{text in an argument: the path it stands for} of {name: path} each."""
    found = {}
    for sign, values in ((wire.INPUT_ARGUMENT, inputs), (wire.OUTPUT_ARGUMENT, outputs)):
        for name, path in values.items():
            found[sign + name] = path
            found["$" + wire.DATA_REFERENCE + name] = path
            found["${%s%s}" % (wire.DATA_REFERENCE, name)] = path
    return found


def put_in(text, placeholders, quoted=None):
    """`text` with every placeholder replaced, also inside a longer word."""
    if not placeholders:
        return text
    known = sorted(placeholders, key=len, reverse=True)
    # A name must end where the placeholder does: "…:data" is not in "…:database".
    signs = "|".join(re.escape(one) + ("" if one.endswith("}") else r"(?!\w)") for one in known)

    def value(found):
        path = placeholders[found.group()]
        return quoted(path) if quoted else path

    return re.sub(signs, value, text)


def expand(text, env):
    """`text` with the variables that `env` has; others stay as they are written."""

    def value(found):
        return env.get(found.group(1) or found.group(2), found.group())

    return _VARIABLE.sub(value, text)


def _node_variables(job, node, ranks, common):
    """What keeps the ranks of a node to its share of a machine, where it has a share."""
    variables = {}
    if job.get("gpus") is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(job["gpus"][node])
    if job.get("cores") is not None and "OMP_NUM_THREADS" not in common:
        here = sum(1 for one in ranks if one[0] == node)
        variables["OMP_NUM_THREADS"] = str(max(1, job["cores"][node] // here))
    return variables


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
