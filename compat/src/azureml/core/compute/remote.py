"""azureml.core.compute.remote"""

from runyard.sdk.other_compute import RemoteCompute as RemoteCompute
