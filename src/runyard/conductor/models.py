"""The model registry: what may be done to models, and where they come from.

A model refers to contents by their digests; those of a run's artifacts are the same contents, so
registering out of a run copies nothing. Contents are never removed, with a run or otherwise: a
clean-up that removes any must first ask `ModelRecord`s for theirs.
"""

import itertools
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches

import msgspec

from runyard.conductor.runs import check_manifest, load_workspace
from runyard.domain.data import DatasetRecord
from runyard.domain.errors import (
    BlobsMissing,
    Conflict,
    Invalid,
    NoModelFiles,
    NotFound,
    Stale,
)
from runyard.domain.files import FileEntry, Manifest
from runyard.domain.models import (
    DATASET_KEY,
    FRAMEWORK_KEY,
    LineageDataset,
    ModelDataset,
    ModelDraft,
    ModelLineage,
    ModelPage,
    ModelPatch,
    ModelRecord,
    check_framework,
    check_model_files,
    check_model_name,
    check_resources,
    known_framework,
    model_label,
    pick_files,
)
from runyard.domain.runs import RunRecord
from runyard.domain.workspaces import WorkspaceRecord
from runyard.stores.base import Store, Where, change_record, find_all

FILES_NAMED = 20  # of a run, in an error


class ModelSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Which models to find; what is None or empty does not narrow the search."""

    workspace: str | None = None
    name: str | None = None
    number: int | None = None
    run: str | None = None
    framework: str | None = None
    dataset: str | None = None  # a DatasetRecord's id: what the model or its run was given
    tags: Mapping[str, str | None] = {}
    properties: Mapping[str, str | None] = {}
    latest: bool = False  # of each name only the newest of those that match


def register(store: Store, draft: ModelDraft, now: datetime) -> ModelRecord:
    """Keep a model as the next version of its name. Safe to repeat with the same `draft.id`."""
    check_model_name(draft.name)
    workspace = load_workspace(store, draft.workspace)
    if draft.id is not None and (kept := _kept(store, draft)) is not None:
        return kept
    check_framework(draft.framework, draft.framework_version)
    check_resources(draft.resources)
    _check_datasets(store, workspace, draft)
    run = None if draft.run is None else _load_run(store, workspace, draft.run)
    manifest, is_folder = _files(store, draft, run)
    inputs: tuple[ModelDataset, ...] = ()
    if run is not None and run.spec.script is not None:
        inputs = tuple(
            ModelDataset(purpose=one.name, dataset=one.dataset)
            for one in run.spec.script.inputs
            if one.dataset is not None
        )
    record = ModelRecord(
        id=draft.id or uuid.uuid4().hex,
        workspace=workspace.name,
        name=draft.name,
        manifest=manifest,
        size=sum(entry.size for entry in manifest),
        created=now,
        run=draft.run,
        experiment=None if run is None else run.spec.experiment,
        description=draft.description,
        tags=draft.tags,
        properties=draft.properties,
        framework=None if draft.framework is None else known_framework(draft.framework),
        framework_version=draft.framework_version,
        resources=draft.resources,
        datasets=draft.datasets,
        inputs=inputs,
        sample_input=draft.sample_input,
        sample_output=draft.sample_output,
        is_folder=is_folder,
        created_by=draft.created_by or ("" if run is None else run.spec.submitted_by),
    )
    try:
        return store.records.insert(record)
    except Conflict:  # the same request, twice at the same time
        if (kept := _kept(store, draft)) is not None:
            return kept
        raise


def _kept(store: Store, draft: ModelDraft) -> ModelRecord | None:
    """What an earlier request of the same id has made."""
    assert draft.id is not None
    try:
        kept = store.records.get(ModelRecord, draft.id)
    except NotFound:
        return None
    if (kept.workspace, kept.name) != (draft.workspace, draft.name):
        raise Conflict(f"'{draft.id}' is the id of another model.", fix="Choose another id.")
    return kept


def _load_run(store: Store, workspace: WorkspaceRecord, run_id: str) -> RunRecord:
    run = store.records.get(RunRecord, run_id)
    if run.spec.workspace != workspace.name:
        raise Invalid(
            f"Run '{run_id}' is in another workspace.",
            fix=f"Register the model in '{run.spec.workspace}'.",
        )
    return run


def _files(store: Store, draft: ModelDraft, run: RunRecord | None) -> tuple[Manifest, bool]:
    """The files that the draft means: sent with it, or of the run."""
    if draft.manifest is not None:
        manifest = tuple(sorted(draft.manifest))
        check_manifest(manifest)
        check_model_files(manifest, is_folder=draft.is_folder)
        if missing := store.blobs.missing({entry.digest for entry in manifest}):
            raise BlobsMissing(
                f"{len(missing)} files of the model are not on the server.",
                fix="Upload them, then register again.",
                digests=tuple(missing),
            )
        return manifest, draft.is_folder
    if run is None:
        raise Invalid("A model needs files, or a run that has them.")
    path = draft.path if draft.path is not None else draft.name
    files = [
        FileEntry(info.path, info.digest, info.size)
        for info in store.artifacts.list(run.id)
        if info.digest is not None
    ]
    manifest, is_folder = pick_files(files, path)
    if not manifest:
        raise _no_files(run, path, [file.path for file in files])
    check_model_files(manifest, is_folder=is_folder)
    return manifest, is_folder


def _no_files(run: RunRecord, path: str, names: Sequence[str]) -> NoModelFiles:
    shown = sorted(names, key=lambda name: (not name.startswith("outputs/"), name))
    more = f" … and {len(shown) - FILES_NAMED} more" if len(shown) > FILES_NAMED else ""
    folders = {name[:at] for name in names for at, char in enumerate(name) if char == "/"}
    near = get_close_matches(path, [*folders, *names], 1, cutoff=0.75)
    fix = f"Did you mean '{near[0]}'?" if near else "Pass one of these as model_path."
    return NoModelFiles(
        f"Run '{run.id}' has no file and no folder '{path}'.",
        why=f"It has: {', '.join(shown[:FILES_NAMED])}{more}." if shown else "It has no files.",
        fix=fix if shown else "What a script leaves in ./outputs is kept when the run ends.",
    )


def _check_datasets(
    store: Store, workspace: WorkspaceRecord, asked: ModelDraft | ModelPatch
) -> None:
    uses = asked.datasets if isinstance(asked, ModelDraft) else asked.add_datasets
    for id in (*(use.dataset for use in uses), asked.sample_input, asked.sample_output):
        if id is None:
            continue
        try:
            found = store.records.get(DatasetRecord, id)
        except NotFound:
            found = None
        if found is None or found.workspace != workspace.name:
            raise Invalid(
                f"Dataset '{id}' does not exist in workspace '{workspace.name}'.",
                fix="Get it again with Dataset.get_by_name(workspace, name).",
            )


def find(
    store: Store, wanted: ModelSearch, *, limit: int = 100, after: str | None = None
) -> ModelPage:
    """Some models, newest first. Those of one version, or the latest only, come on one page."""
    properties = dict(wanted.properties)
    if wanted.framework is not None:
        properties[FRAMEWORK_KEY] = known_framework(wanted.framework)
    if wanted.dataset is not None:
        properties[DATASET_KEY + wanted.dataset] = None
    where = Where(
        workspace=wanted.workspace,
        name=wanted.name,
        parent=wanted.run,
        tags=wanted.tags,
        properties=properties,
    )
    if wanted.number is not None:
        if wanted.name is None:
            raise Invalid(f"Version {wanted.number} of which model?", fix="Give its name, too.")
        every = find_all(store.records, ModelRecord, where)
        same = (one for one in every if one.number == wanted.number)
        if wanted.workspace is not None:  # then there is one at most: those before it are not read
            return ModelPage(models=tuple(itertools.islice(same, 1)))
        return ModelPage(models=tuple(same))
    if wanted.latest and None not in (wanted.name, wanted.workspace):
        newest_one, _ = store.records.find(ModelRecord, where, limit=1)
        return ModelPage(models=newest_one)
    if wanted.latest:
        newest: dict[tuple[str, str], ModelRecord] = {}
        for one in find_all(store.records, ModelRecord, where):
            newest.setdefault((one.workspace, one.name), one)
        return ModelPage(models=tuple(newest.values()))
    found, following = store.records.find(ModelRecord, where, limit=limit, after=after)
    return ModelPage(models=found, next=following)


def patch(store: Store, model_id: str, asked: ModelPatch, now: datetime) -> ModelRecord:
    """Change a model's labels; `Conflict` if a property is there already with another value."""
    check_resources(asked.resources)
    workspace = load_workspace(store, store.records.get(ModelRecord, model_id).workspace)
    _check_datasets(store, workspace, asked)

    def how(model: ModelRecord) -> ModelRecord:
        for key, value in asked.add_properties.items():
            if model.properties.get(key, value) != value:
                raise Conflict(
                    f"Model '{model_label(model)}' has the property '{key}' already.",
                    why="Properties cannot be changed once they are set.",
                    fix="Use a tag for what changes: model.add_tags({...})",
                )
        tags = model.tags if asked.tags is None else asked.tags
        tags = {**tags, **asked.set_tags}
        new = tuple(one for one in asked.add_datasets if one not in model.datasets)
        changed = msgspec.structs.replace(
            model,
            description=_newer(asked.description, model.description),
            tags={key: value for key, value in tags.items() if key not in asked.remove_tags},
            properties={**model.properties, **asked.add_properties},
            datasets=(*model.datasets, *dict.fromkeys(new)),
            sample_input=_newer(asked.sample_input, model.sample_input),
            sample_output=_newer(asked.sample_output, model.sample_output),
            resources=asked.resources if asked.resources is not None else model.resources,
        )
        return model if changed == model else msgspec.structs.replace(changed, modified=now)

    return change_record(store.records, ModelRecord, model_id, how)


def _newer(new: str | None, old: str | None) -> str | None:
    return old if new is None else new


def delete(store: Store, model_id: str, *, services: Sequence[str] = ()) -> None:
    """Remove one version of a model; its files stay with the run that made them.

    `services` are the names of those that serve it: `Conflict` if there are any.
    """
    model = store.records.get(ModelRecord, model_id)
    if services:
        raise Conflict(
            f"Model '{model_label(model)}' is being served.",
            why=f"Services that use it: {', '.join(services)}.",
            fix=f"Delete the service first, or update it to another model: "
            f"runyard service rm {services[0]}",
        )
    while True:
        try:
            store.records.delete(model)
            return
        except Stale:
            model = store.records.get(ModelRecord, model_id)
        except NotFound:
            return


def load_lineage(store: Store, model: ModelRecord) -> ModelLineage:
    """Where the model comes from: run, code, environment and datasets."""
    run: RunRecord | None = None
    if model.run is not None:
        with suppress(NotFound):  # removed since; the model does not need it
            run = store.records.get(RunRecord, model.run)
    script = None if run is None else run.spec.script
    snapshot = None if script is None else script.snapshot
    if run is not None and snapshot is None:
        snapshot = run.properties.get("ContentSnapshotId")
    return ModelLineage(
        run=model.run,
        experiment=model.experiment,
        snapshot=snapshot,
        environment_name=None if script is None else script.environment.name,
        environment=None if run is None else run.environment,
        datasets=tuple(_describe(store, one) for one in model.datasets),
        inputs=tuple(_describe(store, one) for one in model.inputs),
    )


def _describe(store: Store, use: ModelDataset) -> LineageDataset:
    try:
        found = store.records.get(DatasetRecord, use.dataset)
    except NotFound:
        return LineageDataset(purpose=use.purpose, id=use.dataset)
    return LineageDataset(purpose=use.purpose, id=use.dataset, name=found.name, number=found.number)
