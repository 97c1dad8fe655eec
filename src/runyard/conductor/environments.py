"""The registry of environments: what users may do with it. Each is safe to repeat."""

import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

import msgspec

from runyard.conductor.runs import load_workspace
from runyard.domain.environments import (
    EnvironmentDraft,
    EnvironmentOnDisk,
    EnvironmentRecord,
    EnvironmentSpec,
    Eviction,
    check_environment_name,
)
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale
from runyard.domain.runs import RunKind, RunRecord
from runyard.domain.states import ACTIVE
from runyard.environments.base import Builder, builder_for
from runyard.planning.curated import all_curated, find_curated
from runyard.planning.eviction import plan_eviction
from runyard.stores.base import Store, Where, find_all

LATEST = "latest"  # a label that nobody sets: the newest version has it
_CURATED_SINCE = datetime(2020, 9, 1, tzinfo=UTC)  # when v1's lists were made


def register(
    store: Store, workspace: str, draft: EnvironmentDraft, now: datetime
) -> EnvironmentRecord:
    """Keep the environment as the next version of its name; the newest one if it is the same."""
    known = load_workspace(store, workspace)
    name = check_environment_name(draft.spec.name)
    while True:
        newest = _newest(store, known.name, name)
        if newest is not None and _same(newest, draft):
            return newest
        version = str(1 if newest is None else int(newest.spec.version or 0) + 1)
        record = EnvironmentRecord(
            # The id follows from the name, so that two at once cannot make one version twice.
            id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{known.id}/environments/{name}/{version}")),
            workspace=known.name,
            spec=msgspec.structs.replace(draft.spec, version=version),
            definition=draft.definition,
            created=now,
        )
        try:
            return store.records.insert(record)
        except Conflict:
            continue


def load_environment(
    store: Store, workspace: str, name: str, version: str | None, label: str | None
) -> EnvironmentRecord:
    """That version, the one with that label, or the newest; `NotFound` names what there is."""
    if version is not None and label is not None:
        raise Invalid("Give a version or a label, not both.")
    found = list_versions(store, workspace, name)
    for record in found:
        if version == record.spec.version or (label is not None and label in record.labels):
            return record
    if version is None and label in (None, LATEST):
        return found[0]
    what = f"version {version}" if version is not None else f"version with the label '{label}'"
    known = ", ".join(str(record.spec.version) for record in reversed(found[:20]))
    raise NotFound(
        f"Environment '{name}' has no {what}.", why=f"It has: {known}.", fix="Ask for one of these."
    )


def list_versions(store: Store, workspace: str, name: str) -> Sequence[EnvironmentRecord]:
    """Every version of an environment, newest first; `NotFound` if there is none."""
    known = load_workspace(store, workspace)
    if (spec := find_curated(name)) is not None:
        return [_curated(known.name, spec)]
    found = list(find_all(store.records, EnvironmentRecord, Where(workspace=known.name, name=name)))
    if found:
        return found
    near = get_close_matches(name, [one.name for one in list_environments(store, workspace)], 3)
    raise NotFound(
        f"Environment '{name}' does not exist in workspace '{workspace}'.",
        why=f"The nearest names are: {', '.join(near)}." if near else "",
        fix="See what there is with: runyard env ls --names",
    )


def list_environments(store: Store, workspace: str) -> Sequence[EnvironmentRecord]:
    """The newest version of every environment: the workspace's own, then the curated ones."""
    known = load_workspace(store, workspace)
    newest: dict[str, EnvironmentRecord] = {}
    for record in find_all(store.records, EnvironmentRecord, Where(workspace=known.name)):
        newest.setdefault(record.name, record)
    return [*newest.values(), *(_curated(known.name, spec) for spec in all_curated())]


def set_labels(
    store: Store, workspace: str, name: str, version: str, labels: Sequence[str]
) -> EnvironmentRecord:
    """Give a version these labels; a label that another version has moves."""
    if LATEST in labels:
        raise Invalid(f"The label '{LATEST}' cannot be set.", why="The newest version has it.")
    load_environment(store, workspace, name, version, None)
    if find_curated(name) is not None:
        raise Invalid(f"The curated environment '{name}' cannot be labelled.")
    for other in list_versions(store, workspace, name):
        mine = other.spec.version == version
        _relabel(store, other.id, add=labels if mine else (), remove=() if mine else labels)
    return load_environment(store, workspace, name, version, None)


def runs_by_key(store: Store, builders: Sequence[Builder]) -> dict[str, list[str]]:
    """Unfinished runs by the key of the environment that they use, or wait for."""
    found: dict[str, list[str]] = {}
    for run in find_all(store.records, RunRecord, Where(states=ACTIVE, kind=RunKind.SCRIPT)):
        if run.environment is not None:
            key = run.environment.key
        elif run.spec.script is not None:
            spec = run.spec.script.environment
            key = builder_for(spec, builders).key(spec)
        else:
            continue
        found.setdefault(key, []).append(run.id)
    return found


def mark_use(
    store: Store, builders: Sequence[Builder], shelf: Sequence[EnvironmentOnDisk]
) -> list[EnvironmentOnDisk]:
    """The built environments with the unfinished runs that use them."""
    using = runs_by_key(store, builders)
    return [msgspec.structs.replace(one, runs=tuple(using.get(one.key, ()))) for one in shelf]


def choose_eviction(
    shelf: Sequence[EnvironmentOnDisk], eviction: Eviction, now: datetime
) -> list[EnvironmentOnDisk]:
    """Those of a shelf with marked use that are to go."""
    if eviction.keep_days is None and eviction.max_gb is None:
        raise Invalid(
            "Nothing says which environments may go.",
            fix="Give keep_days, or max_gb, or both.",
        )
    if min(eviction.keep_days or 0, eviction.max_gb or 0) < 0:
        raise Invalid("keep_days and max_gb cannot be negative.")
    return plan_eviction(
        shelf,
        {one.key for one in shelf if one.runs},
        now,
        keep_days=eviction.keep_days,
        max_bytes=None if eviction.max_gb is None else eviction.max_gb * 1e9,
    )


def _relabel(store: Store, id: str, *, add: Collection[str], remove: Collection[str]) -> None:
    while True:
        record = store.records.get(EnvironmentRecord, id)
        kept = [label for label in record.labels if label not in remove]
        changed = msgspec.structs.replace(record, labels=tuple(dict.fromkeys([*kept, *add])))
        if changed == record:
            return
        try:
            store.records.replace(changed)
            return
        except Stale:
            continue


def _newest(store: Store, workspace: str, name: str) -> EnvironmentRecord | None:
    found, _ = store.records.find(EnvironmentRecord, Where(workspace=workspace, name=name), limit=1)
    return found[0] if found else None


def _same(record: EnvironmentRecord, draft: EnvironmentDraft) -> bool:
    spec = msgspec.structs.replace(draft.spec, version=record.spec.version)
    return spec == record.spec and draft.definition == record.definition


def _curated(workspace: str, spec: EnvironmentSpec) -> EnvironmentRecord:
    return EnvironmentRecord(
        id=f"curated/{spec.name}",
        workspace=workspace,
        spec=spec,
        created=_CURATED_SINCE,
        curated=True,
    )
