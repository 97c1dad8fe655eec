"""From a datastore's record to its files: how a URL and credentials become something to read."""

import threading
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from runyard.data.base import Files
from runyard.data.catalog import datastore_id
from runyard.data.folder import FolderFiles
from runyard.data.managed import ManagedFiles
from runyard.domain.data import DatastoreKind, DatastoreRecord, DatastoreSpec
from runyard.domain.errors import Invalid
from runyard.domain.files import FileInfo
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning.data import check_datastore_name, plain_path
from runyard.stores.base import Store

_REMEMBERED = 64  # open clients of object stores
_TELLING = ("secret", "password", "token", "sas", "account_key", "connection_string", "credential")


class Datastores:
    """Opens datastores; a client of an object store is kept for as long as its record stays.

    fsspec and the cipher are imported when the first remote datastore is used: they would make
    every start of the server slower.
    """

    def __init__(self, store: Store, *, secret: bytes, home: Path) -> None:
        self._store = store
        self._secret = secret
        self._home = home
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int], Files] = {}

    def files(self, record: DatastoreRecord) -> Files:
        """The files of the datastore."""
        if record.kind is DatastoreKind.MANAGED:
            return self.managed(record)
        if folder := _folder_of(record.url):
            return FolderFiles(folder, hidden=self._home)
        key = (record.id, record.version)
        with self._lock:
            known = self._open.get(key)
        if known is None:
            known = self._open_remote(record)
            with self._lock:
                if len(self._open) >= _REMEMBERED:
                    self._open.clear()
                self._open[key] = known
        return known

    def managed(self, record: DatastoreRecord) -> ManagedFiles:
        """The files of a datastore that the server keeps itself."""
        return ManagedFiles(self._store, record.id)

    def _open_remote(self, record: DatastoreRecord) -> Files:
        from runyard.data.remote import RemoteFiles  # noqa: PLC0415 - slow, rarely needed
        from runyard.data.sealing import unseal  # noqa: PLC0415 - as above

        secrets = unseal(record.secret, self._secret, of=f"datastore '{record.name}'")
        return RemoteFiles(record.url, record.options, secrets)

    def plan_record(
        self, spec: DatastoreSpec, workspace: WorkspaceRecord, now: datetime
    ) -> DatastoreRecord:
        """The record of a datastore that is registered, credentials sealed; `Invalid` if wrong."""
        check_datastore_name(spec.name)
        if spec.kind is DatastoreKind.REMOTE:
            _check_url(spec.url, self._home)
        _check_options(spec.options)
        secret = ""
        if spec.secrets:
            from runyard.data.sealing import seal  # noqa: PLC0415 - slow, rarely needed

            secret = seal(spec.secrets, self._secret)
        return DatastoreRecord(
            id=datastore_id(workspace, spec.name),
            workspace=workspace.name,
            name=spec.name,
            kind=spec.kind,
            created=now,
            url=spec.url if spec.kind is DatastoreKind.REMOTE else "",
            type=spec.type,
            details=spec.details,
            options=spec.options,
            secret=secret,
        )


def list_prefix(files: Files, prefix: str) -> list[FileInfo]:
    """The files whose path begins with a text, which need not be a whole folder, by path."""
    folder = plain_path(prefix.rpartition("/")[0], of="the datastore")
    return [
        FileInfo(path=path, size=size, digest=digest or None)
        for path, size, _, digest in sorted(files.list(folder))
        if path.startswith(prefix)
    ]


def check_path(record: DatastoreRecord, path: str) -> str:
    """The path as the datastore knows it; `Invalid` if it would leave it."""
    return plain_path(path, of=f"datastore '{record.name}'")


def _folder_of(url: str) -> Path | None:
    """The folder that a file URL, or a plain absolute path, means."""
    if url.startswith("/"):
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _check_url(url: str, home: Path) -> None:
    folder = _folder_of(url)
    if folder is not None:
        if not folder.is_absolute() or not folder.is_dir():
            raise Invalid(
                f"The folder {str(folder)!r} is not there.",
                why="A datastore of a folder needs one that the server can see.",
                fix="Make it, or give its absolute path as file:///FOLDER.",
            )
        if folder.resolve().is_relative_to(home.resolve()):
            raise Invalid(
                f"The folder {str(folder)!r} cannot be a datastore.",
                why="The server keeps its own things there, its secrets among them.",
                fix="Choose a folder that is not in RUNYARD_HOME.",
            )
        return
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        raise Invalid(
            f"{url!r} is not the URL of a datastore.",
            why="It must look like file:///FOLDER, s3://BUCKET/PREFIX, gs://… or abfs://….",
        )
    if parts.password or parts.query:
        raise Invalid(
            f"The URL of the datastore at {parts.scheme}://{parts.hostname} has credentials in it.",
            why="It would be shown to everybody who may look at the workspace.",
            fix="Pass them as secrets.",
        )
    from runyard.data.remote import check_backend  # noqa: PLC0415 - slow, rarely needed

    check_backend(parts.scheme)


def _check_options(options: dict[str, str]) -> None:
    for name in options:
        if any(word in name.lower() for word in _TELLING):
            raise Invalid(
                f"The option '{name}' of the datastore looks like a secret.",
                why="Options are shown to everybody who may look at the workspace.",
                fix="Pass it in `secrets`; those are kept encrypted.",
            )
