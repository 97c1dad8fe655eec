"""azureml.core.compute.aks"""

from runyard.sdk.named_compute import AksCompute as AksCompute
