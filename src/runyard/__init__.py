"""Runyard: train, track, register and deploy models on your own machines.

The names are those of the Azure ML SDK v1; each is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runyard.sdk.compute import AmlCompute, ComputeTarget
    from runyard.sdk.conda_dependencies import CondaDependencies
    from runyard.sdk.data_path import DataPath
    from runyard.sdk.data_reference import DataReference
    from runyard.sdk.dataset import Dataset
    from runyard.sdk.dataset_consumption import DatasetConsumptionConfig
    from runyard.sdk.datastore import Datastore
    from runyard.sdk.distributed import (
        MpiConfiguration,
        PyTorchConfiguration,
        TensorflowConfiguration,
    )
    from runyard.sdk.environment import Environment
    from runyard.sdk.experiment import Experiment
    from runyard.sdk.output_dataset import OutputFileDatasetConfig
    from runyard.sdk.run import Run, ScriptRun
    from runyard.sdk.run_configuration import DockerConfiguration, RunConfiguration
    from runyard.sdk.script_run_config import ScriptRunConfig
    from runyard.sdk.workspace import Workspace

__all__ = [
    "AmlCompute",
    "ComputeTarget",
    "CondaDependencies",
    "DataPath",
    "DataReference",
    "Dataset",
    "DatasetConsumptionConfig",
    "Datastore",
    "DockerConfiguration",
    "Environment",
    "Experiment",
    "MpiConfiguration",
    "OutputFileDatasetConfig",
    "PyTorchConfiguration",
    "Run",
    "RunConfiguration",
    "ScriptRun",
    "ScriptRunConfig",
    "TensorflowConfiguration",
    "Workspace",
    "__version__",
]

_SOURCES = {
    "AmlCompute": "runyard.sdk.compute",
    "ComputeTarget": "runyard.sdk.compute",
    "CondaDependencies": "runyard.sdk.conda_dependencies",
    "Dataset": "runyard.sdk.dataset",
    "Datastore": "runyard.sdk.datastore",
    "DataReference": "runyard.sdk.data_reference",
    "DataPath": "runyard.sdk.data_path",
    "DatasetConsumptionConfig": "runyard.sdk.dataset_consumption",
    "OutputFileDatasetConfig": "runyard.sdk.output_dataset",
    "DockerConfiguration": "runyard.sdk.run_configuration",
    "Environment": "runyard.sdk.environment",
    "Experiment": "runyard.sdk.experiment",
    "MpiConfiguration": "runyard.sdk.distributed",
    "PyTorchConfiguration": "runyard.sdk.distributed",
    "Run": "runyard.sdk.run",
    "RunConfiguration": "runyard.sdk.run_configuration",
    "ScriptRun": "runyard.sdk.run",
    "ScriptRunConfig": "runyard.sdk.script_run_config",
    "TensorflowConfiguration": "runyard.sdk.distributed",
    "Workspace": "runyard.sdk.workspace",
}


def __getattr__(name: str) -> object:
    source = _SOURCES.get(name)
    if source is None:
        raise AttributeError(f"module 'runyard' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(source), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
