"""azureml.data.file_dataset"""

from runyard.sdk.file_dataset import FileDataset as FileDataset
