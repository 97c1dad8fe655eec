"""v1's `azureml._common` inside a job: private, and imported all the same."""

from runyard_runtime import missing

__all__ = []

missing.explains(__name__)
