"""azureml.contrib.services.aml_request"""

from runyard_runtime.scoring_requests import AMLRequest as AMLRequest
from runyard_runtime.scoring_requests import rawhttp as rawhttp
