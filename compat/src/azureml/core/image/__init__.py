"""azureml.core.image"""

from runyard.sdk.images import ContainerImage, Image
from runyard.sdk.lazy import lazy_names

__all__ = ["ContainerImage", "Image"]

__getattr__ = lazy_names(__name__, {})
