"""Web services of registered models: what was asked, and how it is.

A service has *revisions*: each is one answer to "which model, which code, which environment".
One serves; a new one is tried in its real process before it takes over; the old one then goes.
"""

import re
from datetime import datetime
from enum import StrEnum

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Invalid
from runyard.domain.files import Manifest
from runyard.domain.runs import RunError
from runyard.domain.secrets import redact_all

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_UID = re.compile(r"[0-9a-f]{32}")
SCRIPT_SCORER = "script"


class ServiceState(StrEnum):
    """How a service is; the words are v1's `service.state`."""

    TRANSITIONING = "Transitioning"
    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"  # it was healthy, and nothing answers right now
    FAILED = "Failed"  # it never was


class ServiceAuth(StrEnum):
    """What callers have to show."""

    NONE = "none"
    KEY = "key"
    TOKEN = "token"


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a revision serves, and with what."""

    models: tuple[str, ...]  # ids of ModelRecords
    scorer: str = ""  # a row of the runtime's scorer table; empty: as the model's framework says
    entry_script: str | None = None
    snapshot: str | None = None  # id of the source tree around the entry script
    environment: EnvironmentSpec | None = None  # None: as the model's framework and run say
    replicas: int = 1
    cores: float | None = None  # of each replica; None: what there is
    memory_gb: float | None = None
    gpus: int | None = None
    variables: dict[str, str] = {}


class ServiceAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the front end treats callers; changing it needs no new revision."""

    auth: ServiceAuth = ServiceAuth.NONE
    port: int | None = None  # None: one is chosen, and kept
    timeout_seconds: float = 60.0
    queue: int = 1000  # requests that may wait; more are told to come back
    max_body_mb: float = 64.0
    batch_delay_ms: float = 0.0


class ServiceDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A service to be made, or its next revision."""

    spec: ServiceSpec
    uid: str | None = None  # the caller's choice, so that a repeated request makes one service
    access: ServiceAccess = ServiceAccess()
    manifest: Manifest | None = None  # of the source tree that `spec.snapshot` stands for
    compute_type: str = "ACI"  # v1's word for where it runs: ACI, AKS or Local
    description: str | None = None
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    details: dict[str, object] = {}  # v1's further settings, kept as they were sent
    primary_key: str | None = None
    secondary_key: str | None = None
    overwrite: bool = False
    created_by: str = ""


class SpecPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What the next revision has of its own; what is None is as in the last one."""

    models: tuple[str, ...] | None = None
    entry_script: str | None = None
    snapshot: str | None = None
    environment: EnvironmentSpec | None = None  # None with other code or models: chosen anew
    replicas: int | None = None
    cores: float | None = None
    memory_gb: float | None = None
    gpus: int | None = None
    variables: dict[str, str] | None = None


class AccessPatch(msgspec.Struct, frozen=True, kw_only=True):
    """How the front end is to treat callers from now on; what is None stays."""

    auth: ServiceAuth | None = None
    key_auth: bool | None = None  # v1's auth_enabled: without keys, tokens may still be asked for
    token_auth: bool | None = None
    port: int | None = None
    timeout_seconds: float | None = None
    queue: int | None = None
    max_body_mb: float | None = None
    batch_delay_ms: float | None = None


class ServicePatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change: what is None stays. With `spec` a new revision is tried.

    It has only what is to be different, so that two callers do not undo each other's changes.
    """

    request: str | None = None  # the caller's choice: a repeated request makes one revision
    spec: SpecPatch | None = None
    manifest: Manifest | None = None
    access: AccessPatch | None = None
    description: str | None = None
    tags: dict[str, str | None] | None = None  # all of them; before the next two
    set_tags: dict[str, str | None] = {}
    remove_tags: tuple[str, ...] = ()
    properties: dict[str, str] = {}  # added to those that are there
    details: dict[str, object] = {}


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what the service serves, and the workers that do it."""

    number: int
    spec: ServiceSpec
    created: datetime
    request: str | None = None  # the id of the request that asked for it
    run: str | None = None  # the run of its workers
    starts: int = 0  # how often workers were started for it
    failed_at: datetime | None = None  # when its workers were lost the last time


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform knows of a service: an immutable snapshot with a `version`."""

    id: str
    uid: str  # ours, never the user's: safe in paths
    workspace: str
    name: str
    created: datetime
    modified: datetime
    version: int = 0  # the store's; see stores.base.Records.replace
    state: ServiceState = ServiceState.TRANSITIONING
    waiting: str = ""  # what it waits for, in words
    error: RunError | None = None  # why the last revision did not come up, or why it is unwell
    access: ServiceAccess = ServiceAccess()
    port: int = 0
    settled: bool = True  # False: the front end has yet to take over other access or keys
    secret: str = ""  # the sealed keys, for the server alone; empty in every answer
    made: int = 0  # revisions that were asked for so far
    serving: Revision | None = None
    coming: Revision | None = None  # being tried
    leaving: tuple[Revision, ...] = ()  # finish what they were given
    failed: Revision | None = None  # the last one that did not come up
    front: str | None = None  # the run of the front end
    front_starts: int = 0
    front_failed_at: datetime | None = None  # when the front end was lost the last time
    deleting: bool = False
    compute_type: str = "ACI"
    description: str | None = None
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    details: dict[str, object] = {}
    created_by: str = ""


class ServiceKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The two keys of a service: while one is changed, the other goes on."""

    primary: str
    secondary: str


class ServiceToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that callers may show for a while."""

    token: str
    expires: datetime
    refresh_after: datetime


class ServiceLogs(msgspec.Struct, frozen=True, kw_only=True):
    """The end of what the processes of a service printed."""

    text: str


def revision_roles(service: ServiceRecord) -> list[tuple[str, Revision]]:
    """What each revision that is known does, in a word or two; the newest first."""
    roles = (
        *(("leaves", one) for one in service.leaving),
        ("serves", service.serving),
        ("is tried", service.coming),
        ("failed", service.failed),
    )
    known = {one.number: (role, one) for role, one in roles if one is not None}
    return sorted(known.values(), key=lambda pair: -pair[1].number)


def last_revision(service: ServiceRecord) -> Revision | None:
    """What was asked of the service last; None: nothing of it is left."""
    return service.coming or service.serving or service.failed


def with_spec(last: ServiceSpec, patch: SpecPatch) -> ServiceSpec:
    """The next spec. Its environment stays with its code, or without code with its model."""
    asked = {
        field: value
        for field in patch.__struct_fields__
        if (value := getattr(patch, field)) is not None
    }
    spec = msgspec.structs.replace(last, **asked)
    if patch.environment is not None:
        return spec
    same = (spec.entry_script, spec.snapshot) == (last.entry_script, last.snapshot)
    if spec.entry_script is None:
        same = spec.models == last.models
    return spec if same else msgspec.structs.replace(spec, environment=None)


def with_access(access: ServiceAccess, patch: AccessPatch) -> ServiceAccess:
    """How callers are treated from now on."""
    asked = {
        field: value
        for field in access.__struct_fields__
        if (value := getattr(patch, field)) is not None
    }
    access = msgspec.structs.replace(access, **asked)
    if patch.token_auth:
        return msgspec.structs.replace(access, auth=ServiceAuth.TOKEN)
    if patch.key_auth:
        return msgspec.structs.replace(access, auth=ServiceAuth.KEY)
    # "No keys" says nothing of tokens, nor the other way round.
    ended = {ServiceAuth.KEY: patch.key_auth, ServiceAuth.TOKEN: patch.token_auth}
    is_off = ended.get(access.auth) is False
    return msgspec.structs.replace(access, auth=ServiceAuth.NONE) if is_off else access


def check_uid(uid: str) -> str:
    """The uid, or `Invalid` if it is none: it is part of paths."""
    if not _UID.fullmatch(uid):
        raise Invalid(f"{uid[:100]!r} is not a uid.", why="It has 32 hexadecimal digits.")
    return uid


def check_service_name(name: str) -> str:
    """The name, or `Invalid` if a service cannot be called that."""
    if not 3 <= len(name) <= 32 or not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a service.",
            why="A name has 3 to 32 lower-case letters, digits and '-'; it begins with a letter "
            "and does not end with '-'.",
        )
    return name


def shown(service: ServiceRecord) -> ServiceRecord:
    """The service as people see it: without its keys, and the passwords of package indexes."""
    return redact_all(msgspec.structs.replace(service, secret=""))
