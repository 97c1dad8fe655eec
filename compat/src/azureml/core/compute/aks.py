"""azureml.core.compute.aks"""

from runyard.sdk.other_compute import AksCompute as AksCompute
