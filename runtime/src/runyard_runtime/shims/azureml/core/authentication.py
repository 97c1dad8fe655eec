"""v1's `azureml.core.authentication` inside a job."""

from runyard_runtime import missing
from runyard_runtime.sign_in import (
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

missing.explains(__name__)
