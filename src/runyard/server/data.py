"""Routes of datastores, datasets, and the data of a run."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from runyard.conductor import data, runs
from runyard.conductor.runs import check_manifest, load_workspace
from runyard.data import catalog
from runyard.data.base import Files
from runyard.data.following import Place, follow
from runyard.data.opening import check_path, list_prefix
from runyard.domain.data import (
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    DatastoreKind,
    DatastoreRecord,
    DatastoreSpec,
    ResolvedData,
)
from runyard.domain.errors import BlobsMissing, Invalid
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.runs import RunRecord
from runyard.domain.workspaces import WorkspaceRecord
from runyard.server.auth import check_workspace
from runyard.server.downloads import Download
from runyard.server.files import FilesQuery
from runyard.server.platform import Platform, utc_now
from runyard.server.routing import Call, NoQuery
from runyard_runtime.origins import store_tag

WRITTEN_AT_ONCE = 8  # files on their way to a store elsewhere


class DatasetsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which datasets to list."""

    name: str | None = None
    version: str | None = None  # a number, or `latest`


# ---- datastores ------------------------------------------------------------------------------


def list_datastores(call: Call[None, NoQuery]) -> list[DatastoreRecord]:
    """All datastores of a workspace; nobody gets their credentials."""
    workspace = _workspace(call)
    records = catalog.list_datastores(call.platform.store, workspace)
    return [catalog.shown(record, workspace) for record in records]


def put_datastore(call: Call[DatastoreSpec, NoQuery]) -> DatastoreRecord:
    """Register a datastore; its credentials are kept encrypted."""
    workspace, spec = _workspace(call), call.body
    if spec.name != call.params["datastore"]:
        raise Invalid(
            f"The datastore is called '{spec.name}' in the body of the request and "
            f"'{call.params['datastore']}' in its address."
        )
    record = call.platform.datastores.plan_record(spec, workspace, utc_now())
    kept = catalog.keep_datastore(call.platform.store, record, overwrite=spec.overwrite)
    return catalog.shown(kept, workspace)


def get_datastore(call: Call[None, NoQuery]) -> DatastoreRecord:
    """One datastore, by its name."""
    workspace, record = _named(call)
    return catalog.shown(record, workspace)


def remove_datastore(call: Call[None, NoQuery]) -> None:
    """Forget a datastore; the data stays where it is."""
    catalog.remove_datastore(call.platform.store, _workspace(call), call.params["datastore"])


def set_default_datastore(call: Call[None, NoQuery]) -> DatastoreRecord:
    """Make a datastore the workspace's default."""
    return catalog.set_default(call.platform.store, _workspace(call), call.params["datastore"])


async def list_store_files(call: Call[None, FilesQuery]) -> list[FileInfo]:
    """The files of a datastore whose path begins with `prefix`, by path."""
    _, record = await call.platform.in_thread(_named, call)
    files = call.platform.datastores.files
    return await call.platform.in_data_thread(lambda: list_prefix(files(record), call.query.prefix))


async def put_store_files(call: Call[list[FileEntry], NoQuery]) -> None:
    """Put files whose contents are on the server into a datastore."""
    platform, entries = call.platform, call.body
    _, record = await platform.in_thread(_named, call)
    check_manifest(tuple(entries))
    missing = await platform.in_thread(
        platform.store.blobs.missing, {entry.digest for entry in entries}
    )
    if missing:
        raise BlobsMissing(
            f"{len(missing)} contents are not on the server.",
            fix="Upload them, then try again.",
            digests=tuple(missing),
        )
    if record.kind is DatastoreKind.MANAGED:
        await platform.in_thread(platform.datastores.managed(record).keep, entries)
    else:
        await platform.in_data_thread(_write_all, platform, record, entries)


def _write_all(platform: Platform, record: DatastoreRecord, entries: Sequence[FileEntry]) -> None:
    files, blobs = platform.datastores.files(record), platform.store.blobs

    def write(entry: FileEntry) -> None:
        files.write(entry.path, entry.digest, blobs.open(entry.digest))

    with ThreadPoolExecutor(WRITTEN_AT_ONCE, thread_name_prefix="write") as pool:
        written = [pool.submit(write, entry) for entry in entries]
        try:
            for one in written:
                one.result()
        finally:
            for one in written:
                one.cancel()


async def get_store_file(call: Call[None, NoQuery]) -> Download:
    """A file of a datastore, or a range of it."""
    _, record = await call.platform.in_thread(_named, call)
    return await _download(call, record)


async def get_origin_file(call: Call[None, NoQuery]) -> Download:
    """A file that a dataset led to, by its datastore's id, or a range of it."""
    store, id = call.platform.store, call.params["datastore_id"]
    record = await call.platform.in_thread(store.records.get, DatastoreRecord, id)
    check_workspace(call.grant, record.workspace)
    return await _download(call, record)


async def _download(call: Call[None, NoQuery], record: DatastoreRecord) -> Download:
    platform = call.platform
    path = check_path(record, call.params["path"])

    def look() -> tuple[Files, int, str]:
        files = platform.datastores.files(record)
        found = files.find(path)
        return files, found.size, found.stamp or f"{found.size}"

    files, size, stamp = await platform.in_data_thread(look)

    def open_range(start: int, end: int) -> Iterator[bytes]:
        return files.open(path, start, end)

    return Download(
        platform,
        open_range,
        size=size,
        etag=store_tag(path, stamp),
        name=path.rpartition("/")[2],
        elsewhere=record.kind is not DatastoreKind.MANAGED,
    )


# ---- datasets --------------------------------------------------------------------------------


def register_dataset(call: Call[DatasetRegistration, NoQuery]) -> DatasetRecord:
    """Keep a recipe, as a version of a name or under an id only."""
    return catalog.register(call.platform.store, _workspace(call), call.body, utc_now())


def list_datasets(call: Call[None, DatasetsQuery]) -> list[DatasetRecord]:
    """Named datasets, newest first; of one name, one version, or the latest of each."""
    query = call.query
    return catalog.list_datasets(call.platform.store, _workspace(call), query.name, query.version)


def unregister_dataset(call: Call[None, NoQuery]) -> None:
    """Take the name from all versions of a dataset."""
    catalog.unregister(call.platform.store, _workspace(call), call.params["name"])


async def resolve_dataset(call: Call[DatasetSpec, NoQuery]) -> ResolvedData:
    """The files that a recipe leads to now."""
    platform, store = call.platform, call.platform.store
    workspace = await platform.in_thread(_workspace, call)
    await platform.in_thread(catalog.check_recipe, store, workspace, call.body)
    return await platform.in_data_thread(_follow, platform, workspace, call.body)


def get_dataset(call: Call[None, NoQuery]) -> DatasetRecord:
    """One dataset, by its id."""
    record = call.platform.store.records.get(DatasetRecord, call.params["dataset"])
    check_workspace(call.grant, record.workspace)
    return record


async def dataset_files(call: Call[None, NoQuery]) -> ResolvedData:
    """The files that a kept recipe leads to now."""
    platform = call.platform
    record = await platform.in_thread(get_dataset, call)
    workspace = await platform.in_thread(load_workspace, platform.store, record.workspace)
    return await platform.in_data_thread(_follow, platform, workspace, record.spec)


async def run_input(call: Call[None, NoQuery]) -> msgspec.Raw:
    """The files of a run's input: followed once, and the same for all nodes and restarts."""
    platform, store, name = call.platform, call.platform.store, call.params["name"]

    def load() -> tuple[RunRecord, bytes | None]:
        run = store.records.get(RunRecord, call.params["run"])
        return run, data.kept_files(store, run, name)

    run, kept = await platform.in_thread(load)
    if kept is not None:
        return msgspec.Raw(kept)
    wanted = data.load_input(run, name)

    def resolve() -> bytes:
        workspace = load_workspace(store, run.spec.workspace)
        return data.follow_input(store, wanted, lambda spec: _follow(platform, workspace, spec))

    found = await platform.in_data_thread(resolve)
    kept = await platform.in_thread(
        data.keep_files, store, run, name, found, lambda id, how: runs.change(store, id, how)
    )
    return msgspec.Raw(kept)


def _follow(platform: Platform, workspace: WorkspaceRecord, spec: DatasetSpec) -> ResolvedData:
    def open_place(name: str) -> Place:
        record = catalog.load_datastore(platform.store, workspace, name)
        return Place(record, platform.datastores.files(record))

    return follow(spec, open_place, platform.fetcher)


def _workspace(call: Call[Any, Any]) -> WorkspaceRecord:
    return load_workspace(call.platform.store, call.params["workspace"])


def _named(call: Call[Any, Any]) -> tuple[WorkspaceRecord, DatastoreRecord]:
    workspace = _workspace(call)
    name = call.params["datastore"]
    return workspace, catalog.load_datastore(call.platform.store, workspace, name)
