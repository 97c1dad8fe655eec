"""v1's `azureml.data.dataset_factory` inside a job."""

from runyard_runtime import missing
from runyard_runtime.column_types import DataType
from runyard_runtime.datasets import FileDatasetFactory, TabularDatasetFactory

__all__ = ["DataType", "FileDatasetFactory", "TabularDatasetFactory"]

missing.explains(__name__)
