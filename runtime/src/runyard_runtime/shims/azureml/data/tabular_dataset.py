"""v1's `azureml.data.tabular_dataset` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datasets import TabularDataset

__all__ = ["TabularDataset"]

missing.explains(__name__)
