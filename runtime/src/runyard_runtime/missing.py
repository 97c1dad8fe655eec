"""v1 names that a job does not have, and what to do instead.

`ABSENT` is the table: a capability that arrives removes its row. What v1 had in packages of their
own fails when it is imported. What azureml-core had can be imported, because scripts name much at
the top that only their submitting half uses; using it fails. The finder that reads the table stands
last in `sys.meta_path`, so parts of `azureml` that the user's folder or environment brings along
are found before it.
"""

import importlib
import importlib.machinery
import os
import pkgutil
import sys
import types

from runyard_runtime import exceptions

_SUBMIT = (
    "describes or submits a run",
    "This process is the run: it was described and submitted already.",
    "Keep it in the code that submits, and pass what the script needs as arguments.",
)
_DATA = (
    "submits or prepares data outside this job",
    "Jobs read, make and register datasets; the rest is done where runs are submitted.",
    "Keep it in the code that submits.",
)
_COMPUTE = (
    "creates or looks up machines",
    "This process runs on its machines already.",
    "Keep it in the code that submits.",
)
_SERVE = (
    "deploys or calls a service",
    "Services are deployed from the client.",
    "Save the model to ./outputs here and deploy it from the client.",
)
_PIPELINE = (
    "builds pipelines",
    "A pipeline is built and submitted from the client.",
    "Keep it in the code that submits.",
)
_TRAIN = (
    "has estimators and hyperparameter sweeps",
    "Both are submitted from the client; this process is one run of theirs at most.",
    "Keep it in the code that submits, and take the parameters as arguments.",
)
_NOTEBOOK = (
    "shows runs in a notebook",
    "A job has no notebook to show them in.",
    "Keep it in the notebook.",
)
_LOGIN = (
    "signs in to a workspace or keeps secrets",
    "A job is signed in with its run's own token.",
    "Use Run.get_context().experiment.workspace; pass secrets in environment variables.",
)
_SERVICE_ONLY = (
    "belongs to a service of Azure",
    "There is no such service here.",
    "Remove the import, or install a package that does the work itself.",
)
_MLFLOW = (
    "connects MLflow with Azure",
    "No plug-in is needed here.",
    "Remove the import, and log with Run.get_context().log(name, value).",
)
_PRIVATE = (
    "v1 kept private",
    "Only v1's public names are here.",
    "Import the public name, e.g. from azureml.exceptions import UserErrorException",
)

_ROWS = (
    (
        _SUBMIT,
        "core: ScriptRunConfig RunConfiguration Environment ContainerRegistry runconfig "
        "script_run_config script_run environment conda_dependencies container_registry",
    ),
    (_DATA, "core: LinkedService linked_service"),
    (_DATA, "data: DatasetConsumptionConfig OutputFileDatasetConfig HDFSOutputDatasetConfig"),
    (_DATA, "data: dataset_consumption_config output_dataset_config"),
    (_DATA, ": datadrift opendatasets dataprep"),
    (_COMPUTE, "core: ComputeTarget compute compute_target"),
    (_SERVE, "core: Webservice Image webservice image profile"),
    (_SERVE, ": monitoring"),
    (_TRAIN, ": train"),
    (_PIPELINE, ": pipeline"),
    (_NOTEBOOK, ": widgets tensorboard"),
    (_LOGIN, "core: Keyvault keyvault private_endpoint"),
    (_SERVICE_ONLY, ": automl interpret explain accel designer fairness studio"),
    (_MLFLOW, ": mlflow"),
)


def _table():
    table = {}
    for words, row in _ROWS:
        package, _, names = row.partition(":")
        prefix = "azureml.%s." % package if package else "azureml."
        for name in names.split():
            table[prefix + name] = words
    return table


ABSENT = _table()


def why_absent(name):
    """What to tell who imports `name`, or None if it is no name of the table."""
    words = ABSENT.get(name) or (_PRIVATE if name.startswith("azureml._") else None)
    return None if words is None else _explained(name, words)


def _explained(name, words):
    what, why, fix = words
    return "A job has no %s, which %s.\n  why: %s\n  fix: %s" % (name, what, why, fix)


def is_importable(name):
    """Whether v1's azureml-core had it: such a name may be imported, and explains itself in use."""
    return name in ABSENT and name.startswith(("azureml.core.", "azureml.data."))


class _Absent(type):
    """The class of classes that a job does not have."""

    def __call__(cls, *args, **kwargs):
        raise exceptions.UserErrorException(cls._why)

    def __getattr__(cls, name):
        raise AttributeError(name if name.startswith("__") else cls._why)


def _stand_in(module, name, words):
    """What `from module import name` gives for a class that is not here."""
    if name in exceptions.__all__:  # v1's modules had imported those they raise
        return getattr(exceptions, name)
    why = _explained("%s.%s" % (module, name), words)
    return _Absent(name, (object,), {"_why": why, "__module__": module, "__doc__": why})


class _AbsentModule(types.ModuleType):
    """A module that a job does not have; so is all that is in it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError("module '%s' has no attribute '%s'" % (self.__name__, name))
        value = _stand_in(self.__name__, name, self._words)
        setattr(self, name, value)
        return value


class _Loader(object):
    """Makes such modules."""

    def __init__(self, words):
        self._words = words

    def create_module(self, spec):
        module = _AbsentModule(spec.name)
        module._words = self._words
        return module

    def exec_module(self, module):
        pass


def _unknown(module, name):
    import difflib  # only needed when something is wrong already

    known = [one for one in module.__all__ if not one.startswith("_")]
    near = difflib.get_close_matches(name, known, 1, 0.75)
    hint = "Did you mean '%s'?" % near[0] if near else "It has: %s." % ", ".join(sorted(known))
    return "module '%s' has no '%s'. %s" % (module.__name__, name, hint)


class _Shim(types.ModuleType):
    """A module that explains what it does not have. (Python 3.6 has no module `__getattr__`.)"""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError("module '%s' has no attribute '%s'" % (self.__name__, name))
        later = vars(self).get("_later") or {}
        if name in later:  # loaded when it is first used: few scripts need it
            value = getattr(importlib.import_module(later[name]), name)
            setattr(self, name, value)
            return value
        if name in exceptions.__all__:  # v1's modules had imported those they raise
            return getattr(exceptions, name)
        full = "%s.%s" % (self.__name__, name)
        if is_importable(full):
            if name.islower():
                return importlib.import_module(full)
            value = _stand_in(self.__name__, name, ABSENT[full])
            setattr(self, name, value)
            return value
        raise AttributeError(why_absent(full) or _unknown(self, name))


class _Finder(object):
    """Asked last for modules: explains what a shim module does not have.

    `from module import name` asks for a module of that name when there is no such attribute, so
    this is one place for both. The errors do not carry `name`: Python hides those that do.
    """

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        parent, _, name = fullname.rpartition(".")
        module = sys.modules.get(parent)
        if name.islower() and (is_importable(fullname) or isinstance(module, _AbsentModule)):
            words = ABSENT[fullname] if fullname in ABSENT else module._words
            return importlib.machinery.ModuleSpec(fullname, _Loader(words), is_package=True)
        if name.startswith("__") or not (parent == "azureml" or isinstance(module, _Shim)):
            return None
        text = why_absent(fullname)
        if text is None and isinstance(module, _Shim):
            text = _unknown(module, name)
        if text is not None:
            raise ModuleNotFoundError(text)
        return None


def explains(module_name, later=None):
    """Make a module of the shims explain what it does not have.

    `later` are names that are loaded when they are first used: {name: module that has it}.
    """
    module = sys.modules[module_name]
    module._later = later or {}
    module.__class__ = _Shim
    if "__path__" not in vars(module):
        module.__path__ = []  # a package: only these ask the finders about their names
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def namespace(own, name):
    """The path of the namespace package `name`: its own folders, then those of others.

    A job may run in the environment that the platform is installed in, whose azureml submits
    runs. That one is left out: mixed with the job's own, neither would work.
    """
    own = list(own)
    others = [folder for folder in pkgutil.extend_path(own, name) if folder not in own]
    return own + [folder for folder in others if not _is_client(folder)]


def _is_client(folder):
    try:
        with open(os.path.join(folder, "core", "__init__.py"), encoding="utf-8") as stream:
            return "runyard" in stream.read()
    except (OSError, ValueError):
        return False
