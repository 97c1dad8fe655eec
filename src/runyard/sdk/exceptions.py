"""The exceptions that v1 code catches, and the one place where ours become theirs.

The classes are the runtime's, so that code behaves the same inside and outside a job.
"""

from runyard.domain.errors import (
    Conflict,
    Denied,
    Invalid,
    NoModelFiles,
    NotFound,
    RunyardError,
    TooLarge,
    Unsupported,
)
from runyard_runtime.exceptions import (
    ActivityFailedException,
    AuthenticationException,
    AzureMLException,
    ComputeTargetException,
    DatasetTimestampMissingError,
    DiscoveryUrlNotFoundException,
    ExperimentExecutionException,
    ModelNotFoundException,
    ModelPathNotFoundException,
    ParallelRunException,
    ProjectSystemException,
    RunConfigurationException,
    RunEnvironmentException,
    ServiceException,
    SnapshotException,
    TrainingException,
    UserErrorException,
    WebserviceException,
    WorkspaceException,
)

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
    "as_v1",
    "as_v1_model",
    "error_text",
    "user_error",
]

_USERS_OWN = (NotFound, NoModelFiles, Invalid, Conflict, Unsupported, TooLarge)


def as_v1(error: RunyardError) -> AzureMLException:
    """The exception that v1 code expects in place of `error`."""
    text = str(error)
    if isinstance(error, _USERS_OWN):
        return UserErrorException(text, error)
    if isinstance(error, Denied):
        return AuthenticationException(text, error)
    return ServiceException(text, error, status_code=error.status)


def as_v1_model(error: RunyardError) -> AzureMLException:
    """The same for what v1's models and services raise."""
    if isinstance(error, NoModelFiles):
        return ModelPathNotFoundException(str(error), error)
    if isinstance(error, _USERS_OWN):
        return WebserviceException(str(error), error)
    return as_v1(error)


def user_error(what: str, *, why: str = "", fix: str = "") -> UserErrorException:
    """A `UserErrorException` with the text every error of ours has."""
    error = Invalid(what, why=why, fix=fix)
    return UserErrorException(str(error), error)


def error_text(what: str, *, why: str = "", fix: str = "") -> str:
    """What, why and fix as one text, in the form every error of ours has."""
    return str(RunyardError(what, why=why, fix=fix))
