"""azureml.data.output_dataset_config"""

from runyard.sdk.output_dataset import OutputFileDatasetConfig as OutputFileDatasetConfig
