"""azureml.core.workspace"""

from runyard.sdk.workspace import Workspace as Workspace
