"""What is known of datastores and datasets: records only, no file is touched from here."""

import uuid
from collections.abc import Sequence
from datetime import datetime

import msgspec

from runyard.domain.data import (
    DataInput,
    DatasetKind,
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    DatastoreKind,
    DatastoreRecord,
    InputMode,
    StoreSource,
    UrlSource,
)
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning.data import (
    apply_steps,
    check_dataset_name,
    check_datastore_name,
    check_url,
    plain_path,
)
from runyard.stores.base import Store, Where, find_all

BLOBS, FILES = "workspaceblobstore", "workspacefilestore"
SYSTEM = {BLOBS: "AzureBlob", FILES: "AzureFile"}  # what every workspace has, and v1's type of it
LATEST = "latest"


# ---- datastores ------------------------------------------------------------------------------


def datastore_id(workspace: WorkspaceRecord, name: str) -> str:
    """The id follows from the names, so that there is one of a name, whoever else makes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/datastores/{name.lower()}"))


def load_datastore(store: Store, workspace: WorkspaceRecord, name: str) -> DatastoreRecord:
    """The datastore of that name, or `NotFound` that says which there are."""
    try:
        return store.records.get(DatastoreRecord, datastore_id(workspace, name))
    except NotFound:
        pass
    if name.lower() in SYSTEM:
        return _make_system_store(store, workspace, name.lower())
    known = ", ".join(sorted(one.name for one in list_datastores(store, workspace)))
    raise NotFound(
        f"Datastore '{name}' does not exist in workspace '{workspace.name}'.",
        why=f"It has: {known}.",
        fix="Register it with Datastore.register_…, or mind the spelling.",
    )


def list_datastores(store: Store, workspace: WorkspaceRecord) -> list[DatastoreRecord]:
    """All datastores of a workspace; the two that every workspace has are made if need be."""
    for name in SYSTEM:
        _make_system_store(store, workspace, name)
    return list(find_all(store.records, DatastoreRecord, Where(workspace=workspace.name)))


def _make_system_store(store: Store, workspace: WorkspaceRecord, name: str) -> DatastoreRecord:
    id = datastore_id(workspace, name)
    try:
        return store.records.get(DatastoreRecord, id)
    except NotFound:
        record = DatastoreRecord(
            id=id,
            workspace=workspace.name,
            name=name,
            kind=DatastoreKind.MANAGED,
            created=workspace.created,
            type=SYSTEM[name],
        )
    try:
        return store.records.insert(record)
    except Conflict:
        return store.records.get(DatastoreRecord, id)


def keep_datastore(store: Store, record: DatastoreRecord, *, overwrite: bool) -> DatastoreRecord:
    """Keep a datastore; one of that name is replaced only if that is asked for."""
    check_datastore_name(record.name)
    if record.name.lower() in SYSTEM:
        raise Conflict(
            f"Datastore '{record.name}' is the workspace's own.", fix="Choose another name."
        )
    while True:
        try:
            return store.records.insert(record)
        except Conflict:
            if not overwrite:
                raise Conflict(
                    f"Datastore '{record.name}' exists already.",
                    fix="Choose another name, or pass overwrite=True.",
                ) from None
        try:
            old = store.records.get(DatastoreRecord, record.id)
            if old.kind is not record.kind and old.kind is DatastoreKind.MANAGED:
                _check_empty(store, old)
            changed = msgspec.structs.replace(record, version=old.version, created=old.created)
            return store.records.replace(changed)
        except (Stale, NotFound):
            continue  # somebody else was quicker; look again


def remove_datastore(store: Store, workspace: WorkspaceRecord, name: str) -> None:
    """Forget a datastore; files that only the server has are not given up that way."""
    record = load_datastore(store, workspace, name)
    if record.name in SYSTEM:
        raise Conflict(f"Datastore '{name}' is the workspace's own; it stays.")
    if record.kind is DatastoreKind.MANAGED:
        _check_empty(store, record)
    if record.name == workspace.default_datastore:
        set_default(store, workspace, BLOBS)
    store.records.delete(record)


def _check_empty(store: Store, record: DatastoreRecord) -> None:
    files = store.artifacts.list(record.id, of=DatastoreRecord)
    if files:
        raise Conflict(
            f"Datastore '{record.name}' holds {len(files)} files.",
            why="The server itself keeps them; they would be lost.",
            fix="Keep it.",
        )


def set_default(store: Store, workspace: WorkspaceRecord, name: str) -> DatastoreRecord:
    """Make a datastore the one that is meant when none is named."""
    record = load_datastore(store, workspace, name)
    while True:
        workspace = store.records.get(WorkspaceRecord, workspace.id)
        changed = msgspec.structs.replace(workspace, default_datastore=record.name)
        try:
            return shown(record, store.records.replace(changed))
        except Stale:
            continue


def shown(record: DatastoreRecord, workspace: WorkspaceRecord) -> DatastoreRecord:
    """The record as it may leave the server."""
    default = record.name == workspace.default_datastore
    return msgspec.structs.replace(record, secret="", is_default=default)


def clear_workspace(store: Store, workspace: WorkspaceRecord) -> None:
    """Forget the data of a workspace that goes away; `Conflict` if files would be lost."""
    datastores = list(find_all(store.records, DatastoreRecord, Where(workspace=workspace.name)))
    for record in datastores:
        if record.kind is DatastoreKind.MANAGED:
            _check_empty(store, record)
    for record in datastores:
        store.records.delete(record)
    for dataset in list(find_all(store.records, DatasetRecord, Where(workspace=workspace.name))):
        store.records.delete(dataset)


# ---- datasets --------------------------------------------------------------------------------


def register(
    store: Store, workspace: WorkspaceRecord, wanted: DatasetRegistration, now: datetime
) -> DatasetRecord:
    """Keep a recipe: as a version of its name, or under an id only.

    A recipe equal to the newest version of the name is that version; only its description and
    tags are taken over. Numbers are never given twice, not even after unregistering.
    """
    check_recipe(store, workspace, wanted.spec)
    if not wanted.name:
        return _keep_unnamed(store, workspace, wanted, now)
    check_dataset_name(wanted.name)
    number = 0
    while True:
        versions = find_versions(store, workspace, wanted.name)
        if versions and versions[0].spec == wanted.spec:
            return _relabelled(store, versions[0], wanted)
        if versions and not wanted.create_new_version:
            raise _exists_already(versions, wanted)
        number = max([number, *(one.number for one in versions)]) + 1
        record = DatasetRecord(
            # As for datastores: two who register the same version at once do not both succeed.
            id=_dataset_id(workspace, f"{wanted.name}/{number}"),
            workspace=workspace.name,
            spec=wanted.spec,
            created=now,
            name=wanted.name,
            number=number,
            description=wanted.description,
            tags=wanted.tags,
        )
        try:
            return store.records.insert(record)
        except Conflict:
            continue  # somebody else has that number, or had it before it was unregistered


def _dataset_id(workspace: WorkspaceRecord, key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/datasets/{key}"))


def _keep_unnamed(
    store: Store, workspace: WorkspaceRecord, wanted: DatasetRegistration, now: datetime
) -> DatasetRecord:
    content = msgspec.json.encode(wanted.spec, order="deterministic").decode()
    record = DatasetRecord(
        id=_dataset_id(workspace, f"/{content}"),  # no name begins with a slash
        workspace=workspace.name,
        spec=wanted.spec,
        created=now,
        description=wanted.description,
        tags=wanted.tags,
    )
    try:
        return store.records.insert(record)
    except Conflict:
        return store.records.get(DatasetRecord, record.id)


def _relabelled(store: Store, record: DatasetRecord, wanted: DatasetRegistration) -> DatasetRecord:
    description = wanted.description or record.description
    tags = {**record.tags, **wanted.tags}
    if (description, tags) == (record.description, record.tags):
        return record
    changed = msgspec.structs.replace(record, description=description, tags=tags)
    try:
        return store.records.replace(changed)
    except Stale:
        return _relabelled(store, store.records.get(DatasetRecord, record.id), wanted)


def _exists_already(versions: Sequence[DatasetRecord], wanted: DatasetRegistration) -> Conflict:
    same = next((one for one in versions if one.spec == wanted.spec), None)
    why = f"Its newest version is {versions[0].number}, with another definition."
    if same is not None:
        why += f" Version {same.number} has this definition."
    return Conflict(
        f"There is already a dataset registered under name '{wanted.name}'.",
        why=why,
        fix="Pass create_new_version=True, or choose another name.",
    )


def check_recipe(store: Store, workspace: WorkspaceRecord, spec: DatasetSpec) -> None:
    """`Invalid` or `NotFound` if the recipe can never be followed."""
    if not spec.sources:
        raise Invalid("A dataset needs at least one source.")
    kinds = {type(source) for source in spec.sources}
    if len(kinds) > 1:
        raise Invalid(
            "A dataset cannot have both web addresses and paths in datastores.",
            fix="Make two datasets, or upload the files to the datastore.",
        )
    for source in spec.sources:
        match source:
            case UrlSource(url=url):
                check_url(url)
            case StoreSource(datastore=name, path=path):
                record = load_datastore(store, workspace, name)
                plain_path(path, of=f"datastore '{record.name}'")
    if spec.kind is DatasetKind.FILE:
        apply_steps((), spec)  # of no files at all: only the steps themselves can be wrong


def find_versions(store: Store, workspace: WorkspaceRecord, name: str) -> list[DatasetRecord]:
    """All versions of a name, the newest first."""
    found = list(find_all(store.records, DatasetRecord, Where(workspace=workspace.name, name=name)))
    return sorted(found, key=lambda record: -record.number)


def list_datasets(
    store: Store, workspace: WorkspaceRecord, name: str | None, version: str | None
) -> list[DatasetRecord]:
    """Named datasets, newest first; of one name, of one version, or the latest of each name.

    A version that is asked for by name and is not there is `NotFound`.
    """
    if name is not None:
        versions = find_versions(store, workspace, name)
        return versions if version is None else [_version(versions, name, version)]
    records = list(find_all(store.records, DatasetRecord, Where(workspace=workspace.name)))
    named = [record for record in records if record.name]
    if version is None:
        return named
    if version != LATEST:
        raise Invalid(f"Version {version!r} of which dataset?", fix="Give its name, too.")
    latest: dict[str, DatasetRecord] = {}
    for record in named:
        known = latest.get(record.name)
        if known is None or known.number < record.number:
            latest[record.name] = record
    return list(latest.values())


def _version(versions: Sequence[DatasetRecord], name: str, version: str) -> DatasetRecord:
    if not versions:
        raise NotFound(
            f"There is no dataset '{name}'.", fix="See which there are with: runyard data ls"
        )
    if version == LATEST:
        return versions[0]
    if not version.isascii() or not version.isdigit():
        raise Invalid(f"{version!r} is not a version.", why="It is a number, or 'latest'.")
    for record in versions:
        if record.number == int(version):
            return record
    known = ", ".join(str(record.number) for record in versions[:20])
    raise NotFound(f"Dataset '{name}' has no version {version}.", why=f"It has: {known}.")


def unregister(store: Store, workspace: WorkspaceRecord, name: str) -> None:
    """Take the name from all its versions; they stay, for the runs that used them."""
    versions = find_versions(store, workspace, name)
    if not versions:
        raise NotFound(f"There is no dataset '{name}'.")
    for record in versions:
        while True:
            try:
                store.records.replace(msgspec.structs.replace(record, name="", number=0))
                break
            except Stale:
                record = store.records.get(DatasetRecord, record.id)


def check_input(store: Store, workspace: WorkspaceRecord, one: DataInput) -> DatasetRecord | None:
    """The dataset of a run's input; None if it is a path in a datastore that is there."""
    if one.dataset is None:
        assert one.source is not None
        record = load_datastore(store, workspace, one.source.datastore)
        plain_path(one.source.path, of=f"datastore '{record.name}'")
        return None
    try:
        dataset = store.records.get(DatasetRecord, one.dataset)
    except NotFound:
        dataset = None
    if dataset is None or dataset.workspace != workspace.name:
        raise NotFound(
            f"The dataset of input '{one.name}' does not exist in workspace '{workspace.name}'.",
            why=f"Nothing there has the id {one.dataset!r}.",
            fix="Get it again with Dataset.get_by_name(workspace, name).",
        )
    if dataset.spec.kind is DatasetKind.TABULAR and one.mode is not InputMode.DIRECT:
        raise Invalid(
            f"Input '{one.name}' is a table and cannot be mounted or downloaded.",
            fix="Pass dataset.as_named_input(name), and read run.input_datasets[name] in the job.",
        )
    return dataset
