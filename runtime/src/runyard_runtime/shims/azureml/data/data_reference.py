"""v1's `azureml.data.data_reference` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datastores import StorePath as DataReference

__all__ = ["DataReference"]

missing.explains(__name__)
