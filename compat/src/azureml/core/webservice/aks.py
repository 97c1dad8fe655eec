"""azureml.core.webservice.aks"""

from runyard.sdk.deployment_configuration import AksServiceDeploymentConfiguration
from runyard.sdk.webservice import ServiceAccessToken as AksServiceAccessToken
from runyard.sdk.webservice_kinds import AksWebservice

__all__ = ["AksServiceAccessToken", "AksServiceDeploymentConfiguration", "AksWebservice"]
