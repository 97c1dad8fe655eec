"""azureml.core.compute.amlcompute"""

from runyard.sdk.compute import AmlCompute
from runyard.sdk.compute_settings import AmlComputeProvisioningConfiguration, ScaleSettings
from runyard.sdk.compute_status import AmlComputeNodeStateCounts, AmlComputeStatus

__all__ = [
    "AmlCompute",
    "AmlComputeNodeStateCounts",
    "AmlComputeProvisioningConfiguration",
    "AmlComputeStatus",
    "ScaleSettings",
]
