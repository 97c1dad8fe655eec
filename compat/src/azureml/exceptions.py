"""azureml.exceptions"""

from runyard_runtime.exceptions import *  # noqa: F403
