"""Routes of services: deploy, look, change, keys, logs, the end."""

import time
from collections.abc import Mapping
from typing import Annotated

import msgspec

from runyard.conductor import runs, service_logs, services
from runyard.domain.services import (
    ServiceDraft,
    ServiceKeys,
    ServiceLogs,
    ServicePatch,
    ServiceRecord,
    ServiceToken,
    shown,
)
from runyard.server.platform import Platform, utc_now
from runyard.server.routing import Call, NoQuery
from runyard.server.waiting import attending

_LONGEST_WAIT = 60.0


class ServiceQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to wait for a change."""

    newer_than: int | None = None
    wait: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class LogsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the logs."""

    lines: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 5000


class KeyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A key to set; None: a random one."""

    key: str | None = None


def list_services(call: Call[None, NoQuery]) -> list[ServiceRecord]:
    """All services of a workspace, oldest first."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    return [shown(service) for service in services.list_services(store, workspace)]


async def get_service(call: Call[None, ServiceQuery]) -> ServiceRecord:
    """One service; with `newer_than` and `wait`, as soon as it is newer or the time is up."""
    platform, query = call.platform, call.query
    service = await platform.in_thread(_load, platform, call.params)
    if query.newer_than is None or not query.wait:
        return shown(service)
    with platform.changes.watch(service.id) as watcher, attending(call.receive) as caller:
        deadline = time.monotonic() + min(query.wait, _LONGEST_WAIT)
        while True:
            service = await platform.in_thread(_load, platform, call.params)
            left = deadline - time.monotonic()
            if service.version > query.newer_than or left <= 0 or platform.changes.closed:
                return shown(service)
            await caller.waits_for(watcher.wait(left))


def put_service(call: Call[ServiceDraft, NoQuery]) -> ServiceRecord:
    """Deploy models as a service; with `overwrite` as the next revision of one that is there."""
    platform = call.platform
    service = services.create_service(
        platform.store,
        runs.load_workspace(platform.store, call.params["workspace"]),
        call.params["service"],
        call.body,
        secret=platform.secret,
        host=platform.settings.host,
        now=utc_now(),
    )
    return _changed(platform, service)


def patch_service(call: Call[ServicePatch, NoQuery]) -> ServiceRecord:
    """Change a service; a new revision is tried before it takes over."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    name = call.params["service"]
    service = services.update_service(platform.store, workspace, name, call.body, utc_now())
    return _changed(platform, service)


def restart_service(call: Call[None, NoQuery]) -> ServiceRecord:
    """Serve the same once more, in new processes."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    service = services.restart_service(platform.store, workspace, call.params["service"], utc_now())
    return _changed(platform, service)


def delete_service(call: Call[None, NoQuery]) -> ServiceRecord:
    """End a service and forget it."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    service = services.delete_service(platform.store, workspace, call.params["service"], utc_now())
    return _changed(platform, service)


def get_keys(call: Call[None, NoQuery]) -> ServiceKeys:
    """The two keys of a service."""
    platform = call.platform
    return services.get_keys(_load(platform, call.params), platform.secret)


def set_key(call: Call[KeyChoice, NoQuery]) -> ServiceKeys:
    """Give a service a new primary or secondary key."""
    platform = call.platform
    service = services.set_key(
        platform.store,
        _load(platform, call.params),
        call.params["which"],
        call.body.key,
        platform.secret,
    )
    _changed(platform, service)
    return services.get_keys(service, platform.secret)


def make_token(call: Call[None, NoQuery]) -> ServiceToken:
    """A token for callers of a service that wants tokens."""
    platform = call.platform
    return services.make_token(_load(platform, call.params), platform.secret, utc_now())


def get_logs(call: Call[None, LogsQuery]) -> ServiceLogs:
    """The end of what the workers and the front end of a service printed, builds included."""
    platform = call.platform
    service = _load(platform, call.params)
    jobs = platform.settings.home / "jobs"
    text = service_logs.read_logs(platform.store, jobs, service, call.query.lines)
    return ServiceLogs(text=text)


def _load(platform: Platform, params: Mapping[str, str]) -> ServiceRecord:
    workspace = runs.load_workspace(platform.store, params["workspace"])
    return services.load_service(platform.store, workspace, params["service"])


def _changed(platform: Platform, service: ServiceRecord) -> ServiceRecord:
    platform.changes.notify(service.id)
    platform.serving.wake()
    return shown(service)
