"""azureml.core.conda_dependencies"""

from runyard.sdk.conda_dependencies import CondaDependencies as CondaDependencies
