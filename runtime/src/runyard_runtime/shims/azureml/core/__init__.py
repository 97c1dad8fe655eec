"""v1's `azureml.core` inside a job."""

import urllib.request  # noqa: F401 - scripts say `import urllib` and rely on this

from runyard_runtime import missing
from runyard_runtime.experiment import Experiment
from runyard_runtime.run import Run
from runyard_runtime.workspace import Workspace

VERSION = "1.61.0"  # the v1 release whose surface this is
__version__ = VERSION

__all__ = [
    "VERSION",
    "Dataset",
    "Datastore",
    "Experiment",
    "Model",
    "Run",
    "Workspace",
    "__version__",
]

missing.explains(
    __name__,
    {
        "Dataset": "runyard_runtime.datasets",
        "Datastore": "runyard_runtime.datastores",
        "Model": "runyard_runtime.model",
    },
)
