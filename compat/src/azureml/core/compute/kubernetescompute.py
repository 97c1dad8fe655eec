"""azureml.core.compute.kubernetescompute"""

from runyard.sdk.other_compute import KubernetesCompute as KubernetesCompute
