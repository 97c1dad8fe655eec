"""v1's `azureml.contrib.services.aml_request`."""

from runyard_runtime import missing
from runyard_runtime.scoring_requests import AMLRequest, rawhttp

__all__ = ["AMLRequest", "rawhttp"]

missing.explains(__name__)
