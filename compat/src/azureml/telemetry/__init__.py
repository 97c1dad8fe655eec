"""azureml.telemetry"""

from runyard.sdk.telemetry import set_diagnostics_collection as set_diagnostics_collection
