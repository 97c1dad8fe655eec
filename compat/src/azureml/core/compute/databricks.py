"""azureml.core.compute.databricks"""

from runyard.sdk.other_compute import DatabricksCompute as DatabricksCompute
