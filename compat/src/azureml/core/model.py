"""azureml.core.model"""

from runyard.sdk.exceptions import ModelNotFoundException, WebserviceException
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.resource_configuration import ResourceConfiguration

__all__ = [
    "InferenceConfig",
    "Model",
    "ModelNotFoundException",
    "ResourceConfiguration",
    "WebserviceException",
]
