"""azureml.core: the heart of v1, loaded name by name as it is used."""

import urllib.request  # v1 code relies on azureml.core having loaded it
from typing import TYPE_CHECKING

import azureml.data
import azureml.exceptions  # v1's package had loaded both: `azureml.data.FileDataset` works
from runyard.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from runyard.sdk.compute import ComputeTarget
    from runyard.sdk.dataset import Dataset
    from runyard.sdk.datastore import Datastore
    from runyard.sdk.environment import Environment
    from runyard.sdk.experiment import Experiment
    from runyard.sdk.images import Image
    from runyard.sdk.model import Model
    from runyard.sdk.run import Run, ScriptRun
    from runyard.sdk.run_configuration import RunConfiguration
    from runyard.sdk.script_run_config import ScriptRunConfig
    from runyard.sdk.webservice import Webservice
    from runyard.sdk.workspace import Workspace

VERSION = __version__ = "1.61.0"  # the v1 release whose behaviour this follows

__all__ = [
    "VERSION",
    "ComputeTarget",
    "Dataset",
    "Datastore",
    "Environment",
    "Experiment",
    "Image",
    "Model",
    "Run",
    "RunConfiguration",
    "ScriptRun",
    "ScriptRunConfig",
    "Webservice",
    "Workspace",
    "__version__",
]

_NAMES = {
    "ComputeTarget": "runyard.sdk.compute",
    "ContainerRegistry": "runyard.sdk.environment",
    "Dataset": "runyard.sdk.dataset",
    "Datastore": "runyard.sdk.datastore",
    "Environment": "runyard.sdk.environment",
    "Experiment": "runyard.sdk.experiment",
    "Image": "runyard.sdk.images",
    "Model": "runyard.sdk.model",
    "Run": "runyard.sdk.run",
    "RunConfiguration": "runyard.sdk.run_configuration",
    "ScriptRun": "runyard.sdk.run",
    "ScriptRunConfig": "runyard.sdk.script_run_config",
    "Webservice": "runyard.sdk.webservice",
    "Workspace": "runyard.sdk.workspace",
    # v1's package had loaded its modules: `azureml.core.run.Run` works without importing them.
    "authentication": "azureml.core.authentication",
    "compute": "azureml.core.compute",
    "compute_target": "azureml.core.compute_target",
    "container_registry": "azureml.core.container_registry",
    "conda_dependencies": "azureml.core.conda_dependencies",
    "dataset": "azureml.core.dataset",
    "datastore": "azureml.core.datastore",
    "environment": "azureml.core.environment",
    "experiment": "azureml.core.experiment",
    "image": "azureml.core.image",
    "model": "azureml.core.model",
    "resource_configuration": "azureml.core.resource_configuration",
    "run": "azureml.core.run",
    "runconfig": "azureml.core.runconfig",
    "script_run": "azureml.core.script_run",
    "script_run_config": "azureml.core.script_run_config",
    "webservice": "azureml.core.webservice",
    "workspace": "azureml.core.workspace",
}

__getattr__ = lazy_names(__name__, _NAMES)
