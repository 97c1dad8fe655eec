"""v1's `azureml.core.model` inside a job or a service."""

from runyard_runtime import missing
from runyard_runtime.model import Model

__all__ = ["Model"]

missing.explains(__name__)
