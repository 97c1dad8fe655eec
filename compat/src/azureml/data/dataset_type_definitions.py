"""azureml.data.dataset_type_definitions"""

from runyard_runtime.column_types import FileEncoding as FileEncoding
from runyard_runtime.column_types import PromoteHeadersBehavior as PromoteHeadersBehavior
