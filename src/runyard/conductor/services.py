"""What users may do to services. Each is safe to repeat.

`conductor.serving` keeps their processes; here are names, revisions, keys and the end.
"""

import contextlib
import secrets
import socket
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from runyard.conductor.runs import keep_snapshot
from runyard.data.sealing import seal, unseal
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Conflict, Invalid, NotFound, Unsupported
from runyard.domain.files import Manifest, decode_manifest
from runyard.domain.models import ModelRecord
from runyard.domain.runs import RunRecord
from runyard.domain.services import (
    SCRIPT_SCORER,
    Revision,
    ServiceAuth,
    ServiceDraft,
    ServiceKeys,
    ServicePatch,
    ServiceRecord,
    ServiceSpec,
    ServiceState,
    ServiceToken,
    check_service_name,
    check_uid,
    last_revision,
    with_access,
    with_spec,
)
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning import no_code
from runyard.serving.access import mint_token
from runyard.stores.base import Store, Where, change_record, find_all

_TOKEN_LIFE = timedelta(hours=12)
_TOKEN_REFRESH = timedelta(hours=11)
_KEY_BYTES = 24
# Below the ports that the kernel gives to whoever asks for any.
_PORTS = range(20000, 32000)
_PORT_TRIES = 200


def service_id(workspace: WorkspaceRecord, name: str) -> str:
    """The id follows from the names, so that there is one of a name, whoever else makes it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{workspace.id}/services/{name}"))


def load_service(store: Store, workspace: WorkspaceRecord, name: str) -> ServiceRecord:
    """The service of that name, or `NotFound` that says which there are."""
    try:
        return store.records.get(ServiceRecord, service_id(workspace, name))
    except NotFound:
        known = ", ".join(sorted(one.name for one in list_services(store, workspace)))
    raise NotFound(
        f"Service '{name}' does not exist in workspace '{workspace.name}'.",
        why=f"It has: {known or 'none'}.",
        fix=f"Deploy a model with: runyard deploy MODEL --name {name}",
    )


def list_services(store: Store, workspace: WorkspaceRecord | None) -> list[ServiceRecord]:
    """All services of a workspace, oldest first; None: of every workspace."""
    where = Where(workspace=workspace.name if workspace else None)
    return list(find_all(store.records, ServiceRecord, where))[::-1]


def services_of_model(store: Store, model: ModelRecord) -> list[ServiceRecord]:
    """The services that have a revision with this model."""
    return [
        service
        for service in find_all(store.records, ServiceRecord, Where(workspace=model.workspace))
        if any(
            revision is not None and model.id in revision.spec.models
            for revision in (service.serving, service.coming)
        )
    ]


def create_service(
    store: Store,
    workspace: WorkspaceRecord,
    name: str,
    draft: ServiceDraft,
    *,
    secret: bytes,
    host: str,
    now: datetime,
) -> ServiceRecord:
    """Make a service, or with `overwrite` give the one of that name a new revision."""
    check_service_name(name)
    spec = settle_spec(store, workspace, draft.spec, draft.manifest)
    draft = msgspec.structs.replace(draft, spec=spec)
    try:
        there = store.records.get(ServiceRecord, service_id(workspace, name))
    except NotFound:
        return _insert(store, workspace, name, draft, secret=secret, host=host, now=now)
    if draft.uid is not None and (there.uid == draft.uid or _was_asked(there, draft.uid)):
        return there  # an earlier attempt arrived, and only its answer was lost
    _check_lives(there)
    if not draft.overwrite:
        raise Conflict(
            f"Service '{name}' exists already.",
            why=f"It is {there.state}.",
            fix="Deploy with overwrite=True (--overwrite), update it, or choose another name.",
        )

    _check_port(there, draft.access.port)

    def how(service: ServiceRecord) -> ServiceRecord:
        _check_lives(service)
        if draft.uid is not None and _was_asked(service, draft.uid):
            return service
        return msgspec.structs.replace(
            _with_revision(service, draft.spec, now, draft.uid),
            secret=_overwritten_secret(service, draft, secret),
            settled=False,
            access=msgspec.structs.replace(draft.access, port=service.access.port),
            compute_type=draft.compute_type,
            description=draft.description,
            tags=draft.tags,
            properties={**service.properties, **draft.properties},
            details=draft.details,
        )

    return _change(store, there.id, how)


def _was_asked(service: ServiceRecord, request: str) -> bool:
    """Whether this very request has made a revision already."""
    revisions = (service.serving, service.coming, service.failed, *service.leaving)
    return any(one is not None and one.request == request for one in revisions)


def _check_lives(service: ServiceRecord) -> None:
    if service.deleting:
        raise Conflict(f"Service '{service.name}' is being deleted.", fix="Try again in a moment.")


def _check_port(service: ServiceRecord, port: int | None) -> None:
    if port not in (None, service.port):
        raise Invalid(
            f"Service '{service.name}' keeps its port, {service.port}.",
            fix=f"Delete the service and deploy it on port {port}, or ask for no port.",
        )


def _new_keys(draft: ServiceDraft) -> dict[str, str]:
    return {
        "primary": draft.primary_key or secrets.token_urlsafe(_KEY_BYTES),
        "secondary": draft.secondary_key or secrets.token_urlsafe(_KEY_BYTES),
        "tokens": secrets.token_hex(32),
        "control": secrets.token_hex(16),
    }


def _overwritten_secret(service: ServiceRecord, draft: ServiceDraft, secret: bytes) -> str:
    """The sealed keys of a service that is deployed anew: it keeps those that are not given."""
    given = {"primary": draft.primary_key, "secondary": draft.secondary_key}
    try:
        known = open_secrets(service, secret)
    except Conflict:  # they were sealed by another server: nobody will ever read them
        return seal(_new_keys(draft), secret)
    keys = {**known, **{name: key for name, key in given.items() if key}}
    return seal(keys, secret) if keys != known else service.secret


def _insert(
    store: Store,
    workspace: WorkspaceRecord,
    name: str,
    draft: ServiceDraft,
    *,
    secret: bytes,
    host: str,
    now: datetime,
) -> ServiceRecord:
    others = list_services(store, None)
    uid = check_uid(draft.uid) if draft.uid is not None else uuid.uuid4().hex
    if any(other.uid == uid for other in others):
        raise Conflict(f"The uid '{uid}' is that of another service.", fix="Choose another uid.")
    taken = {service.port for service in others}
    record = ServiceRecord(
        id=service_id(workspace, name),
        uid=uid,
        workspace=workspace.name,
        name=name,
        created=now,
        modified=now,
        access=draft.access,
        port=_choose_port(host, draft.access.port, taken),
        secret=seal(_new_keys(draft), secret),
        compute_type=draft.compute_type,
        description=draft.description,
        tags=draft.tags,
        properties=draft.properties,
        details=draft.details,
        created_by=draft.created_by,
    )
    return store.records.insert(_with_revision(record, draft.spec, now, uid))


def _with_revision(
    service: ServiceRecord, spec: ServiceSpec, now: datetime, request: str | None
) -> ServiceRecord:
    """The service with a new revision to try; one that was being tried goes."""
    made = service.made + 1
    leaving = service.leaving
    if service.coming is not None and service.coming.run is not None:
        leaving = (*leaving, service.coming)
    return msgspec.structs.replace(
        service,
        state=ServiceState.TRANSITIONING,
        waiting="its workers are about to start",
        made=made,
        coming=Revision(number=made, spec=spec, created=now, request=request),
        leaving=leaving,
        front_starts=0,
        front_failed_at=None,
        error=None,
        modified=now,
    )


def update_service(
    store: Store, workspace: WorkspaceRecord, name: str, patch: ServicePatch, now: datetime
) -> ServiceRecord:
    """Change a service; a new `spec` is tried beside the present one."""

    def how(record: ServiceRecord) -> ServiceRecord:
        _check_lives(record)
        if patch.request is not None and _was_asked(record, patch.request):
            return record
        access, tags = record.access, record.tags if patch.tags is None else patch.tags
        if patch.access is not None:
            _check_port(record, patch.access.port)
            # The port that was asked for at first stays: None is "any".
            access = msgspec.structs.replace(with_access(access, patch.access), port=access.port)
        if patch.spec is not None:
            asked = with_spec(_load_last(record).spec, patch.spec)
            spec = settle_spec(store, workspace, asked, patch.manifest)
            record = _with_revision(record, spec, now, patch.request)
        tags = {**tags, **patch.set_tags}
        return msgspec.structs.replace(
            record,
            access=access,
            settled=record.settled and access == record.access,
            description=record.description if patch.description is None else patch.description,
            tags={key: value for key, value in tags.items() if key not in patch.remove_tags},
            properties={**record.properties, **patch.properties},
            details={**record.details, **patch.details},
            modified=now,
        )

    return _change(store, load_service(store, workspace, name).id, how)


def _load_last(service: ServiceRecord) -> Revision:
    last = last_revision(service)
    if last is None:
        raise Conflict(
            f"Service '{service.name}' has nothing that could be started again or changed.",
            fix="Deploy it with overwrite=True.",
        )
    return last


def restart_service(
    store: Store, workspace: WorkspaceRecord, name: str, now: datetime
) -> ServiceRecord:
    """Try what the service serves once more, in new processes: v1's `reload`."""

    def how(record: ServiceRecord) -> ServiceRecord:
        _check_lives(record)
        # What it was made of may be gone since: that is said now, not by its workers.
        spec = settle_spec(store, workspace, _load_last(record).spec, None)
        return _with_revision(record, spec, now, None)

    return _change(store, load_service(store, workspace, name).id, how)


def delete_service(
    store: Store, workspace: WorkspaceRecord, name: str, now: datetime
) -> ServiceRecord:
    """Ask for the service's end."""
    service = load_service(store, workspace, name)

    def how(record: ServiceRecord) -> ServiceRecord:
        if record.uid != service.uid:
            return record  # another one, made since: it was not meant
        return msgspec.structs.replace(record, deleting=True, modified=now)

    return _change(store, service.id, how)


def settle_spec(
    store: Store, workspace: WorkspaceRecord, spec: ServiceSpec, manifest: Manifest | None
) -> ServiceSpec:
    """The spec with all that was left open chosen; `Invalid` for what cannot be served."""
    models = [_load_model(store, workspace, id) for id in spec.models]
    if spec.replicas < 1:
        raise Invalid(f"A service cannot have {spec.replicas} replicas.", fix="Ask for 1 or more.")
    if spec.entry_script is not None:
        _check_script(store, spec, manifest)
        environment = _plain(spec.environment or _environment_for_script(store, models))
        return msgspec.structs.replace(spec, scorer=SCRIPT_SCORER, environment=environment)
    if len(models) != 1:
        raise Invalid(
            f"A service without an entry script has one model, not {len(models)}.",
            fix="Give one model, or an inference_config with an entry script.",
        )
    row = no_code.find_no_code(models[0])
    environment = _plain(spec.environment or _environment_for(store, row, models[0]))
    return msgspec.structs.replace(spec, scorer=row.scorer, environment=environment, snapshot=None)


def _plain(environment: EnvironmentSpec) -> EnvironmentSpec:
    """The same environment outside of a container, where the front end reaches its workers."""
    if environment.user_managed and (environment.base_image or environment.base_dockerfile):
        raise Unsupported(
            f"Environment '{environment.name}' cannot serve.",
            why="Its Python is in an image, and services run outside of containers.",
            fix="Name its packages: env.python.user_managed_dependencies = False and "
            "conda_dependencies, or a conda file.",
        )
    return msgspec.structs.replace(environment, docker=False)


def _load_model(store: Store, workspace: WorkspaceRecord, id: str) -> ModelRecord:
    model = store.records.get(ModelRecord, id)
    if model.workspace != workspace.name:
        raise Invalid(f"Model '{model.name}:{model.number}' is in another workspace.")
    return model


def _environment_for(store: Store, row: no_code.NoCode, model: ModelRecord) -> EnvironmentSpec:
    """Where the model is served: where it was trained, if that is known and good for it."""
    return no_code.plan_environment(row, model, *_trained_in(store, model))


def _environment_for_script(store: Store, models: Sequence[ModelRecord]) -> EnvironmentSpec:
    """Where a script without an environment runs: where one of its models was trained, or with
    the framework of one; else with what scripts always have."""
    for model in models:
        trained_in, _ = _trained_in(store, model)
        if trained_in is not None:
            return trained_in
    for model in models:
        row = no_code.NO_CODE.get(model.framework or "")
        if row is not None:
            return no_code.plan_environment(row, model, None, ())
    return EnvironmentSpec(name="entry-script", pip=("azureml-defaults",))


def _trained_in(store: Store, model: ModelRecord) -> tuple[EnvironmentSpec | None, Sequence[str]]:
    """The environment of the run that made the model, and its lock; (None, ()): not known."""
    if model.run is not None:
        with contextlib.suppress(NotFound):  # the run may be gone; the model stays
            run = store.records.get(RunRecord, model.run)
            if run.spec.script is not None and run.environment is not None:
                return run.spec.script.environment, run.environment.lock
    return None, ()


def _check_script(store: Store, spec: ServiceSpec, manifest: Manifest | None) -> None:
    """Refuse an entry script that is not there; keep the source tree around it."""
    if spec.snapshot is None:
        raise Invalid("An entry script needs its source tree.")
    keep_snapshot(store, spec.snapshot, manifest)
    tree = decode_manifest(b"".join(store.blobs.open(spec.snapshot)))
    if spec.entry_script not in {entry.path for entry in tree}:
        some = ", ".join(sorted(entry.path for entry in tree)[:10])
        raise Invalid(
            f"The entry script '{spec.entry_script}' is not among the files of the service.",
            why=f"They are: {some or 'none'}.",
            fix="Check entry_script, which is relative to source_directory.",
        )


def _change(store: Store, id: str, how: Callable[[ServiceRecord], ServiceRecord]) -> ServiceRecord:
    return change_record(store.records, ServiceRecord, id, how)


# ---- keys ------------------------------------------------------------------------------------


def open_secrets(service: ServiceRecord, secret: bytes) -> dict[str, str]:
    """The keys of a service, and what its front end signs and is told by."""
    return unseal(service.secret, secret, of=f"service '{service.name}'")


def get_keys(service: ServiceRecord, secret: bytes) -> ServiceKeys:
    """The two keys."""
    known = open_secrets(service, secret)
    return ServiceKeys(primary=known["primary"], secondary=known["secondary"])


def set_key(
    store: Store, service: ServiceRecord, which: str, key: str | None, secret: bytes
) -> ServiceRecord:
    """Give the service a new key; without one, a random one."""
    if which not in ("primary", "secondary"):
        raise Invalid(f"{which!r} is not a key of a service.", fix="It is primary or secondary.")
    new = key or secrets.token_urlsafe(_KEY_BYTES)

    def how(record: ServiceRecord) -> ServiceRecord:
        _check_lives(record)
        known = {**open_secrets(record, secret), which: new}
        return msgspec.structs.replace(record, secret=seal(known, secret), settled=False)

    return _change(store, service.id, how)


def make_token(service: ServiceRecord, secret: bytes, now: datetime) -> ServiceToken:
    """A token for callers of a service that wants tokens."""
    if service.access.auth is not ServiceAuth.TOKEN:
        raise Conflict(
            f"Service '{service.name}' does not use tokens.",
            why=f"Its callers are asked for: {service.access.auth}.",
            fix="Deploy it with token_auth_enabled=True, or use get_keys().",
        )
    expires = now + _TOKEN_LIFE
    seconds = int(expires.timestamp())
    return ServiceToken(
        token=mint_token(open_secrets(service, secret)["tokens"], service.name, seconds),
        expires=datetime.fromtimestamp(seconds, UTC),
        refresh_after=now + _TOKEN_REFRESH,
    )


# ---- ports -----------------------------------------------------------------------------------


def _choose_port(host: str, wanted: int | None, taken: set[int]) -> int:
    """A port that nobody uses now, and no other service will want back."""
    if wanted is not None:
        if wanted in taken or not _is_free(host, wanted):
            raise Conflict(
                f"Port {wanted} is in use.",
                why="Another service or another program on this machine has it.",
                fix="Choose another port, or none: then a free one is found.",
            )
        return wanted
    for _ in range(_PORT_TRIES):
        port = secrets.choice(_PORTS)
        if port not in taken and _is_free(host, port):
            return port
    raise Conflict("No free port was found for the service.", fix="Give one: port=…")


def _is_free(host: str, port: int) -> bool:
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
