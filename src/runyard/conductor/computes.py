"""What users may do to compute targets. Each is safe to repeat.

The conductor keeps the nodes of a target (`conductor.pools`); here are its name, size and scale.
"""

import uuid
from collections.abc import Callable
from datetime import datetime

import msgspec

from runyard.domain.compute import (
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    Machine,
    VmSize,
    check_compute_name,
    check_scale,
)
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale
from runyard.domain.runs import LOCAL, RunKind, RunRecord, ScriptSpec
from runyard.domain.states import ACTIVE
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning.sizes import SIZES, find_size, share_out
from runyard.stores.base import Store, Where, find_all


def compute_id(workspace: WorkspaceRecord, name: str) -> str:
    """The id follows from the names, so that there is one of a name, whoever else makes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/computes/{name.lower()}"))


def load_compute(store: Store, workspace: WorkspaceRecord, name: str) -> ComputeRecord:
    """The target of that name, or `NotFound` that says which there are."""
    try:
        return store.records.get(ComputeRecord, compute_id(workspace, name))
    except NotFound:
        known = [LOCAL, *sorted(one.name for one in list_computes(store, workspace))]
    raise NotFound(
        f"Compute target '{name}' does not exist in workspace '{workspace.name}'.",
        why=f"It has: {', '.join(known)}.",
        fix=f"Create it with: runyard compute create {name} --size STANDARD_D2_V2 --max-nodes 4",
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
) -> ComputeRecord:
    """Make a target. One of that name and size gets the new scale, as v1 did it."""
    check_compute_name(name)
    check_scale(spec.min_nodes, spec.max_nodes, spec.idle_seconds)
    size = find_size(spec.vm_size)
    share = share_out(size, spec.max_nodes, machine)
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
        warnings=share.warnings,
        allocation_since=now,
    )
    try:
        return store.records.insert(record)
    except Conflict:
        there = store.records.get(ComputeRecord, record.id)
    if (there.size.name.upper(), there.priority) != (size.name.upper(), spec.priority):
        raise Conflict(
            f"Compute target '{there.name}' exists already, with another size.",
            why=f"It has {there.priority} nodes of {there.size.name}.",
            fix="Use it as it is, choose another name, or delete it first.",
        )
    patch = ComputePatch(
        min_nodes=spec.min_nodes, max_nodes=spec.max_nodes, idle_seconds=spec.idle_seconds
    )
    return update_compute(store, workspace, there.name, patch, machine, now)


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
        check_scale(changed.min_nodes, changed.max_nodes, changed.idle_seconds)
        if changed == record:
            return record
        share = share_out(record.size, changed.max_nodes, machine)
        return msgspec.structs.replace(
            changed, modified=now, node_cores=share.cores, warnings=share.warnings
        )

    return change(store, load_compute(store, workspace, name).id, how)


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
            why=f"{len(active)} unfinished runs are on it or wait for it: {some}.",
            fix=f"Wait for them, or stop them with: runyard cancel {active[0].id}",
        )
    while True:
        try:
            store.records.delete(record)
            return
        except Stale:
            record = store.records.get(ComputeRecord, record.id)
        except NotFound:
            return


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


def check_target(store: Store, workspace: WorkspaceRecord, script: ScriptSpec) -> None:
    """Refuse a run whose target does not exist or is too small for it."""
    if script.target == LOCAL:
        return
    compute = load_compute(store, workspace, script.target)
    if script.launcher.nodes > compute.max_nodes:
        raise Invalid(
            f"The run needs {script.launcher.nodes} nodes, more than '{compute.name}' may have.",
            why=f"Its max_nodes is {compute.max_nodes}.",
            fix=f"Ask for fewer nodes, or: runyard compute update {compute.name} "
            f"--max-nodes {script.launcher.nodes}",
        )
