"""`Datastore`: a place for files that the workspace knows by name."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from runyard.domain.data import DatastoreRecord, DatastoreSpec
from runyard.domain.errors import NotFound, RunyardError
from runyard.sdk import data_transfer, datastore_specs
from runyard.sdk.data_reference import DataReference
from runyard.sdk.exceptions import as_v1, user_error
from runyard.sdk.not_here import missing_attribute, refuse
from runyard.sdk.session import segment
from runyard_runtime.recipes import store_path

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

StrPath = str | os.PathLike[str]


# Attributes of v1's classes that are not shown, and what they belong to.
_NOT_SHOWN = {
    "account_key": "secrets that are shown again: a datastore's stay on the server",
    "blob_service": "Azure's own client of a datastore; use upload() and download()",
    "client_secret": "secrets that are shown again: a datastore's stay on the server",
    "sas_token": "secrets that are shown again: a datastore's stay on the server",
}


def _refused(name: str, what: str) -> Any:
    def register(*args: object, **kwargs: object) -> NoReturn:
        """Not in this release."""
        refuse(
            f"Datastore.{name}()", what, "Register files: Datastore.register_folder(ws, name, path)"
        )

    return staticmethod(register)


class Datastore:
    """A datastore of a workspace. Without a name: the default one."""

    def __init__(self, workspace: "Workspace", name: str | None = None) -> None:
        self._workspace = workspace
        self._record = _load(workspace, name) if name is not None else _default(workspace)

    @classmethod
    def _of(cls, workspace: "Workspace", record: DatastoreRecord) -> "Datastore":
        """The handle of a record that was already read."""
        store = cls.__new__(cls)
        store._workspace, store._record = workspace, record
        return store

    @staticmethod
    def get(workspace: "Workspace", datastore_name: str) -> "Datastore":
        """The datastore of that name."""
        return Datastore(workspace, datastore_name)

    @staticmethod
    def get_default(workspace: "Workspace") -> "Datastore":
        """The workspace's default datastore."""
        return Datastore(workspace)

    # What it is

    @property
    def name(self) -> str:
        """The datastore's name."""
        return self._record.name

    @property
    def datastore_type(self) -> str:
        """v1's word for its kind: AzureBlob, AzureFile, …; ours: Folder, S3, …"""
        return self._record.type

    @property
    def workspace(self) -> "Workspace":
        """The workspace it belongs to."""
        return self._workspace

    @property
    def container_name(self) -> str:
        """The container, share or bucket; of the platform's own: the datastore's name."""
        return self._record.details.get("container_name") or self._record.name

    @property
    def account_name(self) -> str:
        """The storage account; of the platform's own: the workspace's name."""
        return self._record.details.get("account_name") or self._record.workspace

    @property
    def protocol(self) -> str:
        """How the storage is reached."""
        return "https"

    @property
    def endpoint(self) -> str:
        """The domain of the storage account."""
        return self._record.details.get("endpoint") or "core.windows.net"

    def __getattr__(self, name: str) -> Any:
        """Words for what v1's classes had besides."""
        raise missing_attribute(self, name, _NOT_SHOWN)

    @property
    def is_default(self) -> bool:
        """Whether it is the workspace's default."""
        return self._record.is_default

    # Files

    def upload(
        self,
        src_dir: StrPath,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Upload what is below a folder; what is there already is kept unless `overwrite`."""
        target = store_path(target_path)
        files = data_transfer.folder_files(Path(os.fspath(src_dir)), target)
        self._send(files, overwrite, show_progress)
        return DataReference(self, path_on_datastore=target)

    def upload_files(
        self,
        files: Sequence[StrPath],
        relative_root: StrPath | None = None,
        target_path: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> DataReference:
        """Upload single files; below `relative_root` they keep their folders."""
        target = store_path(target_path)
        chosen = [_local(Path(os.fspath(file)), relative_root, target) for file in files]
        self._send(chosen, overwrite, show_progress)
        return DataReference(self, path_on_datastore=target)

    def download(
        self,
        target_path: StrPath,
        prefix: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> int:
        """Download the files whose path begins with `prefix`; how many were downloaded."""
        return data_transfer.download(
            self._place(),
            Path(os.fspath(target_path)),
            (prefix or "").lstrip("/"),
            overwrite=overwrite,
            tell=data_transfer.say if show_progress else data_transfer.silent,
        )

    def _send(
        self, files: Sequence[data_transfer.LocalFile], overwrite: bool, show_progress: bool
    ) -> int:
        return data_transfer.upload(
            self._place(),
            files,
            overwrite=overwrite,
            tell=data_transfer.say if show_progress else data_transfer.silent,
        )

    def _place(self) -> data_transfer.StorePlace:
        return data_transfer.StorePlace(session=self._workspace._session, store=self._record)

    # References

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> DataReference:
        """A reference to a path in it, for a run's arguments."""
        return DataReference(self, data_reference_name, path)

    def as_mount(self) -> DataReference:
        """A reference to the whole datastore, mounted."""
        return DataReference(self).as_mount()

    def as_download(self, path_on_compute: str | None = None) -> DataReference:
        """A reference to the whole datastore, downloaded."""
        return DataReference(self).as_download(path_on_compute)

    def as_upload(self, path_on_compute: str | None = None) -> DataReference:
        """A folder that the script writes, kept in the datastore when it has ended."""
        return DataReference(self).as_upload(path_on_compute)

    # Administration

    def set_as_default(self) -> None:
        """Make it the workspace's default."""
        self._record = self._workspace._session.request(
            "POST", f"{self._path}/default", answer=DatastoreRecord, safe_to_repeat=True
        )

    def unregister(self) -> None:
        """Forget the datastore; its data stays where it is."""
        self._workspace._session.request("DELETE", self._path, answer=object)

    @property
    def _path(self) -> str:
        return f"{self._workspace._path}/datastores/{segment(self.name)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datastore) and other._record.id == self._record.id

    def __hash__(self) -> int:
        return hash(self._record.id)

    def __repr__(self) -> str:
        return (
            f"Datastore(name={self.name!r}, type={self.datastore_type!r}, "
            f"workspace={self._record.workspace!r})"
        )

    # Registration: v1's own

    @staticmethod
    def register_azure_blob_container(
        workspace: "Workspace",
        datastore_name: str,
        container_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        create_if_not_exists: bool = False,
        skip_validation: bool = False,
        blob_cache_timeout: int | None = None,
        grant_workspace_access: bool = False,
        subscription_id: str | None = None,
        resource_group: str | None = None,
    ) -> "Datastore":
        """Register a container of Azure Blob storage (needs runyard[azure] on the server)."""
        spec = datastore_specs.blob_container(
            datastore_name,
            container_name,
            account_name,
            sas_token=sas_token,
            account_key=account_key,
            endpoint=endpoint,
            overwrite=overwrite,
        )
        return _register(workspace, spec)

    @staticmethod
    def register_azure_file_share(
        workspace: "Workspace",
        datastore_name: str,
        file_share_name: str,
        account_name: str,
        sas_token: str | None = None,
        account_key: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        create_if_not_exists: bool = False,
        skip_validation: bool = False,
    ) -> "Datastore":
        """Register an Azure file share, reached as a network drive (SMB)."""
        spec = datastore_specs.file_share(
            datastore_name,
            file_share_name,
            account_name,
            sas_token=sas_token,
            account_key=account_key,
            endpoint=endpoint,
            overwrite=overwrite,
        )
        return _register(workspace, spec)

    @staticmethod
    def register_azure_data_lake_gen2(
        workspace: "Workspace",
        datastore_name: str,
        filesystem: str,
        account_name: str,
        tenant_id: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        resource_url: str | None = None,
        authority_url: str | None = None,
        protocol: str | None = None,
        endpoint: str | None = None,
        overwrite: bool = False,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        grant_workspace_access: bool = False,
    ) -> "Datastore":
        """Register a file system of Azure Data Lake Storage Gen2."""
        spec = datastore_specs.data_lake_gen2(
            datastore_name,
            filesystem,
            account_name,
            tenant_id=tenant_id,
            client_id=client_id,
            client_secret=client_secret,
            overwrite=overwrite,
        )
        return _register(workspace, spec)

    register_azure_data_lake = _refused("register_azure_data_lake", "Data Lake Storage Gen1")
    register_azure_my_sql = _refused("register_azure_my_sql", "databases as datastores")
    register_azure_postgre_sql = _refused("register_azure_postgre_sql", "databases as datastores")
    register_azure_sql_database = _refused("register_azure_sql_database", "databases as datastores")
    register_dbfs = _refused("register_dbfs", "Databricks")
    register_hdfs = _refused("register_hdfs", "Hadoop")

    # Registration: beyond v1

    @staticmethod
    def register_folder(
        workspace: "Workspace", datastore_name: str, path: StrPath, overwrite: bool = False
    ) -> "Datastore":
        """Register a folder that the server and its nodes can see: a disk, a network share."""
        return _register(
            workspace, datastore_specs.folder(datastore_name, path, overwrite=overwrite)
        )

    @staticmethod
    def register_s3_bucket(
        workspace: "Workspace",
        datastore_name: str,
        bucket_name: str,
        prefix: str = "",
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        endpoint_url: str | None = None,
        overwrite: bool = False,
    ) -> "Datastore":
        """Register a bucket of S3, or of something that speaks its protocol."""
        spec = datastore_specs.s3_bucket(
            datastore_name,
            bucket_name,
            prefix=prefix,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            endpoint_url=endpoint_url,
            overwrite=overwrite,
        )
        return _register(workspace, spec)

    @staticmethod
    def register_gcs_bucket(
        workspace: "Workspace",
        datastore_name: str,
        bucket_name: str,
        prefix: str = "",
        project: str | None = None,
        token: str | None = None,
        overwrite: bool = False,
    ) -> "Datastore":
        """Register a bucket of Google Cloud Storage; `token` is a key file's JSON."""
        spec = datastore_specs.gcs_bucket(
            datastore_name,
            bucket_name,
            prefix=prefix,
            project=project,
            token=token,
            overwrite=overwrite,
        )
        return _register(workspace, spec)


def store_of(thing: object) -> "tuple[str, Any] | None":
    """Name and workspace of a datastore; None for what is none."""
    if not isinstance(thing, Datastore):
        return None
    return thing.name, thing.workspace


def list_datastores(workspace: "Workspace") -> dict[str, Datastore]:
    """All datastores of a workspace by name."""
    found = _records(workspace)
    return {record.name: Datastore._of(workspace, record) for record in found}


def _records(workspace: "Workspace") -> tuple[DatastoreRecord, ...]:
    return workspace._session.request(
        "GET", f"{workspace._path}/datastores", answer=tuple[DatastoreRecord, ...]
    )


def _default(workspace: "Workspace") -> DatastoreRecord:
    for record in _records(workspace):
        if record.is_default:
            return record
    raise user_error(
        f"The workspace '{workspace.name}' has no default datastore.",
        fix="Choose one: ws.set_default_datastore('workspaceblobstore')",
    )


def _load(workspace: "Workspace", name: str) -> DatastoreRecord:
    try:
        return workspace._session.client.request(
            "GET", f"{workspace._path}/datastores/{segment(name)}", answer=DatastoreRecord
        )
    except NotFound:
        names = sorted(record.name for record in _records(workspace))
        near = get_close_matches(name, names, 1)
        raise user_error(
            f"The workspace '{workspace.name}' has no datastore '{name}'.",
            why=f"It has: {', '.join(names)}.",
            fix=f"Did you mean '{near[0]}'?"
            if near
            else "Register it with Datastore.register_folder(...), or one of its like.",
        ) from None
    except RunyardError as error:
        raise as_v1(error) from None


def _register(workspace: "Workspace", spec: DatastoreSpec) -> Datastore:
    record = workspace._session.request(
        "PUT",
        f"{workspace._path}/datastores/{segment(spec.name)}",
        body=spec,
        answer=DatastoreRecord,
    )
    return Datastore._of(workspace, record)


def _local(file: Path, root: StrPath | None, target: str) -> data_transfer.LocalFile:
    source = file.expanduser()
    if not source.is_file():
        raise user_error(
            f"There is no file '{file}' to upload.",
            why=f"The working directory is {Path.cwd()}.",
            fix="Correct the path; folders go with upload(src_dir, target_path).",
        )
    relative = file.name
    if root is not None:
        relative = os.path.relpath(source, Path(os.fspath(root)).expanduser())
        if relative.startswith(os.pardir):
            raise user_error(f"The file '{file}' is not below relative_root '{root}'.")
    return data_transfer.LocalFile(source=source, target=data_transfer.joined(target, relative))
