"""azureml.core.dataset"""

from runyard.sdk.dataset import Dataset as Dataset
