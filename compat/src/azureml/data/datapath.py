"""azureml.data.datapath"""

from runyard.sdk.data_path import DataPath as DataPath
from runyard.sdk.data_path import DataPathComputeBinding as DataPathComputeBinding
