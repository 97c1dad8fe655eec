"""azureml.data.abstract_dataset"""

from runyard.sdk.abstract_dataset import AbstractDataset as AbstractDataset
