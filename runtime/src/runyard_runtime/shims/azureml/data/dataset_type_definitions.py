"""v1's `azureml.data.dataset_type_definitions` inside a job."""

from runyard_runtime import missing
from runyard_runtime.column_types import FileEncoding, PromoteHeadersBehavior

__all__ = ["FileEncoding", "PromoteHeadersBehavior"]

missing.explains(__name__)
