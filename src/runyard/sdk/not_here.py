"""What v1 had and this release does not have, in one table.

A later release that brings a family deletes its row.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

from runyard.sdk.exceptions import UserErrorException, error_text

# Dotted v1 name → what it is. A row covers everything below its name.
NOT_YET: dict[str, str] = {
    "azureml.core.Keyvault": "the secret store",
    "azureml.core.LinkedService": "linked services",
    "azureml.core.PrivateEndPoint": "private endpoints",
    "azureml.core.image": "this part of container images of models",
    "azureml.core.keyvault": "the secret store",
    "azureml.core.profile": "model profiling",
    "azureml.core.webservice": "this part of model deployment",
    "azureml.data": "this part of datasets and datastores",
    "azureml.dataprep": "the data preparation package",
    "azureml.mlflow": "the MLflow protocol",
    "azureml.monitoring": "the collection of model data",
    "azureml.pipeline": "pipelines",
    "azureml.tensorboard": "TensorBoard",
    "azureml.train.hyperdrive": "hyperparameter sweeps",
    "azureml.train": "this part of training",
}

NEVER: dict[str, str] = {
    "azureml._": "what v1 kept private",
    "azureml.accel": "accelerated models (FPGA)",
    "azureml.automl": "automated machine learning (AutoML)",
    "azureml.contrib": "contributed previews",
    "azureml.core.databricks": "Databricks",
    "azureml.core.runconfig.JarLibrary": "Spark jobs",
    "azureml.datadrift": "the detection of data drift",
    "azureml.designer": "the designer",
    "azureml.explain": "model explanation",
    "azureml.fairness": "fairness reports",
    "azureml.interpret": "model explanation",
    "azureml.opendatasets": "Azure Open Datasets",
    "azureml.studio": "the designer",
    "azureml.train.automl": "automated machine learning (AutoML)",
}

# What to do meanwhile, where there is something better than waiting.
_INTERPRET = "Install and use the interpret package directly in your script."

INSTEAD: dict[str, str] = {
    "azureml._": "Import the public name, e.g. from azureml.exceptions import UserErrorException",
    "azureml.mlflow": "Log with run.log(...) of Run.get_context().",
    "azureml.interpret": _INTERPRET,
    "azureml.explain": _INTERPRET,
}


def explain_missing(name: str) -> str | None:
    """Why a v1 name is not here, in words; None if v1 had no such thing or we have it."""
    row = _row(name)
    if row in NEVER:
        return error_text(
            f"{name} is not supported.",
            why=f"Runyard does not cover {NEVER[row]}.",
            fix=INSTEAD.get(row, "Remove this import; the rest of the SDK works without it."),
        )
    if row in NOT_YET:
        return error_text(
            f"{name} is not in this release.",
            why=f"Runyard does not have {NOT_YET[row]} yet.",
            fix=INSTEAD.get(row, "Remove this import, or wait for a release that has it."),
        )
    return None


def _row(name: str) -> str:
    """The most special row that covers a name; empty if there is none."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        row = ".".join(parts[:length])
        if row in NEVER or row in NOT_YET:
            return row
    private = name.startswith("azureml._") and not name.startswith("azureml.__")
    return "azureml._" if private else ""


def refuse(what: str, family: str, fix: str = "") -> NoReturn:
    """Raise the error for a method that v1 had and this release does not have."""
    raise UserErrorException(
        error_text(
            f"{what} is not in this release.", why=f"Runyard does not have {family} yet.", fix=fix
        )
    )


def missing_attribute(owner: object, name: str, families: Mapping[str, str]) -> AttributeError:
    """The error for an attribute; `families` has those of v1 and what they belong to."""
    kind = owner.__name__ if isinstance(owner, type) else type(owner).__name__
    if name not in families:
        return AttributeError(f"'{kind}' object has no attribute '{name}'")
    return AttributeError(
        error_text(
            f"{kind}.{name} is not in this release.", why=f"Runyard does not have {families[name]}."
        )
    )


def missing_name(module: str, name: str) -> ImportError | AttributeError:
    """The error for a name that `module` does not have; what `__getattr__` of a module raises."""
    text = explain_missing(f"{module}.{name}")
    if text is not None:
        return ImportError(text)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class MissingModules:
    """Last on `sys.meta_path`: says why a module of v1 cannot be imported."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for what is not ours; an error in words for what v1 had and we have not."""
        if fullname.startswith("azureml."):
            text = explain_missing(fullname)
            if text is not None:
                raise ModuleNotFoundError(text)  # Python hides the text of one that has a name
        return None


def explain_missing_modules() -> None:
    """Have imports of missing v1 modules fail in words. Packages that are installed go first."""
    if MissingModules not in sys.meta_path:
        sys.meta_path.append(MissingModules)
