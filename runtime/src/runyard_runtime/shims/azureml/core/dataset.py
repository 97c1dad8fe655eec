"""v1's `azureml.core.dataset` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datasets import Dataset

__all__ = ["Dataset"]

missing.explains(__name__)
