"""Routes of the pages for people. What they show is made in `runyard.server.pages`."""

from functools import lru_cache
from importlib import resources
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import HTMLResponse, Response

from runyard.conductor import models
from runyard.conductor.models import ModelSearch
from runyard.domain.errors import ErrorBody, NotFound
from runyard.domain.files import Manifest, decode_manifest
from runyard.domain.models import ModelRecord
from runyard.domain.runs import RunRecord
from runyard.domain.workspaces import WorkspaceRecord
from runyard.server import pages
from runyard.server.auth import TICKET_SECONDS, cookie_name, viewer_grant
from runyard.server.files import files_of
from runyard.server.logtail import read_tail
from runyard.server.routing import Call, NoQuery
from runyard.stores.base import Store, Where, find_all

_PAGE_SIZE = 50
_CHILDREN = 100

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",  # the address may hold a ticket
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATIC_TYPES = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}


class HomeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to show."""

    workspace: str = ""
    experiment: str = ""
    after: str = ""
    ticket: str = ""


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which log of the run to show; `part=live`: only what changes while it runs."""

    log: str = ""
    part: str = ""
    ticket: str = ""


class ModelsPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which models to show; with a name, all its versions."""

    workspace: str = ""
    name: str = ""
    after: str = ""
    ticket: str = ""


class ModelPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A model needs no more than its address."""

    ticket: str = ""


def home_page(call: Call[None, HomeQuery]) -> Response:
    """The page that lists runs."""
    query, platform = call.query, call.platform
    if query.ticket:
        rest = {"workspace": query.workspace, "experiment": query.experiment}
        return take_ticket(call, query.ticket, {key: text for key, text in rest.items() if text})
    where = Where(
        workspace=query.workspace or None, experiment=query.experiment or None, top_level=True
    )
    found, after = platform.store.records.find(
        RunRecord, where, limit=_PAGE_SIZE, after=query.after or None
    )
    workspaces = list(find_all(platform.store.records, WorkspaceRecord, Where()))
    html = pages.runs_page(
        platform.show(found), workspaces, query.workspace, query.experiment, after
    )
    return HTMLResponse(html, headers=PAGE_HEADERS)


def run_page(call: Call[None, PageQuery]) -> Response:
    """The page of a run."""
    query, platform = call.query, call.platform
    if query.ticket:
        return take_ticket(call, query.ticket, {"log": query.log} if query.log else {})
    run, store = platform.load_run(call.params["run"]), platform.store
    found, _ = store.records.find(RunRecord, Where(parent=run.id), limit=_CHILDREN)
    series, files, children = (
        store.metrics.series(run.id),
        files_of(store, run.id),
        platform.show(found),
    )
    made = models.find(store, ModelSearch(run=run.id), limit=_CHILDREN).models
    if query.part == "live":
        html = pages.live_part(run, series=series, files=files, children=children, models=made)
        return HTMLResponse(html, headers=PAGE_HEADERS)
    html = pages.run_page(
        run,
        series=series,
        log=read_tail(store.streams, run, query.log),
        files=files,
        children=children,
        models=made,
        snapshot=_snapshot_of(store, run),
    )
    return HTMLResponse(html, headers=PAGE_HEADERS)


def models_page(call: Call[None, ModelsPageQuery]) -> Response:
    """The page that lists models: the latest of each name, or all versions of one."""
    query, store = call.query, call.platform.store
    chosen = {"workspace": query.workspace, "name": query.name}
    if query.ticket:
        return take_ticket(call, query.ticket, {key: text for key, text in chosen.items() if text})
    wanted = ModelSearch(
        workspace=query.workspace or None, name=query.name or None, latest=not query.name
    )
    page = models.find(store, wanted, limit=_PAGE_SIZE, after=query.after or None)
    workspaces = list(find_all(store.records, WorkspaceRecord, Where()))
    html = pages.models_page(page, workspaces, query.workspace, query.name)
    return HTMLResponse(html, headers=PAGE_HEADERS)


def model_page(call: Call[None, ModelPageQuery]) -> Response:
    """The page of a model."""
    if call.query.ticket:
        return take_ticket(call, call.query.ticket, {})
    store = call.platform.store
    model = store.records.get(ModelRecord, call.params["model"])
    html = pages.model_page(model, models.load_lineage(store, model))
    return HTMLResponse(html, headers=PAGE_HEADERS)


def _snapshot_of(store: Store, run: RunRecord) -> Manifest:
    """The names of the source files; their contents are for those who may read the workspace."""
    if run.spec.script is None:
        return ()
    try:
        return decode_manifest(b"".join(store.blobs.open(run.spec.script.snapshot)))
    except NotFound:
        return ()


def take_ticket(call: Call[None, Any], ticket: str, rest: dict[str, str]) -> Response:
    """Trade the ticket for a cookie and send the browser to the address without it."""
    target = call.scope["raw_path"].decode("ascii") + (f"?{urlencode(rest)}" if rest else "")
    site = call.header(b"sec-fetch-site") or "none"
    if site in ("none", "same-origin"):
        answer = Response(status_code=303, headers={**PAGE_HEADERS, "location": target})
    else:
        # After a link on another site a redirect would still count as that site's doing, and
        # the browser would keep the strict cookie back. A page of ours may ask anew.
        answer = HTMLResponse(pages.onward_page(target), headers=PAGE_HEADERS)
    secret = call.platform.secret
    if (grant := viewer_grant(secret, ticket)) is not None:
        answer.set_cookie(
            cookie_name(secret, grant.subject),
            ticket,
            max_age=TICKET_SECONDS,
            httponly=True,
            samesite="strict",
            path="/",
        )
    return answer


async def static_file(call: Call[None, NoQuery]) -> Response:
    """A style sheet, script or icon of the pages."""
    name = call.params["name"]
    if name not in _STATIC_TYPES:
        raise NotFound(f"There is no file '{name[:100]}'.")
    headers = {**PAGE_HEADERS, "cache-control": "max-age=300"}
    return Response(_load_static(name), media_type=_STATIC_TYPES[name], headers=headers)


@lru_cache
def _load_static(name: str) -> bytes:
    return resources.files("runyard.server").joinpath("static", name).read_bytes()


def refusal(status: int, error: ErrorBody) -> Response:
    """The page that says why there is no page."""
    html = pages.refusal_page(status, error)
    return HTMLResponse(html, status_code=status, headers=PAGE_HEADERS)
