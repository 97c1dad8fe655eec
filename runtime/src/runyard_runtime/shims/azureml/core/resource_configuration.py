"""v1's `azureml.core.resource_configuration` inside a job."""

from runyard_runtime import missing
from runyard_runtime.model import ResourceConfiguration

__all__ = ["ResourceConfiguration"]

missing.explains(__name__)
