"""Registered models: a manifest of files with a name, a version and where it came from."""

import re
from collections.abc import Iterable
from datetime import datetime

import msgspec

from runyard.domain.environments import EnvironmentUse
from runyard.domain.errors import Invalid
from runyard.domain.files import FileEntry, Manifest

# v1's `Model.Framework`. A model may have another; then only a script can serve it.
FRAMEWORKS = ("Custom", "TensorFlow", "ScikitLearn", "Onnx", "TfKeras", "PyTorch", "Multi")
# What else people call them, in lower case.
_FRAMEWORK_ALIASES = {
    "sklearn": "ScikitLearn",
    "scikit-learn": "ScikitLearn",
    "scikit_learn": "ScikitLearn",
    "tf": "TensorFlow",
    "torch": "PyTorch",
}
MODELS_FOLDER = "azureml-models"  # where v1 lays models out: azureml-models/NAME/VERSION/…

# Under these a model is found, beside its own properties.
FRAMEWORK_KEY, DATASET_KEY = "runyard.framework", "runyard.dataset."

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9\-._]{0,254}")


class ModelResources(msgspec.Struct, frozen=True, kw_only=True):
    """What a service of the model should have; None: the service's own default."""

    cpu: float | None = None
    memory_gb: float | None = None
    gpu: int | None = None


class ModelDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset the model was made with, and what for: "training", "validation", …"""

    purpose: str
    dataset: str  # a DatasetRecord's id


class ModelDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A model to be registered: its files are blobs the server has, or artifacts of a run."""

    workspace: str
    name: str
    id: str | None = None  # the caller's choice, so that a repeated request makes one model
    manifest: Manifest | None = None  # files already uploaded as blobs; None: from the run
    run: str | None = None  # the run that made it
    path: str | None = None  # of the run's artifacts: one file, or the files below a folder
    description: str | None = None
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    framework: str | None = None  # one of v1's Model.Framework words, or the user's own
    framework_version: str | None = None
    resources: ModelResources | None = None
    datasets: tuple[ModelDataset, ...] = ()
    sample_input: str | None = None  # a DatasetRecord's id
    sample_output: str | None = None
    is_folder: bool = False  # it was registered from a folder, whose name its paths begin with
    created_by: str = ""


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model. Files, framework and origin never change; labels may."""

    id: str  # ours; v1 shows NAME:NUMBER
    workspace: str
    name: str
    number: int = 0  # the model's version: 1, 2, … of its name; given by the store at insert
    manifest: Manifest
    size: int
    created: datetime
    version: int = 0  # the store's; see stores.base.Records.replace
    run: str | None = None
    experiment: str | None = None
    description: str | None = None
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    framework: str | None = None
    framework_version: str | None = None
    resources: ModelResources | None = None
    datasets: tuple[ModelDataset, ...] = ()
    inputs: tuple[ModelDataset, ...] = ()  # what its run read; the purpose is the input's name
    sample_input: str | None = None
    sample_output: str | None = None
    is_folder: bool = False
    created_by: str = ""
    modified: datetime | None = None


class ModelPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change to what may change. Properties and datasets are added, never changed."""

    description: str | None = None
    tags: dict[str, str | None] | None = None  # in place of all that there are
    set_tags: dict[str, str | None] = {}
    remove_tags: tuple[str, ...] = ()
    add_properties: dict[str, str] = {}
    add_datasets: tuple[ModelDataset, ...] = ()
    sample_input: str | None = None
    sample_output: str | None = None
    resources: ModelResources | None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some models, newest first, and where to go on."""

    models: tuple[ModelRecord, ...]
    next: str | None = None  # pass as `after`; None: this was the last page


class LineageDataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that a model, or its run, was given."""

    purpose: str
    id: str
    name: str = ""  # empty: it has no name, or is no more
    number: int = 0


class ModelLineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model comes from. What is None is not known: no run made it, or it is no more."""

    run: str | None = None
    experiment: str | None = None
    snapshot: str | None = None  # of the code
    environment_name: str | None = None
    environment: EnvironmentUse | None = None  # with its lock
    datasets: tuple[LineageDataset, ...] = ()  # that the model was registered with
    inputs: tuple[LineageDataset, ...] = ()  # that its run read


def model_label(model: ModelRecord) -> str:
    """NAME:VERSION, which is v1's id."""
    return f"{model.name}:{model.number}"


def model_root(model: ModelRecord) -> str:
    """The one file or folder that the model is."""
    return model.manifest[0].path.partition("/")[0]


def search_keys(model: ModelRecord) -> dict[str, str]:
    """The properties a model is found by: its own, its framework and its datasets."""
    uses = (*model.datasets, *model.inputs)
    samples = [one for one in (model.sample_input, model.sample_output) if one is not None]
    return {
        **model.properties,
        **({FRAMEWORK_KEY: model.framework} if model.framework is not None else {}),
        **{DATASET_KEY + id: "" for id in (*(use.dataset for use in uses), *samples)},
    }


def pick_files(files: Iterable[FileEntry], path: str) -> tuple[Manifest, bool]:
    """The file at `path` or those below it, as a model has them, and whether it is a folder.

    Paths begin with the last part of `path`, as v1 lays models out. Nothing found: ((), False).
    """
    wanted = path.strip("/")
    cut = wanted.rfind("/") + 1
    below = []
    for file in files:
        if file.path == wanted:
            return (msgspec.structs.replace(file, path=wanted[cut:]),), False
        if file.path.startswith(wanted + "/"):
            below.append(msgspec.structs.replace(file, path=file.path[cut:]))
    return tuple(sorted(below)), bool(below)


def check_model_files(manifest: Manifest, *, is_folder: bool) -> None:
    """`Invalid` unless the files are what a model is: one file, or the files of one folder."""
    if not manifest:
        raise Invalid(
            "A model needs at least one file.",
            why="The folder is empty.",
            fix="Save the model first, then register it.",
        )
    roots = {entry.path.partition("/")[0] for entry in manifest}
    nested = all("/" in entry.path for entry in manifest)
    if len(roots) > 1 or nested != is_folder:
        raise Invalid(
            "A model is one file, or the files of one folder.",
            why=f"These are: {', '.join(sorted(roots)[:5])}{' …' if len(roots) > 5 else ''}.",
        )
    paths = {entry.path for entry in manifest}
    for entry in manifest:
        parts = entry.path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if both := next((path for path in above if path in paths), None):
            raise Invalid(f"'{both}' cannot be a file and a folder.")


def known_framework(name: str) -> str:
    """The framework in v1's spelling, by any of its names; one that v1 does not know, as it is."""
    spelled = {**_FRAMEWORK_ALIASES, **{known.lower(): known for known in FRAMEWORKS}}
    return spelled.get(name.strip().lower(), name)


def check_framework(framework: str | None, version: str | None) -> None:
    """`Invalid` if a version was given and nothing it could be the version of."""
    if version is not None and framework is None:
        raise Invalid(
            f"The framework's version is {version!r}, but which framework?",
            fix="Pass model_framework, too: Model.Framework.TENSORFLOW",
        )


def check_resources(resources: ModelResources | None) -> None:
    """`Invalid` if nobody could have so much, or so little."""
    if resources is None:
        return
    for name, amount in (("cpu", resources.cpu), ("memory_in_gb", resources.memory_gb)):
        if amount is not None and not 0 < amount < float("inf"):
            raise Invalid(f"{name}={amount!r} makes no sense.", why="It must be more than 0.")
    if resources.gpu is not None and resources.gpu < 0:
        raise Invalid(f"gpu={resources.gpu!r} makes no sense.", why="It must be 0 or more.")


def check_model_name(name: str) -> str:
    """The name, or `Invalid` if a model cannot be called that."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a model.",
            why="A name has 1 to 255 letters, digits, '-', '.' and '_', and begins with a letter "
            "or digit.",
        )
    return name
