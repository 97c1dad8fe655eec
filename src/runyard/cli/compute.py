"""Commands for compute targets: compute ls, show, create, update, rm, nodes."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import click

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option
from runyard.cli.render import render_span
from runyard.cli.scope import Scope, open_scope
from runyard.domain.compute import (
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    NodeState,
    Priority,
)
from runyard.domain.errors import Invalid

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
    if not found:
        console.note("No clusters; runs go to 'local'. Make one: runyard compute create NAME")
        return
    headers = ("NAME", "SIZE", "NODES", "BUSY", "LIMITS", "IDLE AFTER", "STATE")
    console.table(headers, [_row(one) for one in found])


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
    record = _get(_scope(workspace), name)
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
        console.note(f"'{record.name}' has no nodes now; they come up when a run needs them.")


@compute.command()
@click.argument("name")
@click.option("--size", "vm_size", default="", metavar="SIZE", help="A VM size of Azure's.")
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
    scope = _scope(workspace)
    patch = ComputePatch(min_nodes=min_nodes, max_nodes=max_nodes, idle_seconds=idle_seconds)
    record = scope.client.request("PATCH", _path(scope, name), body=patch, answer=ComputeRecord)
    if as_json:
        console.document(record)
        return
    _say(record)


@compute.command("rm")
@click.argument("name")
@_workspace
@json_option
def remove(name: str, workspace: str | None, as_json: bool) -> None:
    """Remove a cluster that no unfinished run needs.

    \b
    Example:
      runyard compute rm cpu-cluster
    """
    scope = _scope(workspace)
    scope.client.request("DELETE", _path(scope, name), answer=dict[str, object])
    if as_json:
        console.document({"removed": name})
        return
    console.say(f"removed {name}")


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


def _get(scope: Scope, name: str) -> ComputeRecord:
    return scope.client.request("GET", _path(scope, name), answer=ComputeRecord)


def _busy(record: ComputeRecord) -> int:
    return sum(node.state is NodeState.RUNNING for node in record.nodes)


def _row(record: ComputeRecord) -> list[Cell]:
    return [
        Cell(record.name, "bold"),
        Cell(record.size.name),
        Cell(str(len(record.nodes))),
        Cell(str(_busy(record))),
        Cell(f"{record.min_nodes}–{record.max_nodes}"),
        Cell(render_span(timedelta(seconds=record.idle_seconds))),
        Cell(str(record.allocation)),
    ]


def _say(record: ComputeRecord) -> None:
    size = record.size
    gpus = f", {size.gpus} GPU" + ("s" if size.gpus != 1 else "") if size.gpus else ""
    console.fields(
        {
            "name": Cell(record.name, "bold"),
            "workspace": record.workspace,
            "size": f"{size.name}: {size.cores} cores, {size.memory_gb:g} GB{gpus}",
            "priority": str(record.priority),
            "nodes": f"{len(record.nodes)} now, {_busy(record)} busy; "
            f"{record.min_nodes} to {record.max_nodes}",
            "idle nodes go after": render_span(timedelta(seconds=record.idle_seconds)),
            "cores of a node": str(record.node_cores),
            "state": str(record.allocation),
            "description": record.description,
        }
    )
    for warning in record.warnings:
        console.note(f"warning: {warning}", "yellow")


def _say_nodes(record: ComputeRecord) -> None:
    now = datetime.now(UTC)
    rows = [
        [
            Cell(node.id),
            Cell(str(node.state), _COLOURS.get(node.state, "")),
            Cell(render_span(now - node.since)),
            Cell(str(node.cores)),
            Cell(", ".join(node.gpus) or "-"),
            Cell(node.run or ""),
        ]
        for node in record.nodes
    ]
    console.table(("NODE", "STATE", "SINCE", "CORES", "GPUS", "RUN"), rows)
