"""azureml.core.run"""

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
    "ScriptRun",
    "_OfflineRun",
    "get_run",
]
