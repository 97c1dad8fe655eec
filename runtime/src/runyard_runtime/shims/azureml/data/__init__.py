"""v1's `azureml.data` inside a job."""

from runyard_runtime import missing
from runyard_runtime.column_types import DataType
from runyard_runtime.datasets import (
    AbstractDataset,
    FileDataset,
    FileDatasetFactory,
    TabularDataset,
    TabularDatasetFactory,
)

__all__ = [
    "AbstractDataset",
    "DataType",
    "FileDataset",
    "FileDatasetFactory",
    "TabularDataset",
    "TabularDatasetFactory",
]

missing.explains(__name__)
