"""azureml.core.environment"""

from runyard.sdk.environment import (
    DEFAULT_CPU_IMAGE,
    DEFAULT_GPU_IMAGE,
    MPI_CPU_IMAGE,
    MPI_GPU_IMAGE,
    CondaDependencies,
    ContainerRegistry,
    DockerSection,
    Environment,
    PythonSection,
)
from runyard.sdk.environment_registry import DockerImageDetails, ImageBuildDetails

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "MPI_CPU_IMAGE",
    "MPI_GPU_IMAGE",
    "CondaDependencies",
    "ContainerRegistry",
    "DockerImageDetails",
    "DockerSection",
    "Environment",
    "ImageBuildDetails",
    "PythonSection",
]
