"""azureml.core.image.container"""

from runyard.sdk.images import ContainerImage, ContainerImageConfig

__all__ = ["ContainerImage", "ContainerImageConfig"]
