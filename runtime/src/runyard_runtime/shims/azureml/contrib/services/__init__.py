"""v1's `azureml.contrib.services`: raw HTTP for entry scripts."""

from runyard_runtime import missing

__all__ = ["aml_request", "aml_response"]

missing.explains(__name__)
