"""azureml.core.runconfig"""

from runyard.sdk.conda_dependencies import CondaDependencies
from runyard.sdk.data_reference import DataReferenceConfiguration
from runyard.sdk.distributed import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from runyard.sdk.environment import (
    DEFAULT_CPU_IMAGE,
    DEFAULT_GPU_IMAGE,
    MPI_CPU_IMAGE,
    MPI_GPU_IMAGE,
    ContainerRegistry,
    DockerSection,
    Environment,
    PythonSection,
)
from runyard.sdk.ignored_sections import (
    AmlComputeConfiguration,
    HdiConfiguration,
    KubernetesComputeConfiguration,
    ParallelTaskConfiguration,
    SparkConfiguration,
)
from runyard.sdk.lazy import lazy_names
from runyard.sdk.run_configuration import (
    DockerConfiguration,
    HistoryConfiguration,
    RunConfiguration,
)

EnvironmentDefinition = Environment  # v1's own older name for it

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "MPI_CPU_IMAGE",
    "MPI_GPU_IMAGE",
    "AmlComputeConfiguration",
    "CondaDependencies",
    "ContainerRegistry",
    "DataReferenceConfiguration",
    "DockerConfiguration",
    "DockerSection",
    "Environment",
    "EnvironmentDefinition",
    "HdiConfiguration",
    "HistoryConfiguration",
    "KubernetesComputeConfiguration",
    "MpiConfiguration",
    "ParallelTaskConfiguration",
    "PyTorchConfiguration",
    "PythonSection",
    "RunConfiguration",
    "SparkConfiguration",
    "TensorflowConfiguration",
]

# What v1's module had imported for itself, and scripts took from there.
_NAMES = {
    "DataPath": "runyard.sdk.data_path",
    "DataReference": "runyard.sdk.data_reference",
    "SparkPackage": "runyard.sdk.environment",
    "SparkSection": "runyard.sdk.environment",
}

__getattr__ = lazy_names(__name__, _NAMES)
