"""azureml.data.dataset_consumption_config"""

from runyard.sdk.dataset_consumption import DatasetConsumptionConfig as DatasetConsumptionConfig
