"""azureml.core.webservice.local"""

from runyard.sdk.deployment_configuration import LocalWebserviceDeploymentConfiguration
from runyard.sdk.webservice_kinds import LocalWebservice

__all__ = ["LocalWebservice", "LocalWebserviceDeploymentConfiguration"]
