"""v1's `azureml._common.exceptions` inside a job."""

from runyard_runtime import missing
from runyard_runtime.exceptions import AzureMLException

__all__ = ["AzureMLException"]

missing.explains(__name__)
