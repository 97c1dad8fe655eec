"""azureml.data.dataset_error_handling: data that cannot be read is the user's to mend here, too."""

from runyard.sdk.exceptions import UserErrorException

DatasetExecutionError = DatasetValidationError = UserErrorException

__all__ = ["DatasetExecutionError", "DatasetValidationError"]
