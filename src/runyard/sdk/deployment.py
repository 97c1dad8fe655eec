"""What `Model.deploy` and `service.update` do: plan, take the code along, tell the server."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import msgspec

from runyard.domain.errors import Invalid, RunyardError
from runyard.domain.models import ModelRecord
from runyard.domain.services import (
    AccessPatch,
    ServiceDraft,
    ServicePatch,
    ServiceRecord,
    ServiceSpec,
    SpecPatch,
    check_service_name,
    last_revision,
)
from runyard.sdk.blob_upload import post_with_contents
from runyard.sdk.deployment_configuration import (
    Settings,
    WebserviceDeploymentConfiguration,
    plan_settings,
)
from runyard.sdk.exceptions import WebserviceException, as_v1, as_v1_model, error_text, user_error
from runyard.sdk.inference_config import InferenceConfig, plan_service_environment, take_source
from runyard.sdk.model import Model
from runyard.sdk.model_drafts import property_texts, tag_texts
from runyard.sdk.session import Session, segment
from runyard.sdk.snapshot import Snapshot
from runyard.sdk.submission import user_name
from runyard_runtime import wire

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

T = TypeVar("T")

_SENDING_SECONDS = 120.0


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """How models are served by a script: its configuration, and what lies beside it."""

    config: InferenceConfig
    beside: Mapping[str, Path] = {}


def deploy(
    workspace: "Workspace",
    name: str,
    models: Sequence[Model],
    code: Code | None,
    deployment_config: WebserviceDeploymentConfiguration | None,
    deployment_target: object = None,
    *,
    overwrite: bool = False,
) -> ServiceRecord:
    """Ask the server for a service. It is not there yet when this returns."""
    check_name(name)
    checked_models(models, has_code=code is not None)
    settings = plan_settings(deployment_config, deployment_target)
    # v1 replaces a service on the own machine without being asked to.
    overwrite = overwrite or (settings.compute_type == "Local" and _is_local(workspace, name))
    return deploy_so(workspace, name, models, code, settings, overwrite=overwrite)


def _is_local(workspace: "Workspace", name: str) -> bool:
    """True if there is a service of that name, and it was deployed as a local one."""
    found = ask(workspace, "GET", f"{workspace._path}/services", tuple[ServiceRecord, ...])
    return any(one.name == name and one.compute_type == "Local" for one in found)


def deploy_so(
    workspace: "Workspace",
    name: str,
    models: Sequence[Model],
    code: Code | None,
    settings: Settings,
    *,
    overwrite: bool = False,
) -> ServiceRecord:
    """The same with settings in the domain's words."""
    check_name(name)
    records = checked_models(models, has_code=code is not None)
    session = workspace._session
    spec, snapshot = plan_spec(session, records, code, settings)
    draft = ServiceDraft(
        spec=spec,
        uid=uuid4().hex,
        access=settings.access,
        manifest=snapshot.manifest if snapshot else None,
        compute_type=settings.compute_type,
        description=settings.description or (code.config.description if code else None),
        tags=tag_texts(settings.tags),
        properties=property_texts(settings.properties),
        details=settings.details,
        primary_key=settings.primary_key,
        secondary_key=settings.secondary_key,
        overwrite=overwrite,
        created_by=user_name(),
    )
    return _send(session, "PUT", service_path(workspace, name), draft, snapshot, code)


def plan_spec(
    session: Session, models: Sequence[ModelRecord], code: Code | None, settings: Settings
) -> tuple[ServiceSpec, Snapshot | None]:
    """What is to be served. A model's own wishes hold where the configuration has none."""
    wishes = next((model.resources for model in models if model.resources is not None), None)
    told, snapshot = _told_code(session, code)
    spec = ServiceSpec(
        models=tuple(model.id for model in models),
        replicas=settings.replicas,
        cores=settings.cores or (wishes.cpu if wishes else None),
        memory_gb=settings.memory_gb or (wishes.memory_gb if wishes else None),
        gpus=settings.gpus or (wishes.gpu if wishes else None),
        entry_script=told.entry_script,
        snapshot=told.snapshot,
        environment=told.environment,
        variables=told.variables or {},
    )
    return spec, snapshot


def _told_code(session: Session, code: Code | None) -> tuple[SpecPatch, Snapshot | None]:
    """What is said of a script, and the source tree to send along."""
    if code is None:
        return SpecPatch(), None
    code.config.validate_configuration()  # attributes may have been set meanwhile
    source = take_source(code.config, session.settings.home, code.beside)
    told = SpecPatch(
        entry_script=source.entry_script,
        snapshot=source.snapshot.id,
        environment=plan_service_environment(code.config, session.client.url),
        variables={wire.SOURCE_NAME: source.name} if source.name else {},
    )
    return told, source.snapshot


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different; None stays."""

    models: Sequence[Model] | None = None
    code: Code | None = None
    replicas: int | None = None
    cores: float | None = None
    memory_gb: float | None = None
    gpus: int | None = None
    access: AccessPatch | None = None
    description: str | None = None
    tags: Mapping[str, object] | None = None  # all of them
    set_tags: Mapping[str, object] = {}
    properties: Mapping[str, object] | None = None
    details: dict[str, object] = {}


def update(workspace: "Workspace", service: ServiceRecord, change: Change) -> ServiceRecord:
    """Ask the server for a change. A new revision is tried before it takes over."""
    spec, snapshot = _changed_spec(workspace._session, service, change)
    patch = ServicePatch(
        request=uuid4().hex,
        spec=spec,
        manifest=snapshot.manifest if snapshot else None,
        access=change.access,
        description=change.description,
        tags=None if change.tags is None else tag_texts(change.tags),
        set_tags=tag_texts(change.set_tags),
        properties=property_texts(change.properties),
        details=change.details,
    )
    path = service_path(workspace, service.name)
    return _send(workspace._session, "PATCH", path, patch, snapshot, change.code)


def _changed_spec(
    session: Session, service: ServiceRecord, change: Change
) -> tuple[SpecPatch | None, Snapshot | None]:
    """What the next revision has of its own; None if there is to be none. The server knows the
    rest, and chooses the environment of another model."""
    spec, snapshot = _told_code(session, change.code)
    spec = msgspec.structs.replace(
        spec,
        replicas=change.replicas,
        cores=change.cores,
        memory_gb=change.memory_gb,
        gpus=change.gpus,
    )
    if change.models is not None:
        last = last_revision(service)
        has_code = change.code is not None or (last and last.spec.entry_script) is not None
        records = checked_models(change.models, has_code=has_code)
        spec = msgspec.structs.replace(spec, models=tuple(model.id for model in records))
    return (spec if spec != SpecPatch() else None), snapshot


def checked_models(models: Sequence[Model], *, has_code: bool) -> list[ModelRecord]:
    """The records of the models; errors as v1's for what cannot be deployed."""
    given = [models] if isinstance(models, Model) else list(models or ())
    for model in given:
        if not isinstance(model, Model):
            raise WebserviceException(
                error_text(
                    f"{model!r} is not a model.",
                    why="models is a list of Model objects.",
                    fix="Write models=[Model(ws, 'my-model')]",
                )
            )
    if not has_code and len(given) != 1:
        raise user_error(
            f"A service without an inference_config has one model, not {len(given)}.",
            fix="Give one model, or an inference_config with an entry script.",
        )
    return [model._record for model in given]


def check_name(name: str) -> None:
    """`WebserviceException` if a service cannot be called that."""
    try:
        check_service_name(name if isinstance(name, str) else repr(name))
    except Invalid as error:
        raise as_v1_model(error) from None


def service_path(workspace: "Workspace", name: str) -> str:
    """Where the server has the service."""
    return f"{workspace._path}/services/{segment(name)}"


def ask(
    workspace: "Workspace",
    method: str,
    path: str,
    answer: type[T],
    *,
    body: object | None = None,
    query: Mapping[str, object] | None = None,
    timeout_seconds: float = 60.0,
) -> T:
    """One request about services; its errors are v1's for services."""
    return _as_v1(
        lambda: workspace._session.client.request(
            method,
            path,
            query=query,
            body=body,
            answer=answer,
            safe_to_repeat=method != "POST",
            timeout_seconds=timeout_seconds,
        )
    )


def _send(
    session: Session,
    method: str,
    path: str,
    body: object,
    snapshot: Snapshot | None,
    code: Code | None,
) -> ServiceRecord:
    def send() -> ServiceRecord:
        return post_with_contents(
            session,
            path,
            body,
            snapshot.contents() if snapshot else {},
            answer=ServiceRecord,
            about_to_upload=snapshot.warn_of_secrets if snapshot else None,
            timeout_seconds=_SENDING_SECONDS,
            method=method,
        )

    return _as_v1(send, no_code=code is None)


def _as_v1(call: Callable[[], T], *, no_code: bool = False) -> T:
    try:
        return call()
    except RunyardError as error:
        # v1 says with another class what cannot be served without a script.
        if no_code and isinstance(error, Invalid):
            raise as_v1(error) from None
        raise as_v1_model(error) from None
