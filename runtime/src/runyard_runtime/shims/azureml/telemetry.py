"""v1's `azureml.telemetry` inside a job: nothing is collected."""

from runyard_runtime import missing

__all__ = ["set_diagnostics_collection"]


def set_diagnostics_collection(send_diagnostics=True, **kwargs):
    """Nothing to do: nothing is collected."""


missing.explains(__name__)
