"""azureml.core.compute.hdinsight"""

from runyard.sdk.other_compute import HDInsightCompute as HDInsightCompute
