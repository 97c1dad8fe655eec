"""azureml.core.compute.adla"""

from runyard.sdk.other_compute import AdlaCompute as AdlaCompute
