"""azureml.core.compute_target"""

from runyard.sdk.exceptions import ComputeTargetException as ComputeTargetException
from runyard.sdk.lazy import lazy_names

__getattr__ = lazy_names(__name__, {})
