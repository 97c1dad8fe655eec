"""azureml.data.data_reference"""

from runyard.sdk.data_reference import DataReference as DataReference
