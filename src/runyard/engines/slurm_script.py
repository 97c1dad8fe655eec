"""What is handed to Slurm: options as people give them, the `sbatch` line, the script. Pure."""

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runyard.domain.errors import Invalid
from runyard.engines.base import NodeGroup
from runyard.engines.options import Seconds, convert_options
from runyard_runtime import node_watch, remote, wire

_WATCH = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from runyard_runtime.node_watch import main; sys.exit(main(sys.argv[2], int(sys.argv[3])))"
)
_WATCH_AFAR = (
    "import os, sys; space = {'__name__': 'runyard_watch'}; "
    "exec(os.environ['RUNYARD_WATCH_TEXT'], space); "
    "sys.exit(space['main_afar'](os.environ['RUNYARD_BOOT_TEXT'], int(sys.argv[1])))"
)
# What starts the watch "$@" on a node. A watch that only starts must not be ended by a stop; what
# it misses is said again. A node without a Python says so itself, as `node_watch.BatchJob` does.
_BEGIN = r"""trap '' TERM USR2
cannot() {
    echo "runyard: $1" >&2
    said="Runyard %(code)d: $SLURMD_NODENAME: $1"
    scontrol update JobId="$SLURM_JOB_ID" Comment="$said" >/dev/null 2>&1
    exit %(code)d
}
command -v "$1" >/dev/null 2>&1 || cannot "there is no interpreter '$1' on this node"
"$1" -S -E -c 'import sys; sys.exit(sys.version_info < (3, 6))' >/dev/null 2>&1 ||
    cannot "'$1' on this node does not start, or is older than Python 3.6"
exec "$@" "${SLURM_PROCID:-0}"
""" % {"code": node_watch.NO_PYTHON}  # noqa: UP031 - braces belong to the shell here
LOG = "slurm.log"  # of a job, in its folder
# A name is read from squeue and given to scancel: nothing in it may mean something to either.
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_BEFORE_MARKER = ":"  # neither a run's id nor a key has it
_RUN_CHARS = 80


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a site wants its jobs; what is empty, Slurm decides."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""  # as sbatch has it: minutes, or [days-]hours:minutes:seconds
    arguments: str = ""  # more of sbatch's own, as on a command line
    shared: bool = True  # nodes see the server's folders under the same paths
    one_machine: bool = False  # all nodes are this machine: a cluster for trying out
    python: str = ""  # the interpreter that starts agents; default: ours, or python3 elsewhere
    folder: str = ""  # where a node that shares nothing keeps things
    environments: str = ""  # where such nodes make environments, e.g. a folder of all of them
    conf: str = ""  # slurm.conf, if it is not where Slurm looks
    mpi: str = ""  # a plugin of srun (pmix, pmi2, …) that starts MPI's ranks; none: mpirun does
    # Seconds without the server until a node asks Slurm whether its job is still there.
    silence_seconds: Seconds = 600.0


def read_options(given: Mapping[str, str]) -> SlurmOptions:
    """The options of an attached cluster, checked."""
    options = convert_options("Slurm", SlurmOptions, given)
    try:
        shlex.split(options.arguments)
    except ValueError as error:
        raise Invalid("Slurm's option 'arguments' is no command line.", why=str(error)) from error
    if options.mpi and not options.shared:
        raise Invalid(
            "Slurm's option 'mpi' needs a shared folder.",
            why="srun starts the same command on all nodes, and here each has a folder of its own.",
            fix="Leave it out: mpirun then starts the ranks, through the agents.",
        )
    if options.environments and options.shared:
        raise Invalid(
            "Slurm's option 'environments' is for nodes that share nothing with the server.",
            why="Others use the environments in the server's home folder.",
            fix="Leave it out, or attach the cluster without a shared folder.",
        )
    if options.mpi and not re.fullmatch(r"[\w.-]+", options.mpi):
        raise Invalid(
            f"Slurm's option 'mpi' is '{options.mpi}'.",
            why="It is the name of a plugin.",
            fix="'srun --mpi=list' shows which there are, e.g. pmix.",
        )
    return options


def plan_batch(group: NodeGroup, options: SlurmOptions, name: str, folder: Path) -> list[str]:
    """The `sbatch` command of a group whose marker is `name`; the script is its input."""
    run_id = str(msgspec.json.decode(group.plan).get("run_id") or group.key)
    command = [
        "sbatch",
        "--parsable",
        "--no-requeue",  # whether a lost job starts again is for the server to say
        f"--job-name={job_name(run_id, name)}",
        f"--comment=Runyard run {run_id}",
        f"--nodes={group.nodes}",
        f"--ntasks={group.nodes}",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--input=/dev/null",
        f"--output={_literal(folder / LOG) if options.shared else '/dev/null'}",
        f"--chdir={folder if options.shared else '/'}",
        "--export=ALL",
    ]
    for option, value in (
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("time", options.time_limit),
    ):
        if value:
            command.append(f"--{option}={value}")
    if (each := group.resources) is not None:
        if each.cores:
            command.append(f"--cpus-per-task={each.cores}")
        if each.memory_gb:
            command.append(f"--mem={round(each.memory_gb * 1024)}M")
        if each.gpus:
            command.append(f"--gres=gpu:{each.gpus}")
    return [*command, *shlex.split(options.arguments)]


def _literal(path: Path) -> str:
    """The path as `sbatch` must be told: '%' stands for something there, unless there is a '\\'."""
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")


def job_name(run_id: str, marker: str) -> str:
    """The name of a job in Slurm: the run for people, then the marker, by which it is found."""
    return f"{_UNSAFE.sub('_', run_id)[:_RUN_CHARS]}{_BEFORE_MARKER}{marker}"


def marker_in(name: str) -> str:
    """The marker in the name of a job; of a job of somebody else, its name."""
    return name.rpartition(_BEFORE_MARKER)[2]


def watch_marker(name: str) -> str:
    """What marks the watches and agents of a job, by which they are found where they can be seen.

    Not what marks its ranks: those an agent ends when the job is over, and not its own watch.
    """
    return f"watch-{name}"


def plan_for_nodes(group: NodeGroup, options: SlurmOptions) -> bytes:
    """The plan in a shared folder, with what agents must know of the watch and of srun."""
    plan = {**msgspec.json.decode(group.plan), "watched": True}
    if options.mpi:
        plan["srun"] = {"mpi": options.mpi}
    return msgspec.json.encode(plan)


def render_script(
    group: NodeGroup, options: SlurmOptions, name: str, folder: Path
) -> tuple[str, dict[str, str]]:
    """The batch script of a group, and the variables that go with it (secrets are there only)."""
    told = {
        wire.JOB_KEY: watch_marker(name),
        "RUNYARD_NODE_SILENCE": f"{options.silence_seconds:g}",
    }
    plan = msgspec.json.decode(group.plan)
    if options.shared:
        python = [options.python or sys.executable, "-S", "-E", "-c"]
        watch, variables = [*python, _WATCH, str(plan["runtime"]), str(folder)], {}
    else:
        watch = [options.python or "python3", "-S", "-E", "-c", _WATCH_AFAR]
        variables = {
            **remote.variables(group.key, plan),
            "RUNYARD_WATCH_TEXT": Path(node_watch.__file__).read_text(),
            "RUNYARD_BOOT_TEXT": remote.boot_text(),
        }
        if options.folder:
            variables["RUNYARD_NODE_FOLDER"] = options.folder
        if options.environments:
            variables["RUNYARD_NODE_ENVIRONMENTS"] = options.environments
    variables |= told
    if group.nodes == 1:
        return f"#!/bin/sh\nset -- {shlex.join(watch)}\n{_BEGIN}", variables
    cores = group.resources.cores if group.resources is not None else None
    srun = [
        "srun",
        f"--nodes={group.nodes}",
        f"--ntasks={group.nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={cores}"] if cores else []),
        "--kill-on-bad-exit=0",  # the other agents have outputs to keep
        "--wait=0",
        "--mpi=none",
        "--input=none",
        "/bin/sh",
        "-c",
        _BEGIN,
        "sh",
        *watch,
    ]
    # In a session of its own, or a signal to the batch script would have srun end the agents.
    return f"#!/bin/sh\ntrap '' TERM USR2\nexec setsid -w {shlex.join(srun)}\n", variables
