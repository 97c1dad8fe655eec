"""azureml.core.script_run_config"""

from runyard.sdk.script_run_config import ScriptRunConfig as ScriptRunConfig
