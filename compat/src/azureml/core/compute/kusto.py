"""azureml.core.compute.kusto"""

from runyard.sdk.other_compute import KustoCompute as KustoCompute
