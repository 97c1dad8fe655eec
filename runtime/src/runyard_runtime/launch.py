"""Plans every process of a job: its command and its variables. Pure.

    processes = plan(job, folder, hosts, base, virtual_env)

Who runs where, and what it is told of the others, is the launcher's: see `launchers`.
"""

import collections
import os.path
import re

from runyard_runtime import contained, launchers, wire

# What others need of the launchers is found here too.
from runyard_runtime.launchers import CannotLaunch as CannotLaunch
from runyard_runtime.launchers import Host as Host
from runyard_runtime.launchers import LauncherMismatch as LauncherMismatch
from runyard_runtime.launchers import UnknownLauncher as UnknownLauncher

# `log` is a path below the job folder; `serves`: it never ends by itself, see launchers.Row;
# `restarts`: see launchers.Launcher.
Process = collections.namedtuple("Process", "node rank local_rank argv env log serves restarts")
Data = collections.namedtuple("Data", "variables placeholders")

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_SHELL_TEXT = re.compile(r"[\s|&;<>()$`\"'*?#~=%]")


def ports_needed(launcher, node):
    """How many ports must be reserved on a node before the processes can be planned."""
    return launchers.find(launcher).ports(launcher, node)


def plan(job, folder, hosts, base=None, virtual_env=False, marker="", data=None):
    """The processes of all nodes: one list, the same on every node.

    `job` is the plan of the job, `folder` its folder on this node, `hosts` a `Host` for each of
    its nodes, `base` the environment that every process starts from; `virtual_env` says whether
    the interpreter is a venv's; `data` are the variables of inputs and outputs, and what their
    placeholders in arguments stand for.
    """
    launcher = launchers.find(job["launcher"])
    rows = launcher.rows(job["launcher"], hosts, _shared_path(job, folder))
    told = data or Data({}, {})
    common = environment(job, folder, base or {}, virtual_env, marker, told.variables)
    processes = []
    for row in rows:
        env = dict(common, **_share_of_node(job, launcher, row, rows, common))
        env.update(row.env)
        env.update(_rank_variables(row.rank))
        argv = _argv(job, folder, marker, row.rank, env, told.placeholders)
        log = wire.driver_log(row.name)
        place = (row.node, row.rank, row.local_rank)
        processes.append(Process(*place, argv, env, log, row.serves, launcher.restarts))
    return processes


def remarks(job, node, machine_has_gpus):
    """What a user should know before the processes of a node start: lines for the run's log."""
    ids = job["gpus"][node] if job.get("gpus") is not None else machine_has_gpus
    if job["launcher"].get("backend") == "nccl" and not ids:
        return [
            "node %d has no GPU: init_process_group('nccl') fails there. On CPUs the script's "
            "backend is 'gloo', and the run's PyTorchConfiguration(communication_backend='Gloo')"
            % node
        ]
    return []


def _shared_path(job, folder):
    """A path that all nodes see and nobody has used: ranks may meet in a file there."""
    if job.get("board") == "server":
        return None  # nodes that share no folder
    return os.path.join(folder, "rendezvous-%d" % (job.get("attempt") or 1))


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
        from shlex import quote  # a process that needs none should not wait for the import

        # The shell expands its own variables.
        return ["/bin/sh", "-c", put_in(arguments[0], placeholders, quote)]
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


def _share_of_node(job, launcher, row, rows, common):
    """What keeps a process to its share of a machine, where it has a share."""
    variables = {}
    ids = job["gpus"][row.node] if job.get("gpus") is not None else None
    gpus = launcher.gpus(ids, row, rows)
    if gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if job.get("cores") is not None and "OMP_NUM_THREADS" not in common:
        here = sum(1 for one in rows if one.node == row.node)
        variables["OMP_NUM_THREADS"] = str(max(1, job["cores"][row.node] // here))
    if job.get("one_machine") and len(rows) > 1:
        # No name of the machine is looked up then: where none is known that takes seconds.
        variables.update({name: "lo" for name in _INTERFACES if name not in common})
    return variables


def _rank_variables(rank):
    variables = {wire.RANK: str(rank)}
    if rank:
        variables[wire.SECONDARY_INSTANCE] = "True"
    return variables


def _joined(*parts):
    return os.pathsep.join(part for part in parts if part)
