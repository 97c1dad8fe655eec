"""v1's `azureml.data.file_dataset` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datasets import FileDataset

__all__ = ["FileDataset"]

missing.explains(__name__)
