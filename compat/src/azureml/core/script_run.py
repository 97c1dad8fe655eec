"""azureml.core.script_run"""

from runyard.sdk.run import ScriptRun as ScriptRun
