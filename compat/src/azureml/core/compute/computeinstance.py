"""azureml.core.compute.computeinstance"""

from runyard.sdk.other_compute import ComputeInstance as ComputeInstance
