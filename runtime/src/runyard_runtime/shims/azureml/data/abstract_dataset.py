"""v1's `azureml.data.abstract_dataset` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datasets import AbstractDataset

__all__ = ["AbstractDataset"]

missing.explains(__name__)
