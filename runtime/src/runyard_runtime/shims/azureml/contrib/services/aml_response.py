"""v1's `azureml.contrib.services.aml_response`."""

from runyard_runtime import missing
from runyard_runtime.scoring_requests import AMLResponse

__all__ = ["AMLResponse"]

missing.explains(__name__)
