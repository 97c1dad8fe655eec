"""Runyard: train, track, register and deploy models on your own machines.

The names are those of the Azure ML SDK v1; each is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runyard.sdk.cluster_compute import RayCompute, SlurmCompute
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
    from runyard.sdk.inference_config import InferenceConfig
    from runyard.sdk.model import Model
    from runyard.sdk.output_dataset import OutputFileDatasetConfig
    from runyard.sdk.resource_configuration import ResourceConfiguration
    from runyard.sdk.run import Run, ScriptRun
    from runyard.sdk.run_configuration import DockerConfiguration, RunConfiguration
    from runyard.sdk.script_run_config import ScriptRunConfig
    from runyard.sdk.webservice import Webservice
    from runyard.sdk.webservice_kinds import AciWebservice, AksWebservice, LocalWebservice
    from runyard.sdk.workspace import Workspace

__all__ = [
    "AciWebservice",
    "AksWebservice",
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
    "InferenceConfig",
    "LocalWebservice",
    "Model",
    "MpiConfiguration",
    "OutputFileDatasetConfig",
    "PyTorchConfiguration",
    "RayCompute",
    "ResourceConfiguration",
    "Run",
    "RunConfiguration",
    "ScriptRun",
    "ScriptRunConfig",
    "SlurmCompute",
    "TensorflowConfiguration",
    "Webservice",
    "Workspace",
    "__version__",
]

_SOURCES = {
    "AciWebservice": "runyard.sdk.webservice_kinds",
    "AksWebservice": "runyard.sdk.webservice_kinds",
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
    "InferenceConfig": "runyard.sdk.inference_config",
    "LocalWebservice": "runyard.sdk.webservice_kinds",
    "Model": "runyard.sdk.model",
    "MpiConfiguration": "runyard.sdk.distributed",
    "PyTorchConfiguration": "runyard.sdk.distributed",
    "RayCompute": "runyard.sdk.cluster_compute",
    "ResourceConfiguration": "runyard.sdk.resource_configuration",
    "Run": "runyard.sdk.run",
    "RunConfiguration": "runyard.sdk.run_configuration",
    "ScriptRun": "runyard.sdk.run",
    "ScriptRunConfig": "runyard.sdk.script_run_config",
    "SlurmCompute": "runyard.sdk.cluster_compute",
    "TensorflowConfiguration": "runyard.sdk.distributed",
    "Webservice": "runyard.sdk.webservice",
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
