"""azureml.widgets"""

from runyard.sdk.widgets import RunDetails as RunDetails
