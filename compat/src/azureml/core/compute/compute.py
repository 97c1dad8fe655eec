"""azureml.core.compute.compute"""

from runyard.sdk.compute import ComputeTarget
from runyard.sdk.compute_settings import ComputeTargetProvisioningConfiguration
from runyard.sdk.exceptions import ComputeTargetException

__all__ = ["ComputeTarget", "ComputeTargetException", "ComputeTargetProvisioningConfiguration"]
