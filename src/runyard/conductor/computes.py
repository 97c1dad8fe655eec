"""What users may do to compute targets. Each is safe to repeat.

The conductor keeps the nodes of a target (`conductor.pools`); here are its name, size and scale.
"""

import uuid
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches

import msgspec

from runyard.data.sealing import seal
from runyard.domain.compute import (
    AttachSpec,
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    EngineRef,
    Machine,
    NodeResources,
    VmSize,
    check_compute_name,
    check_scale,
)
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale, Unsupported
from runyard.domain.runs import LOCAL, RunKind, RunRecord, ScriptSpec, plural
from runyard.domain.states import ACTIVE
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import Capabilities
from runyard.planning.node_environments import spec_for_nodes, without_wish_for_container
from runyard.planning.pools import is_over
from runyard.planning.sizes import SIZES, Share, find_size, share_out
from runyard.stores.base import Store, Where, find_all


def compute_id(workspace: WorkspaceRecord, name: str) -> str:
    """The id follows from the names, so that there is one of a name, whoever else makes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/computes/{name.lower()}"))


def has_compute(store: Store, workspace: WorkspaceRecord, name: str) -> bool:
    """Whether there is a target of that name."""
    try:
        store.records.get(ComputeRecord, compute_id(workspace, name))
    except NotFound:
        return False
    return True


def load_compute(store: Store, workspace: WorkspaceRecord, name: str) -> ComputeRecord:
    """The target of that name, or `NotFound` that says which there are."""
    try:
        return store.records.get(ComputeRecord, compute_id(workspace, name))
    except NotFound:
        known = [LOCAL, *sorted(one.name for one in list_computes(store, workspace))]
    if name.lower() == LOCAL:
        raise NotFound(
            f"The compute target '{LOCAL}' is no cluster, but the server's machine itself.",
            why="It is always there, and has no size, nodes or scale to look at or change.",
            fix=f"Send runs there by its name, compute_target='{LOCAL}', or leave the target out.",
        )
    near = get_close_matches(name.lower(), [one.lower() for one in known], 1)
    likely = next((one for one in known if one.lower() in near), "")
    create = f"runyard compute create {name} --size STANDARD_D2_V2 --max-nodes 4"
    raise NotFound(
        f"Compute target '{name}' does not exist in workspace '{workspace.name}'.",
        why=f"It has: {', '.join(known)}.",
        fix=f"Did you mean '{likely}'? If not, make it with: {create}"
        if likely
        else f"Use one of these, or make it with: {create}",
    )


def list_computes(store: Store, workspace: WorkspaceRecord | None) -> list[ComputeRecord]:
    """All targets of a workspace, oldest first; None: of every workspace."""
    where = Where(workspace=workspace.name if workspace else None)
    return list(find_all(store.records, ComputeRecord, where))[::-1]


def list_sizes() -> list[VmSize]:
    """The sizes that a target can have."""
    return list(SIZES.values())


def create_compute(
    store: Store,
    workspace: WorkspaceRecord,
    name: str,
    spec: ComputeSpec,
    machine: Machine,
    now: datetime,
    engine: EngineRef | None = None,
    warnings: tuple[str, ...] = (),
) -> ComputeRecord:
    """Make a target whose nodes come from that engine, by default from this machine.

    One of that name and size gets the new scale, as v1 did it, and what opens its cluster now.
    """
    check_compute_name(name)
    check_scale(spec.min_nodes, spec.max_nodes, spec.idle_seconds)
    size = find_size(spec.vm_size)
    share = _share(size, spec.max_nodes, machine, engine)
    record = ComputeRecord(
        id=compute_id(workspace, name),
        workspace=workspace.name,
        name=name,
        created=now,
        modified=now,
        size=size,
        priority=spec.priority,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        idle_seconds=spec.idle_seconds,
        node_cores=share.cores,
        description=spec.description,
        tags=spec.tags,
        details=spec.details,
        warnings=(*share.warnings, *_scale_warnings(spec, engine), *warnings),
        allocation_since=now,
        engine=engine,
        resources=None if engine is None else resources_of(size),
    )
    try:
        return store.records.insert(record)
    except Conflict:
        there = store.records.get(ComputeRecord, record.id)
    _refuse_attached(there, "It is an attached cluster, which has no size.")
    if (there.size.name.upper(), there.priority) != (size.name.upper(), spec.priority):
        raise Conflict(
            f"Compute target '{there.name}' exists already, with another size.",
            why=f"It has {there.priority} nodes of {there.size.name}.",
            fix="Use it as it is, choose another name, or delete it first.",
        )
    patch = ComputePatch(
        min_nodes=spec.min_nodes, max_nodes=spec.max_nodes, idle_seconds=spec.idle_seconds
    )
    if engine is not None:
        change(store, there.id, lambda found: _opened_by(found, engine))
    return update_compute(store, workspace, there.name, patch, machine, now)


def _opened_by(record: ComputeRecord, engine: EngineRef) -> ComputeRecord:
    """The target with what opens its cluster now, if it is that cluster."""
    there = record.engine
    if there is None or (there.kind, there.options) != (engine.kind, engine.options):
        return record
    return msgspec.structs.replace(record, engine=engine)


def _scale_warnings(spec: ComputeSpec, engine: EngineRef | None) -> tuple[str, ...]:
    """Words for who sets a scale that means nothing on a cluster elsewhere."""
    usual = ComputeSpec(max_nodes=0)
    if engine is None or (spec.min_nodes, spec.idle_seconds) == (0, usual.idle_seconds):
        return ()
    return (
        f"min_nodes and idle_seconds are kept, but mean nothing: nodes come from {engine.kind}, "
        "which keeps them by itself.",
    )


def attach_compute(
    store: Store,
    workspace: WorkspaceRecord,
    name: str,
    spec: AttachSpec,
    secret: bytes,
    now: datetime,
    warnings: tuple[str, ...] = (),
) -> ComputeRecord:
    """Make a target of a cluster that exists; attaching it again changes how it is used.

    Which cluster it is can only be changed while no unfinished run is on it.
    """
    planned = plan_attached(workspace, name, spec, secret, now)
    record = msgspec.structs.replace(planned, warnings=warnings)
    try:
        return store.records.insert(record)
    except Conflict:
        there = store.records.get(ComputeRecord, record.id)
    if not there.attached or there.engine is None or there.engine.kind != spec.kind:
        raise Conflict(
            f"Compute target '{there.name}' exists already, and is something else.",
            why="It is attached to another kind of cluster."
            if there.attached
            else f"It has nodes of {there.size.name}.",
            fix="Choose another name, or remove it first.",
        )
    if there.engine.options != spec.options and active_runs(store, there):
        raise Conflict(
            f"Compute target '{there.name}' is in use.",
            why="Unfinished runs are on the cluster that it stands for now.",
            fix="Wait for them, or attach the other cluster under another name.",
        )

    def how(now_there: ComputeRecord) -> ComputeRecord:
        return msgspec.structs.replace(
            now_there,
            modified=now,
            engine=record.engine,
            max_nodes=record.max_nodes,
            resources=record.resources,
            size=record.size,
            node_cores=record.node_cores,
            description=record.description,
            tags=record.tags,
            warnings=record.warnings,
        )

    return change(store, there.id, how)


def plan_attached(
    workspace: WorkspaceRecord, name: str, spec: AttachSpec, secret: bytes, now: datetime
) -> ComputeRecord:
    """The record of a cluster that is to be attached, its secrets sealed; `Invalid` if wrong."""
    check_compute_name(name)
    _check_attached_scale(name, spec.max_nodes)
    asked = spec.resources
    for what, value, least in (
        ("cores", asked.cores, 1),
        ("memory_gb", asked.memory_gb, 0),
        ("gpus", asked.gpus, 0),
    ):
        if value is not None and value < least:
            raise Invalid(f"{what}={value} makes no sense for a node.")
    cores, memory_gb, gpus = asked.cores or 0, asked.memory_gb or 0.0, asked.gpus or 0
    return ComputeRecord(
        id=compute_id(workspace, name),
        workspace=workspace.name,
        name=name,
        created=now,
        modified=now,
        size=VmSize(name="", cores=cores, memory_gb=memory_gb, gpus=gpus),
        max_nodes=spec.max_nodes,
        node_cores=cores,
        description=spec.description,
        tags=spec.tags,
        allocation_since=now,
        engine=EngineRef(kind=spec.kind, options=spec.options, secret=seal(spec.secrets, secret)),
        attached=True,
        resources=asked,
    )


def asked_of(spec: ComputeSpec) -> NodeResources:
    """What each node of a target must have that is to be made."""
    return resources_of(find_size(spec.vm_size))


def resources_of(size: VmSize) -> NodeResources:
    """What a node of a size must have."""
    return NodeResources(cores=size.cores, memory_gb=size.memory_gb, gpus=size.gpus)


def _share(size: VmSize, nodes: int | None, machine: Machine, engine: EngineRef | None) -> Share:
    """What each node gets: of an engine elsewhere what its size says, else a share of this."""
    if engine is not None:
        return Share(cores=size.cores, gpus=size.gpus)
    return share_out(size, nodes or 0, machine)


def _refuse_attached(record: ComputeRecord, why: str) -> None:
    if record.attached:
        raise Conflict(
            f"Compute target '{record.name}' exists already, and is something else.",
            why=why,
            fix="Choose another name, or remove it first.",
        )


def update_compute(
    store: Store,
    workspace: WorkspaceRecord,
    name: str,
    patch: ComputePatch,
    machine: Machine,
    now: datetime,
) -> ComputeRecord:
    """Change the scale of a target; nodes that work go on with what they have."""

    def how(record: ComputeRecord) -> ComputeRecord:
        given = {key: value for key, value in msgspec.structs.asdict(patch).items()
                 if value is not None}  # fmt: skip
        changed = msgspec.structs.replace(record, **given)
        if record.attached:
            _check_attached_scale(name, changed.max_nodes, patch)
        check_scale(changed.min_nodes, changed.max_nodes, changed.idle_seconds)
        if changed == record:
            return record
        share = _share(record.size, changed.max_nodes, machine, record.engine)
        warnings = share.warnings if record.engine is None else record.warnings
        return msgspec.structs.replace(
            changed, modified=now, node_cores=share.cores, warnings=warnings
        )

    return change(store, load_compute(store, workspace, name).id, how)


def _check_attached_scale(
    name: str, max_nodes: int | None, patch: ComputePatch | None = None
) -> None:
    if max_nodes is not None and max_nodes < 1:
        raise Invalid(
            f"max_nodes={max_nodes} leaves no node of '{name}' to any run.",
            fix="Give 1 or more, or nothing: then runs take what the cluster gives.",
        )
    if patch is not None and (patch.min_nodes or patch.idle_seconds is not None):
        raise Invalid(
            f"Of '{name}' only max_nodes can be changed.",
            why="It is an attached cluster, which keeps its nodes by itself.",
        )


def change(store: Store, id: str, how: Callable[[ComputeRecord], ComputeRecord]) -> ComputeRecord:
    """Apply a pure change to a target, again if somebody else changed it meanwhile."""
    while True:
        record = store.records.get(ComputeRecord, id)
        changed = how(record)
        if changed == record:
            return record
        try:
            return store.records.replace(changed)
        except Stale:
            continue


def delete_compute(store: Store, workspace: WorkspaceRecord, name: str) -> None:
    """Remove a target that no unfinished run needs."""
    record = load_compute(store, workspace, name)
    active = active_runs(store, record)
    if active:
        some = ", ".join(run.id for run in active[:3]) + (", …" if len(active) > 3 else "")
        raise Conflict(
            f"Compute target '{record.name}' is in use.",
            why=f"{plural(len(active), 'unfinished run')} on it, or waiting for it: {some}.",
            fix=f"Wait until they are over, or stop them with: runyard cancel {active[0].id}"
            + _way_out(record),
        )
    while True:
        try:
            store.records.delete(record)
            return
        except Stale:
            record = store.records.get(ComputeRecord, record.id)
        except NotFound:
            return


def _way_out(record: ComputeRecord) -> str:
    """What to do where the cluster may never answer again."""
    if record.engine is None:
        return ""
    return (
        ". If its cluster does not come back, give them up with: "
        f"runyard compute rm --force {record.name}"
    )


def clear_workspace(store: Store, workspace: WorkspaceRecord) -> None:
    """Remove all targets of a workspace that is going away."""
    for record in list_computes(store, workspace):
        delete_compute(store, workspace, record.name)


def active_runs(store: Store, compute: ComputeRecord) -> list[RunRecord]:
    """The unfinished runs on a target, oldest first."""
    where = Where(workspace=compute.workspace, states=ACTIVE, kind=RunKind.SCRIPT)
    found = find_all(store.records, RunRecord, where)
    return [run for run in found if target_name(run).lower() == compute.name.lower()][::-1]


def target_name(run: RunRecord) -> str:
    """The target that a run asks for."""
    return run.spec.script.target if run.spec.script is not None else ""


def is_elsewhere(store: Store, workspace: WorkspaceRecord, run: RunRecord) -> bool:
    """True if the run's nodes are a cluster's, not this machine's."""
    try:
        found = store.records.get(ComputeRecord, compute_id(workspace, target_name(run)))
    except NotFound:
        return False
    return found.engine is not None


# Raises if a cluster will never have so many nodes of that kind.
CheckRoom = Callable[[EngineRef, int, NodeResources | None], None]


def any_room(engine: EngineRef, nodes: int, each: NodeResources | None) -> None:
    """Take for granted that there is room."""


def check_target(
    store: Store,
    workspace: WorkspaceRecord,
    script: ScriptSpec,
    capabilities_of: Callable[[EngineRef | None], Capabilities],
    check_room: CheckRoom = any_room,
) -> None:
    """Refuse a run whose target does not exist, is too small for it, or cannot do what it needs."""
    nodes, target = script.launcher.nodes, script.target
    if target == LOCAL:
        _check_abilities(script, target, capabilities_of(None), None)
        return
    compute = load_compute(store, workspace, target)
    if is_over(compute.max_nodes, nodes):
        raise Invalid(
            f"The run needs {nodes} nodes, more than '{compute.name}' may have.",
            why=f"Its max_nodes is {compute.max_nodes}.",
            fix=f"Ask for fewer nodes, or: runyard compute update {compute.name} "
            f"--max-nodes {nodes}",
        )
    _check_abilities(script, compute.name, capabilities_of(compute.engine), compute.resources)
    if compute.engine is not None:
        check_room(compute.engine, nodes, compute.resources)


def _check_abilities(
    script: ScriptSpec, target: str, can: Capabilities, resources: NodeResources | None
) -> None:
    nodes = script.launcher.nodes
    if nodes > 1 and not can.multi_node:
        raise Unsupported(
            f"A run cannot have {nodes} nodes on '{target}'.",
            why="Its engine starts all processes on one node.",
            fix="Ask for one node; it may have several processes.",
        )
    if resources is not None and resources.gpus and not can.gpus:
        raise Unsupported(
            f"'{target}' cannot give its nodes {resources.gpus} GPU"
            f"{'' if resources.gpus == 1 else 's'}.",
            why="Its cluster has none, or does not hand them out.",
            fix="Choose a size without GPUs, or another target.",
        )
    if not can.shared_folder:
        spec_for_nodes(script.environment)
    elif not can.containers:
        without_wish_for_container(script.environment)
