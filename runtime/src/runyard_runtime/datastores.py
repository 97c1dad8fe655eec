"""The datastores of a job's workspace, as its scripts see them."""

import os

from runyard_runtime import files
from runyard_runtime.api import path_of
from runyard_runtime.data_files import in_parallel, local_path
from runyard_runtime.exceptions import UserErrorException, explain
from runyard_runtime.recipes import store_path


class Datastore(object):
    """A datastore of the job's workspace. Without a name: the default one."""

    def __init__(self, workspace, name=None):
        self._workspace = workspace
        self._api = workspace._job.api
        self._record = _load(workspace, name)

    @classmethod
    def _of(cls, workspace, record):
        store = cls.__new__(cls)
        store._workspace, store._api, store._record = workspace, workspace._job.api, record
        return store

    @staticmethod
    def get(workspace, datastore_name):
        """The datastore of that name."""
        return Datastore(workspace, datastore_name)

    @staticmethod
    def get_default(workspace):
        """The workspace's default datastore."""
        return Datastore(workspace)

    @property
    def name(self):
        return self._record["name"]

    @property
    def datastore_type(self):
        return self._record["type"]

    @property
    def workspace(self):
        return self._workspace

    @property
    def container_name(self):
        return self._record["details"].get("container_name") or self.name

    @property
    def account_name(self):
        return self._record["details"].get("account_name") or self._workspace.name

    def upload(self, src_dir, target_path=None, overwrite=False, show_progress=True):
        """Upload what is below a folder; what is there already is kept unless `overwrite`."""
        pairs = files.folder_files(store_path(target_path), src_dir)
        return self._send(pairs, target_path, overwrite, show_progress)

    def upload_files(
        self, files, relative_root=None, target_path=None, overwrite=False, show_progress=True
    ):
        """Upload single files; below `relative_root` they keep their folders."""
        pairs = []
        for path in files:
            name = os.path.relpath(path, relative_root) if relative_root else os.path.basename(path)
            parts = [store_path(target_path), store_path(name)]
            pairs.append(("/".join(part for part in parts if part), path))
        return self._send(pairs, target_path, overwrite, show_progress)

    def download(self, target_path, prefix=None, overwrite=False, show_progress=True):
        """Download the files whose path begins with `prefix`; how many were downloaded."""
        names = self._names((prefix or "").lstrip("/"))
        wanted = [(name, local_path(target_path, name)) for name in names]
        wanted = [(name, path) for name, path in wanted if overwrite or not os.path.exists(path)]

        def fetch(pair):
            files.fetch_from(self._api, self._file_path(pair[0]), pair[1])
            _say(show_progress, "Downloaded %s" % pair[0])

        in_parallel(fetch, wanted)
        return len(wanted)

    def path(self, path=None, data_reference_name=None):
        """A place in the datastore, to make a dataset of: `Dataset.File.from_files(...)`."""
        return StorePath(self, path, data_reference_name)

    def _send(self, pairs, target_path, overwrite, show_progress):
        _say(show_progress, "Uploading an estimated of %d files" % len(pairs))
        if not overwrite:
            there = set(self._names(store_path(target_path)))
            pairs = [pair for pair in pairs if pair[0] not in there]
        if pairs:
            files.upload_to(self._api, self._path("files"), pairs)
        for number, (_, path) in enumerate(pairs, 1):
            _say(
                show_progress,
                "Uploaded %s, %d files out of an estimated total of %d"
                % (path, number, len(pairs)),
            )
        _say(show_progress, "Uploaded %d files" % len(pairs))
        return StorePath(self, target_path)

    def _names(self, prefix):
        found = self._api.get(self._path("files"), [("prefix", prefix or None)])
        return [one["path"] for one in found]

    def _path(self, *below):
        return path_of("workspaces", self._workspace.name, "datastores", self.name, *below)

    def _file_path(self, name):
        return "%s/%s" % (self._path("files"), "/".join(path_of(p)[8:] for p in name.split("/")))

    def __repr__(self):
        return "Datastore(name=%r, type=%r)" % (self.name, self.datastore_type)


class StorePath(object):
    """A path in a datastore: what v1 called a DataPath or a DataReference."""

    def __init__(self, datastore, path_on_datastore=None, name=None):
        self.datastore = datastore
        self.path_on_datastore = store_path(path_on_datastore)
        self.name = name

    def __repr__(self):
        return "DataPath(datastore=%r, path=%r)" % (self.datastore.name, self.path_on_datastore)


def store_of(thing):
    """Name and workspace of a datastore; None for what is none."""
    return (thing.name, thing.workspace) if isinstance(thing, Datastore) else None


def list_datastores(workspace):
    """All datastores of a workspace by name."""
    return {one["name"]: Datastore._of(workspace, one) for one in _records(workspace)}


def _records(workspace):
    return workspace._job.api.get(path_of("workspaces", workspace.name, "datastores"))


def _load(workspace, name):
    if name is not None:
        return workspace._job.api.get(path_of("workspaces", workspace.name, "datastores", name))
    for record in _records(workspace):
        if record.get("is_default"):
            return record
    raise UserErrorException(
        explain("The workspace '%s' has no default datastore." % workspace.name)
    )


def _say(show, text):
    if show:
        print(text)
