"""azureml.core.webservice.webservice"""

from runyard.sdk.deployment_configuration import WebserviceDeploymentConfiguration
from runyard.sdk.exceptions import WebserviceException
from runyard.sdk.webservice import Webservice

__all__ = ["Webservice", "WebserviceDeploymentConfiguration", "WebserviceException"]
