"""azureml.core.experiment"""

from runyard.sdk.experiment import Experiment as Experiment
