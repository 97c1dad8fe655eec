"""azureml.core.authentication"""

from runyard.sdk.authentication import (
    AzureCliAuthentication,
    InteractiveLoginAuthentication,
    MsiAuthentication,
    ServicePrincipalAuthentication,
)

__all__ = [
    "AzureCliAuthentication",
    "InteractiveLoginAuthentication",
    "MsiAuthentication",
    "ServicePrincipalAuthentication",
]
