"""azureml._restclient.exceptions"""

from runyard.sdk.exceptions import ServiceException as ServiceException
