"""The Azure ML SDK v1 import paths; everything behind them is Runyard's."""

from pkgutil import extend_path

from runyard.sdk.not_here import explain_missing_modules

__path__ = extend_path(__path__, __name__)  # other distributions may add azureml.* packages

explain_missing_modules()
