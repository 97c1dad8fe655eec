"""azureml.core.compute.datafactory"""

from runyard.sdk.other_compute import DataFactoryCompute as DataFactoryCompute
