"""azureml.data.tabular_dataset"""

from runyard.sdk.tabular_dataset import TabularDataset as TabularDataset
