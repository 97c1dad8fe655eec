"""azureml.core.compute"""

from runyard.sdk.cluster_compute import RayCompute, SlurmCompute
from runyard.sdk.compute import AmlCompute, ComputeTarget
from runyard.sdk.lazy import lazy_names
from runyard.sdk.named_compute import AksCompute, ComputeInstance
from runyard.sdk.other_compute import (
    AdlaCompute,
    BatchCompute,
    DatabricksCompute,
    DataFactoryCompute,
    DsvmCompute,
    HDInsightCompute,
    KubernetesCompute,
    KustoCompute,
    RemoteCompute,
    SynapseCompute,
)

__all__ = [
    "AdlaCompute",
    "AksCompute",
    "AmlCompute",
    "BatchCompute",
    "ComputeInstance",
    "ComputeTarget",
    "DataFactoryCompute",
    "DatabricksCompute",
    "DsvmCompute",
    "HDInsightCompute",
    "KubernetesCompute",
    "KustoCompute",
    "RayCompute",
    "RemoteCompute",
    "SlurmCompute",
    "SynapseCompute",
]

__getattr__ = lazy_names(__name__, {})
