"""Commands for compute targets: compute ls, show, sizes, create, attach, update, rm, nodes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import click

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option
from runyard.cli.render import render_span
from runyard.cli.scope import Scope, open_scope
from runyard.domain.compute import (
    CLUSTERS,
    AttachSpec,
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    EngineRef,
    NodeResources,
    NodeState,
    Priority,
    VmSize,
)
from runyard.domain.errors import Invalid, NotFound
from runyard.domain.runs import LOCAL, plural
from runyard.domain.server import ServerInfo

_COLOURS = {NodeState.RUNNING: "blue", NodeState.IDLE: "green", NodeState.UNUSABLE: "red"}
_workspace = click.option(
    "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
)


@click.group()
def compute() -> None:
    """Make and look at compute targets: clusters of nodes that runs are sent to."""


@compute.command("ls")
@_workspace
@json_option
def list_computes(workspace: str | None, as_json: bool) -> None:
    """List the compute targets of the workspace.

    \b
    Example:
      runyard compute ls
    """
    scope = _scope(workspace)
    found = scope.client.request("GET", _path(scope), answer=list[ComputeRecord])
    if as_json:
        console.document(found)
        return
    headers = ("NAME", "ENGINE", "SIZE", "NODES", "BUSY", "LIMITS", "IDLE AFTER", "STATE")
    console.table(headers, [_local_row(_server(scope)), *(_row(one) for one in found)])
    if not found:
        console.note(
            "There is no cluster yet. Make one: runyard compute create NAME, or use one of Slurm "
            "or Ray: runyard compute attach --help"
        )
    for record in found:
        if record.engine is not None:
            _warn(record, f"{record.name}: ")


@compute.command()
@click.argument("name")
@_workspace
@json_option
def show(name: str, workspace: str | None, as_json: bool) -> None:
    """Show a compute target with its nodes.

    \b
    Example:
      runyard compute show cpu-cluster
    """
    scope = _scope(workspace)
    if name.lower() == LOCAL:
        _show_local(_server(scope), as_json=as_json)
        return
    record = _get(scope, name, ask=True)
    if as_json:
        console.document(record)
        return
    _say(record)
    if record.nodes:
        console.heading("Nodes")
        _say_nodes(record)


@compute.command()
@click.argument("name")
@_workspace
@json_option
def nodes(name: str, workspace: str | None, as_json: bool) -> None:
    """List the nodes of a compute target, and what each works on.

    \b
    Example:
      runyard compute nodes cpu-cluster
    """
    record = _get(_scope(workspace), name)
    if as_json:
        console.document(record.nodes)
    elif record.nodes:
        _say_nodes(record)
    else:
        how = "its cluster gives them when" if record.engine else "they come up when"
        console.note(f"'{record.name}' has no nodes now; {how} a run needs them.")


@compute.command()
@json_option
def sizes(as_json: bool) -> None:
    """List the VM sizes that the nodes of a cluster can have.

    \b
    Example:
      runyard compute sizes
    """
    scope = open_scope()
    found = scope.client.request("GET", "/api/v1/vmsizes", answer=list[VmSize])
    if as_json:
        console.document(found)
        return
    rows = [
        [Cell(size.name, "bold"), Cell(str(size.cores)), Cell(f"{size.memory_gb:g} GB"),
         Cell(str(size.gpus or "-"))]
        for size in found
    ]  # fmt: skip
    console.table(("SIZE", "CORES", "MEMORY", "GPUS"), rows)


@compute.command()
@click.argument("name")
@click.option(
    "--size", "vm_size", default="", metavar="SIZE", help="A VM size of Azure's; see sizes."
)
@click.option("--min-nodes", default=0, show_default=True, help="Nodes that never go.")
@click.option("--max-nodes", default=4, show_default=True, help="Never more nodes than these.")
@click.option(
    "--idle-seconds", default=1800, show_default=True, help="An idle node goes after so long."
)
@click.option("--low-priority", is_flag=True, help="Kept as v1's word; means nothing here.")
@_workspace
@json_option
def create(
    name: str,
    vm_size: str,
    min_nodes: int,
    max_nodes: int,
    idle_seconds: int,
    low_priority: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Make a cluster; one of that name and size gets the new scale.

    \b
    Example:
      runyard compute create cpu-cluster --size STANDARD_D2_V2 --max-nodes 4
    """
    scope = _scope(workspace)
    spec = ComputeSpec(
        vm_size=vm_size,
        priority=Priority.LOW if low_priority else Priority.DEDICATED,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        idle_seconds=idle_seconds,
    )
    record = scope.client.request("PUT", _path(scope, name), body=spec, answer=ComputeRecord)
    if as_json:
        console.document(record)
        return
    _say(record)


@compute.command()
@click.argument("name")
@click.option("--ray", metavar="ADDRESS", help="A Ray cluster: where its dashboard answers.")
@click.option("--slurm", is_flag=True, help="The Slurm cluster of the server's machine.")
@click.option("--token-file", metavar="FILE", help="Holds the token that the cluster asks for.")
@click.option("--partition", metavar="NAME", help="Slurm: where jobs go.")
@click.option("--account", metavar="NAME", help="Slurm: who pays.")
@click.option(
    "--no-shared-folder",
    is_flag=True,
    help="Slurm: nodes do not see the server's home folder. Those of Ray never do.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another option of the engine, see above; may be given several times.",
)
@click.option(
    "--max-nodes", type=int, help="Runs take no more at once; by default what the cluster gives."
)
@click.option("--cores", type=int, help="Of each node; by default what the cluster gives.")
@click.option("--memory-gb", type=float, help="Of each node.")
@click.option("--gpus", type=int, help="Of each node.")
@_workspace
@json_option
def attach(
    name: str,
    ray: str | None,
    slurm: bool,
    token_file: str | None,
    partition: str | None,
    account: str | None,
    no_shared_folder: bool,
    options: tuple[str, ...],
    max_nodes: int | None,
    cores: int | None,
    memory_gb: float | None,
    gpus: int | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Use a cluster of Ray or Slurm that exists; `rm` stops using it.

    The cluster is asked whether it takes such jobs. Attaching again changes what is said here.

    \b
    Options for --option (docs/slurm.md, docs/ray.md):
      Slurm  qos, time_limit, arguments, python, folder, environments, conf, mpi
      Ray    autoscale, place_seconds, url, server_seconds, python, node_folder,
             environments

    \b
    Example:
      runyard compute attach big --slurm --partition gpu --gpus 4
      runyard compute attach big --slurm --option time_limit=2-00:00:00
      runyard compute attach ray --ray http://head:8265 --token-file ~/.ray/auth_token
    """
    if slurm == bool(ray):
        raise Invalid("Name one cluster.", fix="Pass --ray ADDRESS or --slurm.")
    if ray and (partition or account or no_shared_folder):
        raise Invalid("--partition, --account and --no-shared-folder are Slurm's, not Ray's.")
    if slurm and token_file:
        raise Invalid("--token-file is Ray's; Slurm knows users by itself.")
    given = {"address": ray, "partition": partition, "account": account}
    given["shared"] = "false" if no_shared_folder else None
    spec = AttachSpec(
        kind="slurm" if slurm else "ray",
        options={key: value for key, value in given.items() if value} | _pairs(options),
        secrets=_read_token(token_file),
        max_nodes=max_nodes,
        resources=NodeResources(cores=cores, memory_gb=memory_gb, gpus=gpus),
    )
    scope = _scope(workspace)
    path = f"{_path(scope, name)}/attach"
    try:
        before = _get(scope, name)
    except NotFound:
        before = None
    record = scope.client.request("POST", path, body=spec, answer=ComputeRecord)
    if as_json:
        console.document(record)
        return
    _say(record)
    if before is not None:
        changed = changes_by(before, record)
        console.note(
            f"'{record.name}' was attached before; "
            + (f"changed: {'; '.join(changed)}." if changed else "nothing else is said of it now.")
        )


@compute.command()
@click.argument("name")
@click.option("--min-nodes", type=int, help="Nodes that never go.")
@click.option("--max-nodes", type=int, help="Never more nodes than these.")
@click.option("--idle-seconds", type=int, help="An idle node goes after so long.")
@_workspace
@json_option
def update(
    name: str,
    min_nodes: int | None,
    max_nodes: int | None,
    idle_seconds: int | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Change the scale of a cluster; what is not given stays.

    \b
    Example:
      runyard compute update cpu-cluster --max-nodes 8
    """
    if min_nodes is None and max_nodes is None and idle_seconds is None:
        raise click.UsageError("Say what to change: --min-nodes, --max-nodes or --idle-seconds.")
    scope = _scope(workspace)
    patch = ComputePatch(min_nodes=min_nodes, max_nodes=max_nodes, idle_seconds=idle_seconds)
    record = scope.client.request("PATCH", _path(scope, name), body=patch, answer=ComputeRecord)
    if as_json:
        console.document(record)
        return
    _say(record)


@compute.command("rm")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Give up its unfinished runs, if its cluster does not come back; they are canceled.",
)
@_workspace
@json_option
def remove(name: str, force: bool, workspace: str | None, as_json: bool) -> None:
    """Remove a cluster, or stop using an attached one.

    No unfinished run may need it. An attached cluster stays as it is.

    \b
    Example:
      runyard compute rm cpu-cluster
    """
    scope = _scope(workspace)
    record = _get(scope, name)
    query = {"force": force or None}
    scope.client.request("DELETE", _path(scope, name), query=query, answer=dict[str, object])
    if as_json:
        console.document({"removed": name})
        return
    stays = "; the cluster itself stays as it is" if record.attached else ""
    console.say(f"removed {record.name}{stays}")


def _scope(workspace: str | None) -> Scope:
    scope = open_scope(workspace)
    if scope.workspace is None:
        raise Invalid(
            "No workspace is named.",
            why="There is no config.json in this folder or above it.",
            fix="Pass --workspace NAME, or make this folder a workspace with: runyard init",
        )
    return scope


def _path(scope: Scope, name: str | None = None) -> str:
    tail = "" if name is None else f"/{quote(name, safe='')}"
    return f"/api/v1/workspaces/{quote(scope.workspace or '', safe='')}/computes{tail}"


def _get(scope: Scope, name: str, *, ask: bool = False) -> ComputeRecord:
    """A target; with `ask` its cluster is asked now whether it can be used."""
    query = {"ask": ask or None}
    return scope.client.request("GET", _path(scope, name), query=query, answer=ComputeRecord)


def _server(scope: Scope) -> ServerInfo:
    return scope.client.request("GET", "/api/v1/server", answer=ServerInfo)


def _local_row(server: ServerInfo) -> list[Cell]:
    """The target that is no cluster, in the columns of those that are."""
    cores = plural(server.machine.cores, "core") if server.machine else "-"
    shown = ("this machine", cores, "-", "-", plural(server.slots, "run"), "-", "-")
    return [Cell(LOCAL, "bold"), *map(Cell, shown)]


def _show_local(server: ServerInfo, *, as_json: bool) -> None:
    machine = server.machine
    if as_json:
        console.document({"name": LOCAL, "slots": server.slots, "machine": machine})
        return
    shown: dict[str, str | Cell] = {"name": Cell(LOCAL, "bold"), "engine": "this machine"}
    if machine is not None:
        shown["cores"] = str(machine.cores)
        shown["memory"] = f"{machine.memory_gb:.1f} GB" if machine.memory_gb else ""
        shown["GPUs"] = ", ".join(machine.gpus) or "none"
    shown["runs at a time"] = f"{server.slots} (RUNYARD_LOCAL_SLOTS)"
    console.fields(shown)


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    """Options given as NAME=VALUE."""
    for text in options:
        if not text.partition("=")[0] or "=" not in text:
            raise Invalid(f"--option {text} is not NAME=VALUE.")
    return {text.partition("=")[0]: text.partition("=")[2] for text in options}


def _read_token(file: str | None) -> dict[str, str]:
    """The secrets that a file holds. A token on the command line would be seen by others."""
    if file is None:
        return {}
    try:
        return {"token": Path(file).expanduser().read_text().strip()}
    except OSError as error:
        raise Invalid(f"The token cannot be read from {file}.", why=f"{error.strerror}.") from None


def _engine(record: ComputeRecord) -> str:
    """Where its nodes come from."""
    if record.engine is None:
        return "this machine"
    where = record.engine.options.get(_main_option(record.engine), "")
    return f"{record.engine.kind} {where}".rstrip()


def _main_option(engine: EngineRef) -> str:
    """The option that shows beside the engine's name."""
    known = CLUSTERS.get(engine.kind)
    return known.main if known is not None else ""


def _more_options(engine: EngineRef) -> str:
    """The options that do not show elsewhere."""
    shown = _main_option(engine)
    return ", ".join(f"{name}={value}" for name, value in sorted(engine.options.items())
                     if name != shown)  # fmt: skip


def changes_by(before: ComputeRecord, now: ComputeRecord) -> list[str]:
    """What another attaching changed, in words."""
    seen = [(_engine(one), one.engine and _more_options(one.engine), _size(one), _limits(one))
            for one in (before, now)]  # fmt: skip
    names = ("cluster", "options", "size", "nodes")
    pairs = zip(names, *seen, strict=True)
    return [f"{name} {old or 'none'} → {new or 'none'}" for name, old, new in pairs if old != new]


def _limits(record: ComputeRecord) -> str:
    return f"{record.min_nodes}–{'any' if record.max_nodes is None else record.max_nodes}"


def _size(record: ComputeRecord) -> str:
    """What a node has, as it was asked for."""
    size, asked = record.size, record.resources
    if record.attached and (asked is None or asked == NodeResources()):
        return "the cluster's"
    gpus = f", {size.gpus} GPU" + ("s" if size.gpus != 1 else "") if size.gpus else ""
    cores = f"{size.cores} core{'' if size.cores == 1 else 's'}" if size.cores else "any cores"
    memory = f"{size.memory_gb:g} GB" if size.memory_gb else "any memory"
    return (f"{size.name}: " if size.name else "") + f"{cores}, {memory}{gpus}"


def _busy(record: ComputeRecord) -> int:
    return sum(node.state is NodeState.RUNNING for node in record.nodes)


def _row(record: ComputeRecord) -> list[Cell]:
    return [
        Cell(record.name, "bold"),
        Cell(_engine(record)),
        Cell(record.size.name or _size(record)),
        Cell(str(len(record.nodes))),
        Cell(str(_busy(record))),
        Cell(_limits(record)),
        Cell("-" if record.engine else render_span(timedelta(seconds=record.idle_seconds))),
        Cell(str(record.allocation)),
    ]


def _say(record: ComputeRecord) -> None:
    limit = "any number" if record.max_nodes is None else str(record.max_nodes)
    shown: dict[str, str | Cell] = {
        "name": Cell(record.name, "bold"),
        "workspace": record.workspace,
        "engine": _engine(record) + (", attached" if record.attached else ""),
        "size": _size(record),
        "nodes": f"{len(record.nodes)} now, {_busy(record)} busy; {record.min_nodes} to {limit}",
    }
    if not record.attached:
        shown["priority"] = str(record.priority)
    if record.engine is None:
        shown["idle nodes go after"] = render_span(timedelta(seconds=record.idle_seconds))
        shown["cores of a node"] = str(record.node_cores)
    elif more := _more_options(record.engine):
        shown["options"] = more
    shown["state"] = str(record.allocation)
    shown["description"] = record.description
    console.fields(shown)
    _warn(record)


def _warn(record: ComputeRecord, whose: str = "") -> None:
    for warning in record.warnings:
        console.note(f"warning: {whose}{warning}", "yellow")


def _say_nodes(record: ComputeRecord) -> None:
    now = datetime.now(UTC)
    rows = [
        [
            Cell(node.id),
            Cell(str(node.state), _COLOURS.get(node.state, "")),
            Cell(render_span(now - node.since)),
            Cell(str(node.cores or "-")),
            Cell(", ".join(node.gpus) or "-"),
            Cell(node.host or "-"),
            Cell(node.run or ""),
        ]
        for node in record.nodes
    ]
    console.table(("NODE", "STATE", "SINCE", "CORES", "GPUS", "HOST", "RUN"), rows)
