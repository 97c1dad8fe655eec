"""azureml.core.compute.batch"""

from runyard.sdk.other_compute import BatchCompute as BatchCompute
