"""azureml.core.authentication"""

from runyard.sdk.authentication import (
    AbstractAuthentication,
    ArcTokenAuthentication,
    AzureCliAuthentication,
    AzureMLTokenAuthentication,
    InteractiveLoginAuthentication,
    MsiAuthentication,
    ServicePrincipalAuthentication,
    TokenAuthentication,
)

__all__ = [
    "AbstractAuthentication",
    "ArcTokenAuthentication",
    "AzureCliAuthentication",
    "AzureMLTokenAuthentication",
    "InteractiveLoginAuthentication",
    "MsiAuthentication",
    "ServicePrincipalAuthentication",
    "TokenAuthentication",
]
