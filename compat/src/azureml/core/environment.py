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

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "MPI_CPU_IMAGE",
    "MPI_GPU_IMAGE",
    "CondaDependencies",
    "ContainerRegistry",
    "DockerSection",
    "Environment",
    "PythonSection",
]
