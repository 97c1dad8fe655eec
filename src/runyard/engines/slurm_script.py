"""What is handed to Slurm: options as people give them, the `sbatch` line, the script. Pure."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runyard.domain.errors import Invalid
from runyard.engines.base import NodeGroup
from runyard_runtime import node_watch, remote

_WATCH = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from runyard_runtime.node_watch import main; sys.exit(main(sys.argv[2], int(sys.argv[3])))"
)
_WATCH_AFAR = (
    "import os, sys; space = {'__name__': 'runyard_watch'}; "
    "exec(os.environ['RUNYARD_WATCH_TEXT'], space); "
    "sys.exit(space['main_afar'](os.environ['RUNYARD_BOOT_TEXT'], int(sys.argv[1])))"
)
# A watch that only starts must not be ended by a stop; what it misses is said again.
_DEAF = "trap '' TERM USR2"
_TRUE = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


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
    conf: str = ""  # slurm.conf, if it is not where Slurm looks


def read_options(given: Mapping[str, str]) -> SlurmOptions:
    """The options of an attached cluster, checked."""
    fields = {one.name: one.type for one in msgspec.structs.fields(SlurmOptions)}
    values: dict[str, str | bool] = {}
    for name, text in given.items():
        if name not in fields:
            known = ", ".join(sorted(fields))
            raise Invalid(f"Slurm has no option '{name}'.", why=f"There are: {known}.")
        if fields[name] is not bool:
            values[name] = str(text)
        elif str(text).lower() in _TRUE:
            values[name] = _TRUE[str(text).lower()]
        else:
            raise Invalid(f"Slurm's option '{name}' is '{text}'.", why="It is true or false.")
    try:
        shlex.split(str(values.get("arguments", "")))
    except ValueError as error:
        raise Invalid("Slurm's option 'arguments' is no command line.", why=str(error)) from error
    return msgspec.convert(values, SlurmOptions)


def plan_batch(group: NodeGroup, options: SlurmOptions, name: str, folder: Path) -> list[str]:
    """The `sbatch` command of a group; the script is its input."""
    command = [
        "sbatch",
        "--parsable",
        "--no-requeue",  # whether a lost job starts again is for the server to say
        f"--job-name={name}",
        f"--comment=Runyard job {group.key}",
        f"--nodes={group.nodes}",
        f"--ntasks={group.nodes}",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--input=/dev/null",
        f"--output={folder / 'slurm.log' if options.shared else '/dev/null'}",
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


def render_script(
    group: NodeGroup, options: SlurmOptions, folder: Path
) -> tuple[str, dict[str, str]]:
    """The batch script of a group, and the variables that go with it (secrets are there only)."""
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
    lines = ["#!/bin/sh", _DEAF]
    if group.nodes == 1:
        return "\n".join([*lines, f"exec {shlex.join(watch)} 0", ""]), variables
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
        f'{_DEAF}; exec "$@" "$SLURM_PROCID"',
        "sh",
        *watch,
    ]
    # In a session of its own, or a signal to the batch script would have srun end the agents.
    return "\n".join([*lines, f"exec setsid -w {shlex.join(srun)}", ""]), variables
