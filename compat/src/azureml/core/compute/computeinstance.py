"""azureml.core.compute.computeinstance"""

from runyard.sdk.named_compute import ComputeInstance as ComputeInstance
