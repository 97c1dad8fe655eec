"""azureml.data.context_managers"""

from runyard.sdk.mounting import MountContext as MountContext
