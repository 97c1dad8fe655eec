"""v1's `azureml.contrib` inside a service: raw HTTP for entry scripts."""

from runyard_runtime import missing

__all__ = ["services"]

# Further parts of azureml.contrib, out of the user's folder or environment, stay importable.
__path__ = missing.namespace(__path__, __name__)

missing.explains(__name__)
