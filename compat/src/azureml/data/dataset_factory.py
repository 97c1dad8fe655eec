"""azureml.data.dataset_factory"""

from runyard.sdk.dataset_factory import FileDatasetFactory as FileDatasetFactory
from runyard.sdk.dataset_factory import TabularDatasetFactory as TabularDatasetFactory
from runyard_runtime.column_types import DataType as DataType
