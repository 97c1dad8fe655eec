"""v1's `azureml.data.datapath` inside a job."""

from runyard_runtime import missing
from runyard_runtime.datastores import StorePath as DataPath

__all__ = ["DataPath"]

missing.explains(__name__)
