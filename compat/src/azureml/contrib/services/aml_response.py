"""azureml.contrib.services.aml_response"""

from runyard_runtime.scoring_requests import AMLResponse as AMLResponse
