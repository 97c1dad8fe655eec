"""azureml._common.exceptions"""

from runyard.sdk.exceptions import AzureMLException as AzureMLException
