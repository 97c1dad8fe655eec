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
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale, Unsupported
from runyard.domain.files import FileInfo, Manifest, decode_manifest
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
)
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning import no_code
from runyard.serving.access import mint_token
from runyard.stores.base import Store, Where, find_all

_TOKEN_LIFE = timedelta(hours=12)
_TOKEN_REFRESH = timedelta(hours=11)
_KEY_BYTES = 24
# Below the ports that the kernel gives to whoever asks for any.
_PORTS = range(20000, 32000)
_PORT_TRIES = 200
_LOG_BYTES = 1 << 20  # of one log that are looked at


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
    if there.uid == draft.uid:
        return there  # an earlier attempt arrived, and only its answer was lost
    if there.deleting:
        raise Conflict(f"Service '{name}' is being deleted.", fix="Try again in a moment.")
    if not draft.overwrite:
        raise Conflict(
            f"Service '{name}' exists already.",
            why=f"It is {there.state}.",
            fix="Deploy with overwrite=True (--overwrite), update it, or choose another name.",
        )

    given = {"primary": draft.primary_key, "secondary": draft.secondary_key}

    def how(service: ServiceRecord) -> ServiceRecord:
        keys = {**open_secrets(service, secret), **{k: key for k, key in given.items() if key}}
        return msgspec.structs.replace(
            _with_revision(service, draft.spec, now),
            secret=seal(keys, secret) if any(given.values()) else service.secret,
            access=msgspec.structs.replace(draft.access, port=service.access.port),
            compute_type=draft.compute_type,
            description=draft.description,
            tags=draft.tags,
            properties={**service.properties, **draft.properties},
            details=draft.details,
        )

    return change(store, there.id, how)


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
    taken = {service.port for service in list_services(store, None)}
    keys = {
        "primary": draft.primary_key or secrets.token_urlsafe(_KEY_BYTES),
        "secondary": draft.secondary_key or secrets.token_urlsafe(_KEY_BYTES),
        "tokens": secrets.token_hex(32),
        "control": secrets.token_hex(16),
    }
    record = ServiceRecord(
        id=service_id(workspace, name),
        uid=check_uid(draft.uid) if draft.uid is not None else uuid.uuid4().hex,
        workspace=workspace.name,
        name=name,
        created=now,
        modified=now,
        access=draft.access,
        port=_choose_port(host, draft.access.port, taken),
        secret=seal(keys, secret),
        compute_type=draft.compute_type,
        description=draft.description,
        tags=draft.tags,
        properties=draft.properties,
        details=draft.details,
        created_by=draft.created_by,
    )
    return store.records.insert(_with_revision(record, draft.spec, now))


def _with_revision(service: ServiceRecord, spec: ServiceSpec, now: datetime) -> ServiceRecord:
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
        coming=Revision(number=made, spec=spec, created=now),
        leaving=leaving,
        front_starts=0,
        error=None,
        modified=now,
    )


def update_service(
    store: Store, workspace: WorkspaceRecord, name: str, patch: ServicePatch, now: datetime
) -> ServiceRecord:
    """Change a service; a new `spec` is tried beside the present one."""
    service = load_service(store, workspace, name)
    if patch.spec is not None:
        spec = settle_spec(store, workspace, _inherit(service, patch.spec), patch.manifest)
        patch = msgspec.structs.replace(patch, spec=spec)
    if patch.access is not None and patch.access.port not in (None, service.port):
        raise Invalid(
            "A service keeps its port.", fix="Delete the service and deploy it with another port."
        )

    def how(record: ServiceRecord) -> ServiceRecord:
        if patch.spec is not None:
            record = _with_revision(record, patch.spec, now)
        return msgspec.structs.replace(
            record,
            access=patch.access or record.access,
            description=record.description if patch.description is None else patch.description,
            tags=record.tags if patch.tags is None else patch.tags,
            properties={**record.properties, **patch.properties},
            details={**record.details, **patch.details},
            modified=now,
        )

    return change(store, service.id, how)


def _inherit(service: ServiceRecord, spec: ServiceSpec) -> ServiceSpec:
    """The spec with the environment of the last one, if that has the same code: what is shown of it
    lacks passwords, so nobody could send it back."""
    last = service.coming or service.serving or service.failed
    if last is None or spec.environment is not None or spec.entry_script is None:
        return spec
    same = (spec.entry_script, spec.snapshot) == (last.spec.entry_script, last.spec.snapshot)
    return msgspec.structs.replace(spec, environment=last.spec.environment) if same else spec


def restart_service(
    store: Store, workspace: WorkspaceRecord, name: str, now: datetime
) -> ServiceRecord:
    """Try what the service serves once more, in new processes: v1's `reload`."""

    def how(record: ServiceRecord) -> ServiceRecord:
        last = record.coming or record.serving or record.failed
        if last is None:
            raise Conflict(
                f"Service '{name}' has nothing to start again.",
                why="Its front end never came up.",
                fix="Deploy it with overwrite=True.",
            )
        return _with_revision(record, last.spec, now)

    return change(store, load_service(store, workspace, name).id, how)


def delete_service(
    store: Store, workspace: WorkspaceRecord, name: str, now: datetime
) -> ServiceRecord:
    """Ask for the service's end."""

    def how(record: ServiceRecord) -> ServiceRecord:
        return msgspec.structs.replace(record, deleting=True, modified=now)

    return change(store, load_service(store, workspace, name).id, how)


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


def change(store: Store, id: str, how: Callable[[ServiceRecord], ServiceRecord]) -> ServiceRecord:
    """Apply a pure change to a service, again if somebody else changed it meanwhile."""
    while True:
        record = store.records.get(ServiceRecord, id)
        changed = how(record)
        if changed == record:
            return record
        try:
            return store.records.replace(changed)
        except Stale:
            continue


def read_logs(store: Store, service: ServiceRecord, lines: int) -> str:
    """The end of what the processes of a service printed: the newest workers first."""
    revisions = [one for one in (service.coming, service.serving) if one is not None]
    known = [(f"revision {one.number}", one.run) for one in revisions]
    if service.failed is not None:
        known.insert(0, (f"revision {service.failed.number}, which failed", service.failed.run))
    parts: list[str] = []
    for title, run in (*known, ("front end", service.front)):
        if run is None:
            continue
        for info in store.streams.logs(run):
            text = _tail(store, run, info, lines)
            if text.strip():
                parts.append(f"==== {title}, {info.path} ====\n{text.rstrip()}\n")
    return "\n".join(parts)


def _tail(store: Store, run: str, info: FileInfo, lines: int) -> str:
    start = max(0, info.size - _LOG_BYTES)
    data = store.streams.read_log(run, info.path, start, _LOG_BYTES)
    return "\n".join(data.decode(errors="replace").splitlines()[-lines:])


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
        known = {**open_secrets(record, secret), which: new}
        return msgspec.structs.replace(record, secret=seal(known, secret))

    return change(store, service.id, how)


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
