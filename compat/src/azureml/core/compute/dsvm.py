"""azureml.core.compute.dsvm"""

from runyard.sdk.other_compute import DsvmCompute as DsvmCompute
