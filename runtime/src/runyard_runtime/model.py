"""The models of a job's workspace, and those a script registers itself."""

import collections
import os
import posixpath
import uuid

from runyard_runtime import files, model_paths
from runyard_runtime.api import path_of
from runyard_runtime.exceptions import (
    ModelNotFoundException,
    ModelPathNotFoundException,
    RunEnvironmentException,
    UserErrorException,
    WebserviceException,
    explain,
)
from runyard_runtime.workspace import Workspace

_MODELS = "/api/v1/models"
_PAGE = 255

Details = collections.namedtuple(
    "Details",
    "tags properties description datasets framework framework_version sample_input sample_output "
    "resources",
)


class ResourceConfiguration(object):
    """Cores, memory and GPUs of a service; None: the service's own default."""

    def __init__(self, cpu=None, memory_in_gb=None, gpu=None):
        self.cpu = cpu
        self.memory_in_gb = memory_in_gb
        self.gpu = gpu

    def serialize(self):
        """The same as a plain dictionary."""
        return {"cpu": self.cpu, "memoryInGB": self.memory_in_gb, "gpu": self.gpu}


class Model(object):
    """One version of a model: a name, its files, and where it came from."""

    class Framework(object):
        """The frameworks v1 knows."""

        CUSTOM = "Custom"
        TENSORFLOW = "TensorFlow"
        SCIKITLEARN = "ScikitLearn"
        ONNX = "Onnx"
        TFKERAS = "TfKeras"
        PYTORCH = "PyTorch"
        MULTI = "Multi"

    def __init__(
        self,
        workspace,
        name=None,
        id=None,
        tags=None,
        properties=None,
        version=None,
        run_id=None,
        model_framework=None,
        expand=True,
        **kwargs,
    ):
        if id:
            name, _, version = str(id).rpartition(":")
        if not name:
            raise WebserviceException(
                explain(
                    "A model is found by its name or its id.",
                    fix="Write Model(ws, 'my-model') or Model(ws, id='my-model:2')",
                )
            )
        query = _query(workspace, name, tags, properties, run_id, model_framework)
        number = None if version is None else _checked_version(version)
        query += [("number", number), ("limit", 1)]
        found = _ask(workspace, "get", _MODELS, query)["models"]
        if not found:
            raise _no_such_model(workspace, name, number)
        self._set(workspace, found[0])

    def _set(self, workspace, record):
        self.workspace = workspace
        self._record = record

    @classmethod
    def _of(cls, workspace, record):
        model = cls.__new__(cls)
        model._set(workspace, record)
        return model

    # Registering and finding

    @staticmethod
    def register(
        workspace,
        model_path,
        model_name,
        tags=None,
        properties=None,
        description=None,
        datasets=None,
        model_framework=None,
        model_framework_version=None,
        child_paths=None,
        sample_input_dataset=None,
        sample_output_dataset=None,
        resource_configuration=None,
    ):
        """Register a file or folder of this machine as the next version of a model."""
        details = Details(
            tags,
            properties,
            description,
            datasets,
            model_framework,
            model_framework_version,
            sample_input_dataset,
            sample_output_dataset,
            resource_configuration,
        )
        draft = _draft(workspace, model_name, details)
        pairs, is_folder = _local_files(model_path, child_paths)
        print("Registering model %s" % model_name)
        api = workspace._job.api
        rows = files.upload_contents(api, pairs)
        draft.update(manifest=rows, is_folder=is_folder, run=workspace._job.run_id)
        return Model._of(workspace, _ask(workspace, "post", _MODELS, draft))

    @staticmethod
    def list(
        workspace,
        name=None,
        tags=None,
        properties=None,
        run_id=None,
        latest=False,
        dataset_id=None,
        expand=True,
        page_count=_PAGE,
        model_framework=None,
    ):
        """The models of the workspace that match, newest first."""
        query = _query(workspace, name, tags, properties, run_id, model_framework)
        query += [("dataset", dataset_id), ("latest", "true" if latest else None)]
        query += [("limit", page_count or _PAGE)]
        found, after = [], None
        while True:
            page = _ask(workspace, "get", _MODELS, query + [("after", after)])
            found.extend(Model._of(workspace, one) for one in page["models"])
            after = page.get("next")
            if after is None:
                return found

    @staticmethod
    def get_model_path(model_name, version=None, _workspace=None):
        """The path of a model on this machine.

        In a service it is there already. In a job it is fetched into azureml-models/NAME/VERSION
        of the working directory, unless that version is there; without a version the newest.
        """
        number = None if version is None else _checked_version(version)
        in_service = bool(os.environ.get(model_paths.VARIABLE))
        workspace = None if in_service else _workspace or _here()
        if number is not None or workspace is None:
            try:
                return model_paths.find(model_name, number)
            except ModelNotFoundException:
                if workspace is None:
                    raise
        model = Model(workspace, model_name, version=number)
        folder = os.path.join(model_paths.FOLDER, model.name, str(model.version))
        return model._fetch(folder, lambda row, target: _is_there(row, target))

    # What it is

    @property
    def name(self):
        return self._record["name"]

    @property
    def version(self):
        return self._record["number"]

    @property
    def id(self):
        return "%s:%d" % (self.name, self.version)

    @property
    def description(self):
        return self._record.get("description")

    @property
    def tags(self):
        return dict(self._record.get("tags") or {})

    @property
    def properties(self):
        return dict(self._record.get("properties") or {})

    @property
    def run_id(self):
        return self._record.get("run")

    @property
    def run(self):
        return self.workspace.get_run(self.run_id) if self.run_id else None

    @property
    def experiment_name(self):
        return self._record.get("experiment")

    @property
    def model_framework(self):
        return self._record.get("framework")

    @property
    def model_framework_version(self):
        return self._record.get("framework_version")

    @property
    def created_time(self):
        return self._record["created"]

    @property
    def url(self):
        return "aml://asset/%s" % self._record["id"]

    def serialize(self):
        """What is known of it, under v1's keys."""
        return {
            "id": self.id,
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "tags": self.tags,
            "properties": self.properties,
            "framework": self.model_framework,
            "frameworkVersion": self.model_framework_version,
            "createdTime": self.created_time,
            "experimentName": self.experiment_name,
            "runId": self.run_id,
            "url": self.url,
        }

    # Its files

    def download(self, target_dir=".", exist_ok=False, exists_ok=None):
        """Fetch it below a folder; the path of the file or folder that it is."""
        replace = exist_ok if exists_ok is None else exists_ok

        def is_there(row, target):
            if not replace and os.path.exists(target):
                raise WebserviceException(
                    explain(
                        "'%s' exists already." % target,
                        fix="Choose another target_dir, or pass exist_ok=True to replace it.",
                    )
                )
            return False

        return self._fetch(target_dir, is_there)

    def _fetch(self, folder, is_there):
        api = self.workspace._job.api
        targets = [
            (row, os.path.join(folder, *files.artifact_name(row[0]).split("/")))
            for row in self._record["manifest"]
        ]
        wanted = [pair for pair in targets if not is_there(*pair)]
        for row, target in wanted:
            files.fetch_from(api, path_of("blobs", row[1]), target)
        return os.path.join(folder, self._record["manifest"][0][0].split("/")[0])

    # Changes

    def update(
        self,
        tags=None,
        description=None,
        sample_input_dataset=None,
        sample_output_dataset=None,
        resource_configuration=None,
    ):
        """Replace what is given; tags replace all the tags there are."""
        change = {"description": description, "resources": _resources(resource_configuration)}
        change["tags"] = None if tags is None else _texts("tags", tags)
        change["sample_input"] = _dataset_id(self.workspace, sample_input_dataset)
        change["sample_output"] = _dataset_id(self.workspace, sample_output_dataset)
        self._patch({key: value for key, value in change.items() if value is not None})

    def update_tags_properties(self, add_tags=None, remove_tags=None, add_properties=None):
        """Add and remove tags, add properties."""
        gone = [remove_tags] if isinstance(remove_tags, str) else list(remove_tags or ())
        added = _texts("properties", add_properties, True)
        taken = sorted(set(added) & set(self.properties))
        if taken:
            raise WebserviceException(
                explain(
                    "Model '%s' has the property '%s' already." % (self.id, taken[0]),
                    "Properties are never changed.",
                    "Use a tag for what changes: model.add_tags({...})",
                )
            )
        self._patch(
            {
                "set_tags": _texts("tags", add_tags),
                "remove_tags": [str(key) for key in gone],
                "add_properties": added,
            }
        )

    def add_tags(self, tags):
        """Add tags, or change their values."""
        self.update_tags_properties(add_tags=tags)

    def remove_tags(self, tags):
        """Remove tags by their keys."""
        self.update_tags_properties(remove_tags=tags)

    def add_properties(self, properties):
        """Add properties; one that is there already cannot be changed."""
        self.update_tags_properties(add_properties=properties)

    def delete(self):
        """Not inside a job: its token does not remove what others may use."""
        raise WebserviceException(
            explain(
                "A job may not delete a model.",
                "Its token writes its own run, and registers models.",
                "Delete it from the client: runyard model rm %s" % self.id,
            )
        )

    def _patch(self, change):
        path = path_of("models", self._record["id"])
        self._record = _ask(self.workspace, "patch", path, change)

    def __repr__(self):
        return "Model(workspace=%r, name=%s, id=%s, version=%s, tags=%s, properties=%s)" % (
            self.workspace,
            self.name,
            self.id,
            self.version,
            self.tags,
            self.properties,
        )


def register_from_run(run, name, path, details):
    """Register files of a run; of the job's own run what lies at that path is kept first."""
    workspace = run.experiment.workspace
    draft = _draft(workspace, name, details)
    wanted = str(name if path is None else path)
    if wanted.strip("/."):
        wanted = files.artifact_name(wanted)
        if run.id == workspace._job.run_id and os.path.exists(wanted):
            if os.path.isdir(wanted):
                run.upload_folder(wanted, wanted)
            else:
                run.upload_file(wanted, wanted)
    draft.update(run=run.id, path=wanted)
    return Model._of(workspace, _ask(workspace, "post", _MODELS, draft))


def _draft(workspace, name, details):
    version = details.framework_version
    draft = {
        # Ours to choose, so that a repeated request finds what the first one made.
        "id": uuid.uuid4().hex,
        "workspace": workspace.name,
        "name": str(name),
        "description": details.description,
        "tags": _texts("tags", details.tags),
        "properties": _texts("properties", details.properties, True),
        "framework": details.framework,
        "framework_version": None if version is None else str(version),
        "resources": _resources(details.resources),
        "sample_input": _dataset_id(workspace, details.sample_input),
        "sample_output": _dataset_id(workspace, details.sample_output),
        "datasets": [
            {"purpose": str(purpose), "dataset": _dataset_id(workspace, dataset)}
            for purpose, dataset in details.datasets or ()
        ],
    }
    return {key: value for key, value in draft.items() if value is not None}


def _texts(what, given, whole=False):
    """Tags or properties as they are kept; `whole`: None is a text like any other."""
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise WebserviceException(
            explain("%s=%r is not a dictionary." % (what, given), fix="Write {'key': 'value'}")
        )
    return {
        str(key): None if value is None and not whole else str(value)
        for key, value in given.items()
    }


def _resources(given):
    if given is None:
        return None
    return {"cpu": given.cpu, "memory_gb": given.memory_in_gb, "gpu": given.gpu}


def _dataset_id(workspace, dataset):
    """The id of a dataset; one that the workspace does not know yet gets one."""
    if dataset is None:
        return None
    if dataset.id is None:
        path = path_of("workspaces", workspace.name, "datasets")
        dataset._record = workspace._job.api.post(path, {"spec": dataset._spec})
    return dataset.id


def _local_files(path, child_paths):
    path = os.fspath(path)
    if not os.path.exists(path):
        raise ModelPathNotFoundException(
            explain(
                "There is no file or folder '%s' to register as a model." % path,
                "The working directory is %s." % os.getcwd(),
                "Correct the path.",
            )
        )
    top = os.path.basename(os.path.abspath(path))
    if not os.path.isdir(path):
        return [(top, path)], False
    pairs = []
    for child in child_paths or [""]:
        place = os.path.join(path, child) if child else path
        name = posixpath.normpath(posixpath.join(top, child.replace(os.sep, "/")))
        if name != top and not name.startswith(top + "/"):
            raise WebserviceException(
                explain("The child path '%s' leads out of the folder '%s'." % (child, path))
            )
        if os.path.isdir(place):
            pairs.extend(files.folder_files(name, place))
        else:
            pairs.append((name, place))
    return sorted(dict(pairs).items()), True


def _query(workspace, name, tags, properties, run_id, framework):
    query = [("workspace", workspace.name), ("name", name), ("run", run_id)]
    query += [("framework", framework)]
    query += [("tag", text) for text in _filters("tags", tags)]
    return query + [("property", text) for text in _filters("properties", properties)]


def _filters(what, wanted):
    if wanted is None:
        return []
    if not isinstance(wanted, (list, tuple)):
        raise UserErrorException(
            explain(
                "%s=%r is not a list." % (what, wanted),
                fix="Write %s=['key', ['other key', 'its value']]" % what,
            )
        )
    return [
        "=".join(str(part) for part in one) if isinstance(one, (list, tuple)) else str(one)
        for one in wanted
    ]


def _checked_version(version):
    if isinstance(version, bool) or not str(version).isdigit():
        raise WebserviceException(
            explain("version=%r is not a version." % (version,), "It is a number: 1, 2, …")
        )
    return int(version)


def _here():
    """The job's workspace, or None outside a job."""
    try:
        return Workspace()
    except RunEnvironmentException:
        return None


def _is_there(row, target):
    try:
        return files.measure(target)[:2] == (row[1], row[2])
    except UserErrorException:
        return False


def _no_such_model(workspace, name, number):
    versions = [str(one.version) for one in Model.list(workspace, name)]
    why = "It has the versions: %s." % ", ".join(versions[:20])
    if not versions:
        names = ", ".join(sorted(one.name for one in Model.list(workspace, latest=True))[:20])
        why = "Workspace '%s' has: %s." % (workspace.name, names or "no models yet")
    called = name if number is None else "%s:%d" % (name, number)
    return ModelNotFoundException(explain("ModelNotFound: there is no model '%s'." % called, why))


def _ask(workspace, verb, path, body):
    """One request about models; its errors are v1's for models."""
    try:
        return getattr(workspace._job.api, verb)(path, body)
    except UserErrorException as error:
        kind = ModelPathNotFoundException if error.code == "no_model_files" else WebserviceException
        problem = kind(error.message)
        problem.code = error.code
        raise problem from None
