"""azureml.core.compute.compute"""

from runyard.sdk.compute import ComputeTarget
from runyard.sdk.compute_settings import ComputeTargetProvisioningConfiguration

__all__ = ["ComputeTarget", "ComputeTargetProvisioningConfiguration"]
