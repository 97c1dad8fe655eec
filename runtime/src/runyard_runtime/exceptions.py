"""The exceptions v1 code catches, under `azureml.exceptions`.

All carry `.message`. What the platform has to say reads: what happened, why, and what to do.
"""

__all__ = [
    "ActivityFailedException",
    "AuthenticationException",
    "AzureMLException",
    "ComputeTargetException",
    "DatasetTimestampMissingError",
    "DiscoveryUrlNotFoundException",
    "ExperimentExecutionException",
    "ModelNotFoundException",
    "ModelPathNotFoundException",
    "ParallelRunException",
    "ProjectSystemException",
    "RunConfigurationException",
    "RunEnvironmentException",
    "ServiceException",
    "SnapshotException",
    "TrainingException",
    "UserErrorException",
    "WebserviceException",
    "WorkspaceException",
]


class AzureMLException(Exception):
    """The base of all of them."""

    code = ""  # the server's word for it, such as "not_found"; empty: it did not come from there

    def __init__(self, exception_message="", inner_exception=None, **kwargs):
        super(AzureMLException, self).__init__(exception_message)
        self.message = exception_message
        self.inner_exception = inner_exception

    def __str__(self):
        return str(self.message)


class ActivityFailedException(AzureMLException):
    """A run failed."""

    def __init__(self, exception_message="", inner_exception=None, error_details=None, **kwargs):
        super(ActivityFailedException, self).__init__(exception_message, inner_exception)
        self.error_details = error_details


class AuthenticationException(AzureMLException):
    """The token is missing, wrong or not allowed to do this."""


class ComputeTargetException(AzureMLException):
    """Something is wrong with a compute target."""


class DatasetTimestampMissingError(AzureMLException):
    """A time series operation on a dataset without time stamps."""


class DiscoveryUrlNotFoundException(AzureMLException):
    """The address of the platform is not known."""


class ExperimentExecutionException(AzureMLException):
    """A run could not be submitted or followed."""


class WebserviceException(AzureMLException):
    """Something is wrong with a model or a service."""


class ModelNotFoundException(WebserviceException):
    """There is no such model. v1 said so with either class; both catch it."""


class ModelPathNotFoundException(WebserviceException):
    """There is no such file of a model. v1 said so with either class; both catch it."""


class ParallelRunException(AzureMLException):
    """A parallel run step could not go on."""


class ProjectSystemException(AzureMLException):
    """Something is wrong with a project folder."""


class RunConfigurationException(AzureMLException):
    """A run configuration makes no sense as it stands."""


class RunEnvironmentException(AzureMLException):
    """This process does not belong to a job, or its variables are incomplete."""


class ServiceException(AzureMLException):
    """The server cannot be reached, or could not do its work."""

    def __init__(self, exception_message="", inner_exception=None, status_code=None, **kwargs):
        super(ServiceException, self).__init__(exception_message, inner_exception)
        self.status_code = status_code


class SnapshotException(AzureMLException):
    """The source folder could not be kept."""


class TrainingException(AzureMLException):
    """An estimator makes no sense as it stands."""


class UserErrorException(AzureMLException):
    """The request makes no sense as it stands."""


class WorkspaceException(AzureMLException):
    """Something is wrong with a workspace."""


def explain(what, why="", fix=""):
    """One text out of what happened, why, and what to do: the form all our errors have."""
    lines = [what]
    if why:
        lines.append("  why: " + why)
    if fix:
        lines.append("  fix: " + fix)
    return "\n".join(lines)
