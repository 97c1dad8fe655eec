"""azureml.core.compute.synapse"""

from runyard.sdk.other_compute import SynapseCompute as SynapseCompute
