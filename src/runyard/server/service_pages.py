"""The pages of services: a list, and one with its state, revisions, logs and a form to try it.

The form is for services that ask nothing of their callers: whoever sees the page could call those
anyway. A request goes through the server, so the page needs no script and no other origin. It is
sent by GET, which is all that a reader's ticket is good for; the ticket's cookie is a strict one,
so that a page of another site cannot send it.
"""

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from runyard.conductor import runs, service_logs, services
from runyard.conductor.service_asking import ask_front
from runyard.domain.errors import NotFound
from runyard.domain.models import ModelRecord
from runyard.domain.services import (
    Revision,
    ServiceAuth,
    ServiceRecord,
    ServiceState,
    revision_roles,
    shown,
)
from runyard.domain.workspaces import WorkspaceRecord
from runyard.server import pages
from runyard.server.auth import host_name
from runyard.server.platform import Platform
from runyard.server.routing import Call
from runyard.server.web import PAGE_HEADERS, take_ticket
from runyard.stores.base import Store, Where, find_all

_LOG_LINES = 200
_ASK_SECONDS = 2.0
_TRY_SECONDS = 20.0
_LONGEST_ANSWER = 20_000
_JSON = {"Content-Type": "application/json"}


class ServicesPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose services to show."""

    workspace: str = ""
    ticket: str = ""


class ServicePageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send to the service; empty: none."""

    body: str = ""
    ticket: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request to a service; status 0: no answer."""

    status: int
    text: str
    milliseconds: float = 0.0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A service as the pages show it."""

    record: ServiceRecord
    models: tuple[ModelRecord, ...]
    address: str
    revisions: tuple[tuple[str, Revision], ...]


def services_page(call: Call[None, ServicesPageQuery]) -> Response:
    """The page that lists services."""
    query, store = call.query, call.platform.store
    if query.ticket:
        rest = {"workspace": query.workspace} if query.workspace else {}
        return take_ticket(call, query.ticket, rest)
    found = [
        one for one in services.list_services(store, None) if query.workspace in ("", one.workspace)
    ]
    workspaces = list(find_all(store.records, WorkspaceRecord, Where()))
    html = pages.render(
        "services.html",
        services=[_served(store, one, _host(call)) for one in found],
        workspaces=sorted(one.name for one in workspaces),
        workspace=query.workspace,
    )
    return HTMLResponse(html, headers=PAGE_HEADERS)


async def service_page(call: Call[None, ServicePageQuery]) -> Response:
    """The page of a service; with a body also what it answers to that."""
    query, platform = call.query, call.platform
    if query.ticket:
        return take_ticket(call, query.ticket, {})
    service = await platform.in_thread(_load, platform, call.params)
    is_open = service.access.auth is ServiceAuth.NONE
    answers = service.state is ServiceState.HEALTHY
    tried = None
    if query.body and is_open:
        tried = await platform.in_data_thread(_try, platform, service, query.body)
    sample = await platform.in_data_thread(_sample, platform, service) if answers else ""
    served = await platform.in_thread(_served, platform.store, service, _host(call))
    logs = await platform.in_thread(
        service_logs.read_logs,
        platform.store,
        platform.settings.home / "jobs",
        service,
        _LOG_LINES,
    )
    html = pages.render(
        "service.html",
        served=served,
        service=service,
        logs=logs,
        sample=sample,
        body=query.body or sample,
        tried=tried,
        is_open=is_open,
    )
    return HTMLResponse(html, headers=PAGE_HEADERS)


def _load(platform: Platform, params: Mapping[str, str]) -> ServiceRecord:
    workspace = runs.load_workspace(platform.store, params["workspace"])
    return shown(services.load_service(platform.store, workspace, params["service"]))


def _host(call: Call[Any, Any]) -> str:
    """The name by which the reader reaches this machine."""
    name = host_name(call.header(b"host") or "") or "localhost"
    return f"[{name}]" if ":" in name else name


def _served(store: Store, service: ServiceRecord, host: str) -> Served:
    main = service.serving or service.coming or service.failed
    models = [_model(store, id) for id in main.spec.models] if main is not None else []
    return Served(
        record=service,
        models=tuple(model for model in models if model is not None),
        address=f"http://{host}:{service.port}/score",
        revisions=tuple(revision_roles(service)),
    )


def _model(store: Store, id: str) -> ModelRecord | None:
    try:
        return store.records.get(ModelRecord, id)
    except NotFound:  # only a revision that failed can have lost its model
        return None


def _try(platform: Platform, service: ServiceRecord, body: str) -> Tried:
    """Send a request to a service and say what came back."""
    began = time.monotonic()
    try:
        status, data = ask_front(
            platform.settings.host,
            service.port,
            "POST",
            "/score",
            body=body.encode(errors="replace"),
            headers=_JSON,
            seconds=_TRY_SECONDS,
            most_bytes=_LONGEST_ANSWER,
        )
    except (OSError, http.client.HTTPException) as error:
        return Tried(status=0, text=f"{type(error).__name__}: {error}")
    text = data.decode(errors="replace")
    return Tried(status=status, text=text, milliseconds=(time.monotonic() - began) * 1000)


def _sample(platform: Platform, service: ServiceRecord) -> str:
    """A request that the service says it takes; empty if it says nothing of the kind."""
    try:
        _, data = ask_front(
            platform.settings.host, service.port, "GET", "/swagger.json", seconds=_ASK_SECONDS
        )
        example = json.loads(data)["definitions"]["ServiceInput"]["example"]
        return json.dumps(example)[:_LONGEST_ANSWER]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
