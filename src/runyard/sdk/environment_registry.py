"""Environments of a workspace: registered, curated, built."""

import time
from typing import TYPE_CHECKING, Any

from runyard.domain.environments import (
    EnvironmentBuild,
    EnvironmentDraft,
    EnvironmentRecord,
    EnvironmentUse,
)
from runyard.domain.errors import NotFound, RunyardError
from runyard.sdk.exceptions import UserErrorException, as_v1
from runyard.sdk.session import segment

if TYPE_CHECKING:
    from runyard.sdk.environment import Environment
    from runyard.sdk.session import Session
    from runyard.sdk.workspace import Workspace

_POLL_SECONDS = 0.5


def load_environment(
    workspace: "Workspace", name: str, version: str | None, label: str | None
) -> "Environment":
    """One version; an error in v1's words, with the HTTP code, if there is none."""
    try:
        record = workspace._session.client.request(
            "GET",
            f"{workspace._path}/environments/{segment(name)}",
            query={"version": None if version is None else str(version), "label": label},
            answer=EnvironmentRecord,
        )
    except NotFound as error:
        text = f"Error retrieving the environment definition. Code: {error.status}\n{error}"
        raise UserErrorException(text, error) from None
    except RunyardError as error:
        raise as_v1(error) from None
    return environment_of(record)


def list_environments(workspace: "Workspace") -> "dict[str, Environment]":
    """The newest version of each by name, the curated ones too."""
    found = workspace._session.request(
        "GET", f"{workspace._path}/environments", answer=tuple[EnvironmentRecord, ...]
    )
    return {record.name: environment_of(record) for record in found}


def register(environment: "Environment", workspace: "Workspace") -> "Environment":
    """Keep it as the next version; the newest one if nothing changed."""
    definition = environment.serialize_to_dict()
    definition.update(version=None, assetId=None)
    record = workspace._session.request(
        "POST",
        f"{workspace._path}/environments",
        body=EnvironmentDraft(spec=environment.to_spec(), definition=definition),
        answer=EnvironmentRecord,
        safe_to_repeat=True,
    )
    return environment_of(record)


def set_labels(workspace: "Workspace", name: str, version: str, labels: list[str]) -> None:
    """Give a version labels; a label that another version has moves."""
    workspace._session.request(
        "PUT",
        f"{workspace._path}/environments/{segment(name)}/versions/{segment(version)}/labels",
        body=list(labels),
        answer=EnvironmentRecord,
        safe_to_repeat=True,
    )


def environment_of(record: EnvironmentRecord) -> "Environment":
    """The environment that a record describes."""
    from runyard.sdk.environment import Environment

    if not record.definition:
        return Environment.from_spec(record.spec)
    environment = Environment.deserialize_from_dict(record.definition)
    environment.name, environment.version = record.name, record.spec.version
    if record.spec.python is None and not record.spec.user_managed:
        # v1's JSON names a version always, and cannot say that nobody asked for it.
        environment.python.conda_dependencies._default_python = True
    return environment


class ImageBuildDetails:
    """A build of an environment. v1 built images; here it is an interpreter with packages."""

    def __init__(self, environment: "Environment", session: "Session") -> None:
        self.environment = environment
        self._session = session
        self._state = self._start()
        self._log = self._state.log

    @property
    def status(self) -> str:
        """Running, Succeeded or Failed."""
        if not self._state.done:
            self._refresh()
        if not self._state.done:
            return "Running"
        return "Failed" if self._state.error else "Succeeded"

    @property
    def log(self) -> str:
        """The build log so far."""
        return self._log

    def wait_for_completion(self, show_output: bool = True) -> None:
        """Return when it is built; `UserErrorException` with the reason if it cannot be."""
        shown = 0
        while True:
            status = self.status
            if show_output:
                if shown == 0:
                    _say(f"Environment build status: {status}\n")
                _say(self._log[shown:])
                shown = max(1, len(self._log))
            if status != "Running":
                break
            time.sleep(_POLL_SECONDS)
        if show_output:
            _say(f"Environment build status: {status}\n")
        if self._state.error:
            raise UserErrorException(self._state.error)

    def _start(self) -> EnvironmentBuild:
        return self._session.request(
            "POST",
            "/api/v1/environments/builds",
            body=self.environment.to_spec(),
            answer=EnvironmentBuild,
            safe_to_repeat=True,
        )

    def _refresh(self) -> None:
        try:
            self._state = self._session.client.request(
                "GET",
                f"/api/v1/environments/builds/{segment(self._state.id)}",
                query={"offset": self._state.offset},
                answer=EnvironmentBuild,
            )
        except NotFound:  # the server was restarted: ask again, what is built stays built
            self._state = self._start()
        except RunyardError as error:
            raise as_v1(error) from None
        self._log += self._state.log


class DockerImageDetails(dict[str, Any]):
    """What is known of a built environment, with v1's attributes where they make sense."""

    @property
    def image(self) -> dict[str, Any] | None:
        """The build: its key and interpreter; None if it is not built."""
        found: dict[str, Any] | None = self["image"]
        return found

    @property
    def dockerfile(self) -> str | None:
        """The Dockerfile that the environment brings; None if it brings none."""
        text: str | None = self["dockerfile"]
        return text


def image_details(environment: "Environment", workspace: "Workspace") -> DockerImageDetails:
    """Whether the environment is built on the server's machine, and as what."""
    spec = environment.to_spec()
    found = workspace._session.request(
        "POST",
        "/api/v1/environments/find",
        body=spec,
        answer=EnvironmentBuild,
        safe_to_repeat=True,
    )
    return DockerImageDetails(
        imageExistsInRegistry=found.done,
        image=None if found.environment is None else _image(found.environment),
        dockerfile=spec.base_dockerfile,
        environmentName=spec.name,
    )


def _image(use: EnvironmentUse) -> dict[str, Any]:
    return {
        "name": use.key,
        "interpreter": use.interpreter,
        "python": use.python,
        "packages": list(use.lock),
        "notes": list(use.notes),
    }


def _say(text: str) -> None:
    import sys

    sys.stdout.write(text)
    sys.stdout.flush()
