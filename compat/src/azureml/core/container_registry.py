"""azureml.core.container_registry"""

from runyard.sdk.environment import ContainerRegistry

__all__ = ["ContainerRegistry"]
