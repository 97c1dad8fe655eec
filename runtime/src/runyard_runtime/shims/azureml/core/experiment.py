"""v1's `azureml.core.experiment` inside a job."""

from runyard_runtime import missing
from runyard_runtime.experiment import Experiment

__all__ = ["Experiment"]

missing.explains(__name__)
