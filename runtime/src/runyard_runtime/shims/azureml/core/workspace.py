"""v1's `azureml.core.workspace` inside a job."""

from runyard_runtime import missing
from runyard_runtime.workspace import Workspace

__all__ = ["Workspace"]

missing.explains(__name__)
