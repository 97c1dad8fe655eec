"""azureml.data: datasets, and how runs get at them; loaded name by name as it is used."""

from pkgutil import extend_path
from typing import TYPE_CHECKING

from runyard.sdk.lazy import lazy_names

if TYPE_CHECKING:
    from runyard.sdk.abstract_dataset import AbstractDataset
    from runyard.sdk.data_path import DataPath
    from runyard.sdk.data_reference import DataReference
    from runyard.sdk.dataset_consumption import DatasetConsumptionConfig
    from runyard.sdk.dataset_factory import FileDatasetFactory, TabularDatasetFactory
    from runyard.sdk.file_dataset import FileDataset
    from runyard.sdk.output_dataset import OutputFileDatasetConfig
    from runyard.sdk.tabular_dataset import TabularDataset
    from runyard_runtime.column_types import DataType

__path__ = extend_path(__path__, __name__)

__version__ = "1.61.0"  # as azureml.core.VERSION

__all__ = [
    "AbstractDataset",
    "DataPath",
    "DataReference",
    "DataType",
    "DatasetConsumptionConfig",
    "FileDataset",
    "FileDatasetFactory",
    "OutputFileDatasetConfig",
    "TabularDataset",
    "TabularDatasetFactory",
]

_NAMES = {
    "AbstractDataset": "runyard.sdk.abstract_dataset",
    "DataPath": "runyard.sdk.data_path",
    "DataReference": "runyard.sdk.data_reference",
    "DataType": "runyard_runtime.column_types",
    "DatasetConsumptionConfig": "runyard.sdk.dataset_consumption",
    "FileDataset": "runyard.sdk.file_dataset",
    "FileDatasetFactory": "runyard.sdk.dataset_factory",
    "OutputFileDatasetConfig": "runyard.sdk.output_dataset",
    "TabularDataset": "runyard.sdk.tabular_dataset",
    "TabularDatasetFactory": "runyard.sdk.dataset_factory",
    # Modules, which v1's package had loaded.
    "data_reference": "azureml.data.data_reference",
    "datapath": "azureml.data.datapath",
    "dataset_consumption_config": "azureml.data.dataset_consumption_config",
    "dataset_factory": "azureml.data.dataset_factory",
    "dataset_type_definitions": "azureml.data.dataset_type_definitions",
    "output_dataset_config": "azureml.data.output_dataset_config",
}

__getattr__ = lazy_names(__name__, _NAMES)
