"""azureml.core.run"""

from runyard.sdk.exceptions import RunEnvironmentException  # v1 code takes it from here, too
from runyard.sdk.run import (
    Run,
    ScriptRun,
    get_run,
)
from runyard_runtime.offline import (
    _OfflineRun,
)

__all__ = [
    "Run",
    "RunEnvironmentException",
    "ScriptRun",
    "_OfflineRun",
    "get_run",
]
