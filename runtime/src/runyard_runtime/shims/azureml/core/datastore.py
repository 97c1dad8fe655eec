"""v1's `azureml.core.datastore` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datastores import Datastore

__all__ = ["Datastore"]

missing.explains(__name__)
