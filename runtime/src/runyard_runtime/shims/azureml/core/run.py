"""v1's `azureml.core.run` inside a job."""

from runyard_runtime import missing
from runyard_runtime.offline import _OfflineRun
from runyard_runtime.run import Run, _SubmittedRun, get_run

__all__ = ["Run", "_OfflineRun", "_SubmittedRun", "get_run"]

missing.explains(__name__)
