"""What users and agents may do to a run. Each is safe to repeat.

A change is a pure function of the record (`planning.lifecycle`), stored by compare-and-set and
tried again if somebody else was quicker.
"""

import re
import secrets
import uuid
from collections.abc import Callable
from datetime import datetime

import msgspec

from runyard.conductor import computes, data
from runyard.domain.agents import AgentOrders, AgentReport
from runyard.domain.compute import EngineRef, Machine
from runyard.domain.errors import BlobsMissing, Conflict, Invalid, NotFound, Stale, Unsupported
from runyard.domain.files import (
    Manifest,
    decode_manifest,
    encode_manifest,
    is_digest,
    manifest_digest,
)
from runyard.domain.runs import (
    LOCAL,
    LauncherSpec,
    RunError,
    RunKind,
    RunPatch,
    RunRecord,
    RunSpec,
    ScriptSpec,
    Submission,
    process_names,
)
from runyard.domain.states import ACTIVE, TERMINAL, RunState
from runyard.domain.workspaces import (
    ExperimentRecord,
    WorkspaceRecord,
    check_experiment_name,
    check_run_id,
)
from runyard.engines.base import Capabilities
from runyard.planning import lifecycle
from runyard.planning.sizes import crowding
from runyard.stores.base import Store, Where, find_all
from runyard_runtime import launchers


def _one_node(engine: EngineRef | None) -> Capabilities:
    return Capabilities(shared_folder=True)  # an engine that can do nothing but start


def submit(
    store: Store,
    submission: Submission,
    now: datetime,
    capabilities_of: Callable[[EngineRef | None], Capabilities] = _one_node,
    machine: Machine | None = None,
    check_room: computes.CheckRoom = computes.any_room,
) -> RunRecord:
    """Keep a new run, ready to be taken up by the conductor, if its target's engine can do it.

    `machine` is what the target `local` is, for a warning to who asks too much of it.
    """
    spec = submission.spec
    workspace = load_workspace(store, spec.workspace)
    ensure_experiment(store, workspace, spec.experiment, now)
    if spec.parent is not None:
        parent = store.records.get(RunRecord, spec.parent)
        if parent.spec.workspace != spec.workspace:
            raise Invalid(f"Run '{spec.parent}' is in another workspace.")
    used: dict[str, str] = {}
    if spec.script is not None:
        _check_script(spec.script)
        computes.check_target(store, workspace, spec.script, capabilities_of, check_room)
        used = data.check_script(store, workspace, spec.script)
        keep_snapshot(store, spec.script.snapshot, submission.manifest)
    kind = RunKind.SCRIPT if spec.script is not None else RunKind.INTERACTIVE
    run = new_run(msgspec.structs.replace(spec, kind=kind), now)
    if used:
        run = msgspec.structs.replace(run, properties={**run.properties, **used})
    if spec.script is not None and spec.script.target == LOCAL and machine is not None:
        processes = len(process_names(spec.script.launcher))
        run = msgspec.structs.replace(run, warnings=crowding(processes, machine))
    return store.records.insert(run)


def new_run(spec: RunSpec, now: datetime) -> RunRecord:
    """The first record of a run: a script waits to be taken up, anything else is running."""
    run = RunRecord(
        id=check_run_id(spec.id) if spec.id else _new_id(spec, now),
        uid=uuid.uuid4().hex,
        spec=spec,
        created=now,
        tags=dict(spec.tags),
        properties=dict(spec.properties),
        display_name=spec.display_name or "",
        waiting="waits to be prepared" if spec.script is not None else "",
    )
    return run if spec.script is not None else lifecycle.move(run, RunState.RUNNING, now=now)


def _new_id(spec: RunSpec, now: datetime) -> str:
    if spec.script is None:
        return str(uuid.uuid4())
    return f"{spec.experiment}_{int(now.timestamp())}_{secrets.token_hex(4)}"


def load_workspace(store: Store, name: str) -> WorkspaceRecord:
    """The workspace of that name, or `NotFound` that says which there are."""
    found, _ = store.records.find(WorkspaceRecord, Where(name=name), limit=1)
    if found:
        return found[0]
    others, _ = store.records.find(WorkspaceRecord, Where(), limit=10)
    known = ", ".join(sorted(other.name for other in others))
    raise NotFound(
        f"Workspace '{name}' does not exist.",
        why=f"This server has: {known or 'none yet'}.",
        fix=f"Make it with: runyard init {name}",
    )


def ensure_experiment(
    store: Store, workspace: WorkspaceRecord, name: str, now: datetime
) -> ExperimentRecord:
    """The experiment of that name, made if it is new."""
    check_experiment_name(name)
    where = Where(workspace=workspace.name, name=name)
    found, _ = store.records.find(ExperimentRecord, where, limit=1)
    if found:
        return found[0]
    # The id follows from the names, so that two who make it at once make the same one.
    id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/{name}"))
    try:
        return store.records.insert(
            ExperimentRecord(id=id, workspace=workspace.name, name=name, created=now)
        )
    except Conflict:
        return store.records.get(ExperimentRecord, id)


_PLAIN_PART = re.compile(r"[^/\x00]+")


MAX_NODES = 10_000
MAX_PROCESSES = 100_000  # of all nodes together: each is planned, and has a log
MAX_RESTARTS = 100  # every attempt stays in the run's record


def _check_script(script: ScriptSpec) -> None:
    """Refuse at submit what could only fail later."""
    launcher = script.launcher
    if not script.arguments:
        raise Invalid("There is nothing to run: neither a script nor a command.")
    for_scripts = sorted(set(launchers.LAUNCHERS) - {launchers.SERVICE})
    if launcher.kind not in for_scripts:
        raise Unsupported(
            f"There is no launcher '{launcher.kind}'.",
            why=f"This server starts: {', '.join(for_scripts)}.",
            fix="Use MpiConfiguration, TensorflowConfiguration or PyTorchConfiguration.",
        )
    if not 1 <= launcher.nodes <= MAX_NODES:
        raise Invalid(f"A run has 1 to {MAX_NODES} nodes, not {launcher.nodes}.")
    _check_processes(launcher)
    if not 0 <= script.max_restarts <= MAX_RESTARTS:
        raise Invalid(
            f"max_restarts={script.max_restarts} makes no sense.",
            why=f"It is a whole number from 0 to {MAX_RESTARTS}.",
        )


def _check_processes(launcher: LauncherSpec) -> None:
    for name, least in (("processes_per_node", 1), ("workers", 1), ("parameter_servers", 0)):
        if (value := getattr(launcher, name)) < least:
            raise Invalid(f"A run has at least {least} {name}, not {value}.")
    each = launcher.nodes * launcher.processes_per_node
    if max(each, launcher.workers + launcher.parameter_servers) > MAX_PROCESSES:
        raise Invalid(
            f"A run has at most {MAX_PROCESSES} processes.",
            fix="Ask for fewer nodes, processes_per_node, workers or parameter_servers.",
        )


def check_manifest(manifest: Manifest) -> None:
    """Refuse a tree whose names would leave it, or that has a name twice."""
    seen: set[str] = set()
    for entry in manifest:
        parts = entry.path.split("/")
        plain = all(_PLAIN_PART.fullmatch(part) and part not in (".", "..") for part in parts)
        if not plain or not is_digest(entry.digest) or entry.size < 0:
            raise Invalid(f"The file entry {entry.path!r} is not a plain relative path.")
        if entry.path in seen:
            raise Invalid(f"The file {entry.path!r} is listed twice.")
        seen.add(entry.path)


def keep_snapshot(store: Store, snapshot: str, manifest: Manifest | None) -> None:
    """Make sure that the source tree is here, whole, before a run refers to it."""
    if not is_digest(snapshot):
        raise Invalid(f"{snapshot!r} is not a snapshot id.")
    if not store.blobs.missing([snapshot]):
        _check_stored_tree(store, snapshot)
        return  # we wrote it after all its files, so they are here too
    if manifest is None:
        raise NotFound(f"Snapshot '{snapshot}' does not exist.")
    check_manifest(manifest)
    if manifest_digest(manifest) != snapshot:
        raise Invalid("The snapshot id does not belong to the files that were sent with it.")
    missing = store.blobs.missing({entry.digest for entry in manifest})
    if missing:
        raise BlobsMissing(
            f"{len(missing)} files of the snapshot are not on the server.",
            fix="Upload them, then submit again.",
            digests=tuple(missing),
        )
    store.blobs.put(snapshot, [encode_manifest(manifest)])


def _check_stored_tree(store: Store, snapshot: str) -> None:
    """A blob of that name may be anything: somebody may have uploaded it."""
    try:
        check_manifest(decode_manifest(b"".join(store.blobs.open(snapshot))))
    except msgspec.DecodeError:
        raise Invalid(
            f"'{snapshot}' is not a snapshot.", why="The content of that name is no file tree."
        ) from None


def change(store: Store, run_id: str, how: Callable[[RunRecord], RunRecord]) -> RunRecord:
    """Apply a pure change to a run, again if somebody else changed it meanwhile."""
    while True:
        run = store.records.get(RunRecord, run_id)
        changed = how(run)
        if changed == run:
            return run
        try:
            return store.records.replace(changed)
        except Stale:
            continue


def cancel(store: Store, run_id: str, now: datetime) -> RunRecord:
    """Ask for the run's end; a run that is over stays as it is."""
    return change(store, run_id, lambda run: lifecycle.request_cancel(run, now))


def give_up(store: Store, run_id: str, now: datetime) -> RunRecord:
    """End the run here without waiting for its cluster; on this machine it is just canceled."""

    def how(run: RunRecord) -> RunRecord:
        workspace = load_workspace(store, run.spec.workspace)
        is_elsewhere = computes.is_elsewhere(store, workspace, run)
        return (lifecycle.give_up if is_elsewhere else lifecycle.request_cancel)(run, now)

    return change(store, run_id, how)


def load_unfinished(store: Store) -> list[RunRecord]:
    """Every run that the platform has something to do for: services first, then as they came."""
    return [
        run
        for kind in (RunKind.SERVICE, RunKind.SCRIPT)
        for run in list(find_all(store.records, RunRecord, Where(states=ACTIVE, kind=kind)))[::-1]
    ]


def complete(store: Store, run_id: str, now: datetime) -> RunRecord:
    """The owner of the run says that it is done."""
    return change(store, run_id, lambda run: lifecycle.request_end(run, RunState.COMPLETED, now))


def fail(store: Store, run_id: str, error: RunError, now: datetime) -> RunRecord:
    """The owner of the run says that it failed."""
    return change(
        store, run_id, lambda run: lifecycle.request_end(run, RunState.FAILED, now, error)
    )


def patch(store: Store, run_id: str, patch: RunPatch) -> RunRecord:
    """Change the run's labels; `Conflict` if a property is there already with another value."""

    def how(run: RunRecord) -> RunRecord:
        for key, value in patch.add_properties.items():
            if run.properties.get(key, value) != value:
                raise Conflict(
                    f"Run '{run.id}' has the property '{key}' already.",
                    why="Properties cannot be changed once they are set.",
                    fix="Use a tag for what changes.",
                )
        tags = {key: value for key, value in run.tags.items() if key not in patch.remove_tags}
        name = run.display_name if patch.display_name is None else patch.display_name
        return msgspec.structs.replace(
            run,
            display_name=name,
            tags={**tags, **patch.set_tags},
            properties={**run.properties, **patch.add_properties},
        )

    return change(store, run_id, how)


def report(store: Store, run_id: str, report: AgentReport, now: datetime) -> AgentOrders:
    """Take what an agent says; the answer tells it whether to go on."""

    def how(before: RunRecord) -> RunRecord:
        after = lifecycle.apply_report(before, report, now)
        if after.state is RunState.COMPLETED and before.state not in TERMINAL:
            # Before anybody sees the run completed: then its outputs are to be had.
            workspace = load_workspace(store, after.spec.workspace)
            return data.register_outputs(store, workspace, after, now)
        return after

    run = change(store, run_id, how)
    over = run.state in TERMINAL or run.state is RunState.CANCEL_REQUESTED
    return AgentOrders(stop=over or report.attempt != run.attempt)
