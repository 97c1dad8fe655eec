"""azureml.core.workspace"""

from runyard.sdk.exceptions import WorkspaceException as WorkspaceException
from runyard.sdk.workspace import Workspace as Workspace
