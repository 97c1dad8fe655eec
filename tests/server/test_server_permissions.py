"""All routes, with all verbs, by all roles. A new route without a row in SAMPLES fails here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from runyard.domain.errors import ErrorBody
from runyard.server.routing import Permission, Route
from runyard.server.table import ROUTES

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

ROLES = ("none", "wrong", "viewer", "expired viewer", "this run", "other run", "parent", "owner")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")

ANYBODY = frozenset(ROLES)
READERS = frozenset({"viewer", "this run", "other run", "parent", "owner"})
JOBS = frozenset({"this run", "other run", "parent", "owner"})
FAMILY = frozenset({"this run", "parent", "owner"})

ALLOWED: dict[Permission, frozenset[str]] = {
    Permission.PUBLIC: ANYBODY,
    Permission.READ: READERS,
    Permission.PAGE: READERS,
    Permission.WRITE: frozenset({"owner"}),
    Permission.JOB: JOBS,
    Permission.RUN: FAMILY,
    Permission.SUPERVISE: frozenset({"parent", "owner"}),
    # The sample submits a child of "this run".
    Permission.SUBMIT: FAMILY,
}

READ, WRITE, RUN = Permission.READ, Permission.WRITE, Permission.RUN


class Sample(NamedTuple):
    """A request that the route would accept, and the permission it must declare."""

    permission: Permission
    path: str
    json: object = None
    body: bytes | None = None


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# Written by hand, so that a permission changed by mistake in the table is noticed.
SAMPLES: dict[str, Sample] = {
    "GET /healthz": Sample(Permission.PUBLIC, "/healthz"),
    "GET /api/v1/server": Sample(READ, "/api/v1/server"),
    "POST /api/v1/server/stop": Sample(WRITE, "/api/v1/server/stop"),
    "GET /api/v1/openapi.json": Sample(READ, "/api/v1/openapi.json"),
    "POST /api/v1/workspaces": Sample(WRITE, "/api/v1/workspaces", {"name": "yard"}),
    "GET /api/v1/workspaces": Sample(READ, "/api/v1/workspaces"),
    "GET /api/v1/workspaces/{workspace}": Sample(READ, "/api/v1/workspaces/yard"),
    "DELETE /api/v1/workspaces/{workspace}": Sample(WRITE, "/api/v1/workspaces/gone"),
    "PUT /api/v1/workspaces/{workspace}/experiments/{experiment}": Sample(
        WRITE, "/api/v1/workspaces/yard/experiments/trials"
    ),
    "GET /api/v1/workspaces/{workspace}/experiments": Sample(
        READ, "/api/v1/workspaces/yard/experiments"
    ),
    "GET /api/v1/workspaces/{workspace}/experiments/{experiment}": Sample(
        READ, "/api/v1/workspaces/yard/experiments/trials"
    ),
    "POST /api/v1/blobs/missing": Sample(READ, "/api/v1/blobs/missing", [EMPTY]),
    "PUT /api/v1/blobs/{digest}": Sample(Permission.JOB, f"/api/v1/blobs/{EMPTY}", body=b""),
    "GET /api/v1/blobs/{digest}": Sample(READ, f"/api/v1/blobs/{EMPTY}"),
    "POST /api/v1/runs": Sample(
        Permission.SUBMIT,
        "/api/v1/runs",
        {"spec": {"workspace": "yard", "experiment": "trials", "parent": "RUN"}},
    ),
    "GET /api/v1/runs": Sample(READ, "/api/v1/runs?limit=1"),
    "GET /api/v1/runs/{run}": Sample(READ, "/api/v1/runs/RUN"),
    "PATCH /api/v1/runs/{run}": Sample(RUN, "/api/v1/runs/RUN", {"set_tags": {"a": "b"}}),
    "POST /api/v1/runs/{run}/cancel": Sample(WRITE, "/api/v1/runs/RUN/cancel"),
    "POST /api/v1/runs/{run}/complete": Sample(Permission.SUPERVISE, "/api/v1/runs/RUN/complete"),
    "POST /api/v1/runs/{run}/fail": Sample(
        Permission.SUPERVISE, "/api/v1/runs/RUN/fail", {"code": "UserError", "message": "no"}
    ),
    "POST /api/v1/runs/{run}/ticket": Sample(Permission.JOB, "/api/v1/runs/RUN/ticket"),
    "GET /api/v1/runs/{run}/snapshot": Sample(READ, "/api/v1/runs/RUN/snapshot"),
    "GET /api/v1/runs/{run}/metrics": Sample(READ, "/api/v1/runs/RUN/metrics"),
    "POST /api/v1/runs/{run}/metrics": Sample(
        RUN, "/api/v1/runs/RUN/metrics", [{"name": "loss", "value": 1.0}]
    ),
    "GET /api/v1/runs/{run}/files": Sample(READ, "/api/v1/runs/RUN/files"),
    "GET /api/v1/runs/{run}/files/{path...}": Sample(READ, "/api/v1/runs/RUN/files/outputs/x"),
    "POST /api/v1/runs/{run}/files": Sample(RUN, "/api/v1/runs/RUN/files", []),
    "POST /api/v1/runs/{run}/streams/{kind}/{name...}": Sample(
        RUN, "/api/v1/runs/RUN/streams/log/a/b.txt?offset=0", body=b"text"
    ),
    "GET /api/v1/runs/{run}/streams/{kind}/{name...}": Sample(
        RUN, "/api/v1/runs/RUN/streams/log/a/b.txt"
    ),
    "POST /api/v1/runs/{run}/reports": Sample(
        RUN, "/api/v1/runs/RUN/reports", {"attempt": 1, "phase": "alive"}
    ),
    "GET /api/v1/runs/{run}/events": Sample(READ, "/api/v1/runs/RUN/events"),
    "GET /": Sample(Permission.PAGE, "/"),
    "GET /runs/{run}": Sample(Permission.PAGE, "/runs/RUN"),
    "GET /static/{name}": Sample(Permission.PUBLIC, "/static/page.css"),
}


def name_of(route: Route) -> str:
    return f"{route.verb} {route.path}"


def token_of(server: LiveServer, role: str, run: str, parent: str, other: str) -> str | None:
    return {
        "none": None,
        "wrong": "wrong",
        "viewer": server.ticket(),
        "expired viewer": server.ticket(-1),
        "this run": server.run_token(run),
        "other run": server.run_token(other),
        "parent": server.run_token(parent),
        "owner": "the-owner's-token",
    }[role]


def test_every_route_has_a_sample_with_its_permission() -> None:
    declared = {name_of(route): route.permission for route in ROUTES}
    expected = {name: sample.permission for name, sample in SAMPLES.items()}
    assert declared == expected, "a route was added or changed: give it a row in SAMPLES"


# Stopping for real would end the server of the other tests; test_server_process does that.
@pytest.mark.parametrize(
    "route", [one for one in ROUTES if not one.path.endswith("/stop")], ids=name_of
)
def test_each_role_gets_what_it_may_and_nothing_else(server: LiveServer, route: Route) -> None:
    sample = SAMPLES[name_of(route)]
    for role in ROLES:
        parent = server.make_run()
        other = server.make_run()
        run = server.make_run(parent=parent.id)
        server.keep(b"")
        server.keep_file(run.id, "outputs/x", b"x")
        if sample.path.endswith("/events"):
            server.complete(run.id)
        answer = server.request(
            route.verb,
            sample.path.replace("RUN", run.id),
            json=_for_run(sample.json, run.id),
            body=sample.body,
            token=token_of(server, role, run.id, parent.id, other.id),
        )
        if role in ALLOWED[route.permission]:
            # 404: allowed, but this run has no snapshot, or there is no such workspace.
            assert answer.status in (200, 404), (role, answer.status, answer.data)
        else:
            expected = 401 if role in ("none", "wrong", "expired viewer") else 403
            assert answer.status == expected, (role, answer.status, answer.data)


def _for_run(json: object, run_id: str) -> object:
    if json is None:
        return None
    return msgspec.json.decode(msgspec.json.encode(json).replace(b"RUN", run_id.encode()))


def test_stopping_needs_the_owner(server: LiveServer) -> None:
    run = server.make_run()
    for token, status in ((None, 401), (server.run_token(run.id), 403), (server.ticket(), 403)):
        assert server.request("POST", "/api/v1/server/stop", token=token).status == status


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
def test_verbs_that_are_not_declared_are_refused_as_json(server: LiveServer, path: str) -> None:
    declared = {route.verb for route in ROUTES if route.path == path}
    sample = next(s for name, s in SAMPLES.items() if name.partition(" ")[2] == path)
    for verb in set(VERBS) - declared:
        answer = server.request(verb, sample.path)
        assert answer.status == 405
        assert msgspec.json.decode(answer.data, type=ErrorBody).code == "wrong_verb"


def test_a_run_may_not_submit_without_a_parent_or_below_another_run(server: LiveServer) -> None:
    mine, other = server.make_run(), server.make_run()
    token = server.run_token(mine.id)
    for parent in (None, other.id):
        spec = {"workspace": "yard", "experiment": "trials", "parent": parent}
        answer = server.request("POST", "/api/v1/runs", json={"spec": spec}, token=token)
        assert answer.status == 403


def test_a_grandparent_may_write_its_grandchild(server: LiveServer) -> None:
    top = server.make_run()
    middle = server.make_run(parent=top.id)
    run = server.make_run(parent=middle.id)
    path = f"/api/v1/runs/{run.id}/metrics"
    points = [{"name": "loss", "value": 1}]
    assert server.request("POST", path, json=points, token=server.run_token(top.id)).status == 200
    path = f"/api/v1/runs/{top.id}/metrics"
    assert server.request("POST", path, json=points, token=server.run_token(run.id)).status == 403


def test_a_job_logs_to_its_children_but_not_to_strangers(server: LiveServer) -> None:
    parent, stranger = server.make_run(), server.make_run()
    child = server.make_run(parent=parent.id)
    lines = [
        {"e": "metric", "n": "own", "v": 1},
        {"e": "metric", "n": "child's", "v": 2, "r": child.id},
        {"e": "metric", "n": "stranger's", "v": 3, "r": stranger.id},
        {"e": "metric", "n": "nobody's", "v": 4, "r": "no-such-run"},
    ]
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    path = f"/api/v1/runs/{parent.id}/streams/events/0.jsonl?offset=0"
    answer = server.request("POST", path, body=body, token=server.run_token(parent.id))
    assert msgspec.json.decode(answer.data) == {"end": len(body)}
    names = {
        run.id: [series.name for series in server.store.metrics.series(run.id)]
        for run in (parent, child, stranger)
    }
    assert names == {parent.id: ["own"], child.id: ["child's"], stranger.id: []}


def test_a_changed_token_is_worth_nothing(server: LiveServer) -> None:
    run, other = server.make_run(), server.make_run()
    token = server.run_token(run.id)
    role, subject, expires, signature = token.split(".")
    other_subject = server.run_token(other.id).split(".")[1]
    for forged in (
        f"owner.{subject}.{expires}.{signature}",
        f"{role}.{other_subject}.{expires}.{signature}",
        f"{role}.{subject}.{int(expires) + 1}.{signature}",
        token[:-1],
        "...",
        "é",
        "",
    ):
        assert server.request("GET", "/api/v1/server", token=forged).status == 401
