"""v1's `azureml.exceptions` inside a job."""

from runyard_runtime import exceptions, missing
from runyard_runtime.exceptions import *  # noqa: F403

__all__ = list(exceptions.__all__)

missing.explains(__name__)
