"""v1's import paths inside a job: what scripts use, and words about the rest."""

from runyard_runtime import missing

__all__ = ["contrib", "core", "data", "exceptions", "telemetry"]

# Further parts of azureml, out of the user's folder or environment, stay importable.
__path__ = missing.namespace(__path__, __name__)

missing.explains(__name__)
