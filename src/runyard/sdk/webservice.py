"""`Webservice`: a live handle of a deployed service, whichever of v1's three kinds it is."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from runyard.domain.errors import NotFound, RunyardError
from runyard.domain.models import ModelRecord
from runyard.domain.services import (
    ServiceAuth,
    ServiceKeys,
    ServiceLogs,
    ServicePatch,
    ServiceRecord,
    ServiceToken,
)
from runyard.sdk import deployment, service_waiting
from runyard.sdk.deployment import Change, Code, ask, service_path
from runyard.sdk.deployment_configuration import (
    WebserviceDeploymentConfiguration,
    check_keys,
)
from runyard.sdk.exceptions import WebserviceException, as_v1_model, error_text
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.model_drafts import has_labels, label_filters, property_texts, tag_texts
from runyard.sdk.service_calls import call_service
from runyard.sdk.service_waiting import SUCCEEDED, Waiting, failure_text, is_settled, succeeded
from runyard.sdk.session import segment

if TYPE_CHECKING:
    from runyard.sdk.images import Image, ImageConfig
    from runyard.sdk.workspace import Workspace

_LONG_POLL_SECONDS = 2.0  # a dot each
_DELETE_SECONDS = 600.0
_RETRY_SECONDS = 0.1

_Models = Sequence[Model]
_Config = WebserviceDeploymentConfiguration | None


class Webservice:
    """A deployed service. Its attributes are those of the last look at it."""

    _webservice_type: str | None = None

    def __new__(cls, workspace: "Workspace", name: str) -> "Webservice":
        """The service of that name, as the class of where it was deployed to."""
        path = service_path(workspace, name)
        try:
            record = workspace._session.client.request("GET", path, answer=ServiceRecord)
        except NotFound as error:
            what = (
                f"WebserviceNotFound: Webservice with name {name} not found in provided workspace"
            )
            raise WebserviceException(
                error_text(what, why=error.why, fix=error.fix), error
            ) from None
        except RunyardError as error:
            raise as_v1_model(error) from None
        return Webservice._of(workspace, record)

    def __init__(self, workspace: "Workspace", name: str) -> None:
        """All is there already; v1 code calls it with these."""

    @staticmethod
    def _of(
        workspace: "Workspace", record: ServiceRecord, code: Code | None = None
    ) -> "Webservice":
        """The handle of a record; `code` is what it was deployed with by this very process."""
        from runyard.sdk.webservice_kinds import KINDS

        service: Webservice = object.__new__(KINDS.get(record.compute_type, Webservice))
        service.workspace = workspace
        service._record = record
        service._code = code
        service._secret = None
        return service

    workspace: "Workspace"
    _record: ServiceRecord
    _code: Code | None
    _secret: str | None  # the key or token that the last call was made with
    _known = 0  # the last revision whose failure was told
    _patience_seconds = 2.0  # with a service that does not know its new key yet

    # Deploying

    @staticmethod
    def deploy(
        workspace: "Workspace",
        name: str,
        model_paths: Sequence[str],
        image_config: "ImageConfig",
        deployment_config: _Config = None,
        deployment_target: object = None,
        overwrite: bool = False,
    ) -> "Webservice":
        """Register models from files and deploy them."""
        from pathlib import Path

        models = [Model.register(workspace, path, Path(path).name) for path in model_paths]
        return Webservice.deploy_from_model(
            workspace, name, models, image_config, deployment_config, deployment_target, overwrite
        )

    @staticmethod
    def deploy_from_model(
        workspace: "Workspace",
        name: str,
        models: _Models,
        image_config: "ImageConfig",
        deployment_config: _Config = None,
        deployment_target: object = None,
        overwrite: bool = False,
    ) -> "Webservice":
        """Deploy registered models with the script of an image configuration."""
        from runyard.sdk.images import code_of

        return deploy_service(
            workspace,
            name,
            models,
            code_of(image_config),
            deployment_config,
            deployment_target,
            overwrite=overwrite,
        )

    @staticmethod
    def deploy_from_image(
        workspace: "Workspace",
        name: str,
        image: "Image",
        deployment_config: _Config = None,
        deployment_target: object = None,
        overwrite: bool = False,
    ) -> "Webservice":
        """Deploy what an image was made of."""
        from runyard.sdk.images import code_of

        return deploy_service(
            workspace,
            name,
            image.models,
            code_of(image),
            deployment_config,
            deployment_target,
            overwrite=overwrite,
        )

    @staticmethod
    def deploy_local_from_model(
        workspace: "Workspace",
        name: str,
        models: _Models,
        image_config: "ImageConfig",
        deployment_config: _Config = None,
        wait: bool = False,
    ) -> "Webservice":
        """Deploy registered models to try them."""
        from runyard.sdk.webservice_kinds import LocalWebservice

        config = deployment_config or LocalWebservice.deploy_configuration()
        service = Webservice.deploy_from_model(
            workspace, name, models, image_config, config, overwrite=True
        )
        if wait:
            service.wait_for_deployment()
        return service

    @staticmethod
    def list(
        workspace: "Workspace",
        compute_type: str | None = None,
        image_name: str | None = None,
        image_id: str | None = None,
        model_name: str | None = None,
        model_id: str | None = None,
        tags: Sequence[object] | None = None,
        properties: Sequence[object] | None = None,
        image_digest: str | None = None,
    ) -> "_Services":
        """The services of a workspace that match, oldest first."""
        records = ask(workspace, "GET", f"{workspace._path}/services", tuple[ServiceRecord, ...])
        wanted = (compute_type or "").upper()
        found = [
            Webservice._of(workspace, record)
            for record in records
            if (not wanted or record.compute_type.upper() == wanted)
            and has_labels(record.tags, label_filters("tags", tags))
            and has_labels(record.properties, label_filters("properties", properties))
        ]
        if model_name is None and model_id is None:
            return found
        return [service for service in found if _serves(service, model_name, model_id)]

    # What it is

    @property
    def name(self) -> str:
        """The service's name."""
        return self._record.name

    @property
    def state(self) -> str:
        """Transitioning, Healthy, Unhealthy or Failed, at the last look."""
        return str(self._record.state)

    @property
    def error(self) -> dict[str, object] | None:
        """Why it does not serve, or why the last update was not taken over; None: all is well."""
        error = self._record.error
        if error is None:
            return None
        told: dict[str, object] = {
            "code": error.code,
            "statusCode": 400,
            "message": error.message,
            "details": [],
        }
        if error.traceback:
            told["details"] = [{"code": "Traceback", "message": error.traceback}]
        return told

    @property
    def compute_type(self) -> str:
        """ACI, AKS or Local: as what it was deployed."""
        return self._record.compute_type

    @property
    def scoring_uri(self) -> str:
        """Where requests are sent to."""
        return f"{self._base}/score"

    @property
    def swagger_uri(self) -> str:
        """Where the service says what it takes."""
        return f"{self._base}/swagger.json"

    @property
    def _base(self) -> str:
        """The service as this client reaches it: the server's name, the service's port."""
        host = urlsplit(self.workspace._session.client.url).hostname or "localhost"
        return f"http://{f'[{host}]' if ':' in host else host}:{self._record.port}"

    @property
    def auth_enabled(self) -> bool:
        """True if callers show a key."""
        return self._record.access.auth is ServiceAuth.KEY

    @property
    def token_auth_enabled(self) -> bool:
        """True if callers show a token."""
        return self._record.access.auth is ServiceAuth.TOKEN

    @property
    def description(self) -> str | None:
        """What was said of it."""
        return self._record.description

    @property
    def tags(self) -> dict[str, str | None]:
        """Its tags."""
        return dict(self._record.tags)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties."""
        return dict(self._record.properties)

    @property
    def created_time(self) -> datetime:
        """When it was deployed first."""
        return self._record.created

    @property
    def updated_time(self) -> datetime:
        """When it was changed last."""
        return self._record.modified

    @property
    def created_by(self) -> str:
        """Who deployed it."""
        return self._record.created_by

    @property
    def image(self) -> None:
        """None: services are not made of images here."""
        return

    @property
    def image_id(self) -> None:
        """None: services are not made of images here."""
        return

    @property
    def models(self) -> "_ModelList":
        """The models that it serves, or is about to."""
        revision = self._record.serving or self._record.coming or self._record.failed
        if revision is None:
            return []
        return [
            Model._of(
                self.workspace,
                ask(self.workspace, "GET", f"/api/v1/models/{segment(id)}", ModelRecord),
            )
            for id in revision.spec.models
        ]

    def __getattr__(self, name: str) -> Any:
        """v1's further settings, as they were given: cpu_cores, location, …"""
        if name.startswith("_") or "_record" not in self.__dict__:
            raise AttributeError(name)
        if name in _DETAILS:
            return self._record.details.get(name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def serialize(self) -> dict[str, object]:
        """What is known of it, under v1's keys."""
        record = self._record
        return {
            "name": record.name,
            "description": record.description,
            "tags": self.tags,
            "properties": self.properties,
            "state": self.state,
            "createdTime": record.created.isoformat(),
            "updatedTime": record.modified.isoformat(),
            "error": self.error,
            "computeType": record.compute_type,
            "workspaceName": record.workspace,
            "imageId": None,
            "scoringUri": self.scoring_uri,
            "swaggerUri": self.swagger_uri,
            "authEnabled": self.auth_enabled,
            "aadAuthEnabled": self.token_auth_enabled,
            "models": [model.id for model in self.models],
            **{_camel(key): value for key, value in record.details.items()},
        }

    @staticmethod
    def deserialize(workspace: "Workspace", webservice_payload: Mapping[str, object]) -> Any:
        """The service that `serialize` was called on; it must be in that workspace."""
        return Webservice(workspace, str(webservice_payload.get("name") or ""))

    # Waiting

    def update_deployment_state(self) -> None:
        """Look at the service anew."""
        self._record = ask(self.workspace, "GET", self._path, ServiceRecord)

    def wait_for_deployment(
        self, show_output: bool = False, timeout_sec: float | None = None
    ) -> None:
        """Return when the service serves what was asked last; `WebserviceException` with the
        real reason if it does not come to that."""
        waiting = Waiting(sys.stdout.write if show_output else lambda text: len(text))
        deadline = None if timeout_sec is None else time.monotonic() + timeout_sec
        self.update_deployment_state()
        waiting.begins()
        while not is_settled(self._record):
            waiting.shows(self._record)
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                waiting.ends("TimedOut")
                raise WebserviceException(failure_text(self._record, timeout_sec))
            self._look_again(min(_LONG_POLL_SECONDS, left or _LONG_POLL_SECONDS))
        if not succeeded(self._record, self._known):
            self._known = self._record.made
            waiting.ends("Failed")
            raise WebserviceException(failure_text(self._record))
        if not self._record.settled:
            service_waiting.settle(self)
        waiting.ends(SUCCEEDED)
        if show_output:
            sys.stdout.write(f"{self._finished()}\n")
            sys.stdout.flush()

    def _finished(self) -> str:
        return f'{self.compute_type} service creation operation finished, operation "{SUCCEEDED}"'

    def _look_again(self, seconds: float) -> None:
        """Look as soon as something has changed, or after so long."""
        self._record = ask(
            self.workspace,
            "GET",
            self._path,
            ServiceRecord,
            query={"newer_than": self._record.version, "wait": seconds},
            timeout_seconds=seconds + 30,
        )

    def get_logs(self, num_lines: int = 5000, init: bool = False) -> str:
        """What its processes printed, the newest first: builds, `init()`, requests."""
        lines = max(1, min(int(num_lines), 100_000))
        query = {"lines": lines}
        return ask(self.workspace, "GET", f"{self._path}/logs", ServiceLogs, query=query).text

    # Calling

    def run(self, input_data: object) -> Any:
        """Send data to the service; its answer, parsed. Texts and bytes go as they are."""
        if self._secret is None:
            self._secret = self._new_secret()
        answer = call_service(self.scoring_uri, input_data, self._secret)
        deadline = time.monotonic() + self._patience_seconds
        while answer.status == 401:
            # It was changed, or has run out; the service learns of a change a moment later.
            self.update_deployment_state()
            self._secret = self._new_secret()
            answer = call_service(self.scoring_uri, input_data, self._secret)
            if time.monotonic() > deadline:
                break
            time.sleep(_RETRY_SECONDS)
        return answer.parsed()

    def _new_secret(self) -> str:
        match self._record.access.auth:
            case ServiceAuth.KEY:
                return self.get_keys()[0]
            case ServiceAuth.TOKEN:
                return self._token().token
            case _:
                return ""

    def get_keys(self) -> tuple[str, str]:
        """The two keys; either opens the service."""
        keys = ask(self.workspace, "GET", f"{self._path}/keys", ServiceKeys)
        return keys.primary, keys.secondary

    def regen_key(self, key: str, set_key: str | None = None) -> None:
        """Change the Primary or the Secondary key: to a new random one, or to `set_key`."""
        which = str(key or "").lower()
        if which not in ("primary", "secondary"):
            raise WebserviceException(
                f"Error, invalid value provided for key: {key}.\n"
                "Valid options are: Primary, Secondary"
            )
        check_keys(set_key)
        body = {"key": set_key}
        ask(self.workspace, "POST", f"{self._path}/keys/{which}", ServiceKeys, body=body)
        service_waiting.settle(self)
        self._secret = None

    def get_token(self) -> tuple[str, datetime]:
        """A token for callers, and when to get the next one."""
        token = self._token()
        return token.token, token.refresh_after

    def get_access_token(self) -> "ServiceAccessToken":
        """A token for callers, with its times."""
        return ServiceAccessToken(self._token())

    def _token(self) -> ServiceToken:
        return ask(self.workspace, "POST", f"{self._path}/token", ServiceToken)

    # Changing

    def update(self, *args: object, **kwargs: object) -> None:
        """Change the service; the classes of the three kinds say what can be changed."""
        raise NotImplementedError("This kind of service cannot be updated.")

    def _update(self, change: Change) -> None:
        if change == Change():
            raise WebserviceException("No parameters provided to update.")
        self._record = deployment.update(self.workspace, self._record, change)
        self._code = change.code or self._code
        self._secret = None

    def reload(self) -> None:
        """Serve the same once more, in new processes."""
        self._record = ask(self.workspace, "POST", f"{self._path}/restart", ServiceRecord)

    def add_tags(self, tags: Mapping[str, object]) -> None:
        """Add tags, or change their values."""
        self._patch(ServicePatch(set_tags=tag_texts(tags)))

    def remove_tags(self, tags: Iterable[str] | str) -> None:
        """Remove tags by their keys."""
        gone = (tags,) if isinstance(tags, str) else tuple(tags)
        self._patch(ServicePatch(remove_tags=gone))

    def add_properties(self, properties: Mapping[str, object]) -> None:
        """Add properties."""
        self._patch(ServicePatch(properties=property_texts(properties)))

    def _patch(self, patch: ServicePatch) -> None:
        self._record = ask(self.workspace, "PATCH", self._path, ServiceRecord, body=patch)

    def delete(self) -> None:
        """End the service; returns when it is gone."""
        client = self.workspace._session.client
        deadline = time.monotonic() + _DELETE_SECONDS
        try:
            self._record = client.request("DELETE", self._path, answer=ServiceRecord)
            while time.monotonic() < deadline:
                query = {"newer_than": self._record.version, "wait": _LONG_POLL_SECONDS}
                found = client.request("GET", self._path, query=query, answer=ServiceRecord)
                if found.uid != self._record.uid:
                    return  # somebody has deployed another one of that name since
                self._record = found
        except NotFound:
            return  # that is what was wanted
        except RunyardError as error:
            raise as_v1_model(error) from None
        raise WebserviceException(
            error_text(
                f"Service '{self.name}' is still there after {_DELETE_SECONDS:g} seconds.",
                why=f"It waits: {self._record.waiting}.",
            )
        )

    @property
    def _path(self) -> str:
        return service_path(self.workspace, self._record.name)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name}, "
            f"compute_type={self.compute_type}, state={self.state}, "
            f"scoring_uri={self.scoring_uri}, tags={self.tags}, properties={self.properties}, "
            f"created_by={self.created_by})"
        )


class ServiceAccessToken:
    """A token for the callers of a service."""

    def __init__(self, token: ServiceToken) -> None:
        self.access_token = token.token
        self.refresh_after = token.refresh_after
        self.expiry_on = token.expires
        self.token_type = "Bearer"


_Services = list[Webservice]
_ModelList = list[Model]
_DETAILS = frozenset(
    {"cpu_cores", "memory_gb", "location", "ssl_enabled", "ssl_cname", "enable_app_insights"}
    | {"dns_name_label", "autoscale_enabled", "autoscale_min_replicas", "autoscale_max_replicas"}
    | {"autoscale_refresh_seconds", "autoscale_target_utilization", "collect_model_data"}
    | {"scoring_timeout_ms", "replica_max_concurrent_requests", "max_request_wait_time"}
    | {"num_replicas", "gpu_cores", "namespace", "compute_target_name", "period_seconds"}
)


def deploy_service(
    workspace: "Workspace",
    name: str,
    models: _Models,
    code: Code | None,
    deployment_config: _Config,
    deployment_target: object,
    *,
    overwrite: bool,
) -> Webservice:
    """Ask for a service; its handle, while it is still coming up."""
    record = deployment.deploy(
        workspace, name, models, code, deployment_config, deployment_target, overwrite=overwrite
    )
    return Webservice._of(workspace, record, code)


def code_for(inference_config: InferenceConfig | None) -> Code | None:
    """What an inference configuration asks for; an error if it is something else."""
    if inference_config is None:
        return None
    if not isinstance(inference_config, InferenceConfig):
        raise WebserviceException(
            error_text(
                f"inference_config cannot be of type {type(inference_config).__name__}.",
                fix="Pass InferenceConfig(entry_script='score.py', environment=env)",
            )
        )
    return Code(config=inference_config)


def _serves(service: Webservice, name: str | None, id: str | None) -> bool:
    return any(
        (name is None or model.name == name) and (id is None or model.id == id)
        for model in service.models
    )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
