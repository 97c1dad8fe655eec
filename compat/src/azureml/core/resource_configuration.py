"""azureml.core.resource_configuration"""

from runyard.sdk.resource_configuration import ResourceConfiguration as ResourceConfiguration
