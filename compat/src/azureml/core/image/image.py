"""azureml.core.image.image"""

from runyard.sdk.images import Image, ImageConfig

__all__ = ["Image", "ImageConfig"]
