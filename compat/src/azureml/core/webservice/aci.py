"""azureml.core.webservice.aci"""

from runyard.sdk.deployment_configuration import AciServiceDeploymentConfiguration
from runyard.sdk.webservice_kinds import AciWebservice

__all__ = ["AciServiceDeploymentConfiguration", "AciWebservice"]
