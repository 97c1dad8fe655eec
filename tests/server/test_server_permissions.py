"""All routes, with all verbs, by all roles. A new route without a row in SAMPLES fails here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import ErrorBody
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.tokens import Role
from runyard.server.auth import ROLES as GUARDED
from runyard.server.routing import Permission, Route
from runyard.server.table import ROUTES

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

ROLES = (
    *("none", "wrong", "expired viewer", "viewer", "parent's viewer", "other viewer"),
    *("viewer of all", "this run", "its agent", "other run", "parent", "foreign run"),
    *("run long over", "owner"),
)
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")

ANYBODY = frozenset(ROLES)
JOBS = frozenset({"this run", "its agent", "other run", "parent", "foreign run", "owner"})
FAMILY = frozenset({"this run", "its agent", "parent", "owner"})
VIEWERS = frozenset({"viewer", "parent's viewer", "viewer of all"})

ALLOWED: dict[Permission, frozenset[str]] = {
    Permission.PUBLIC: ANYBODY,
    Permission.READ: JOBS | {"viewer of all"},
    Permission.VIEW: JOBS | VIEWERS,
    Permission.PAGE: VIEWERS | {"owner"},
    Permission.WRITE: frozenset({"owner"}),
    Permission.JOB: JOBS,
    Permission.RUN: FAMILY,
    Permission.SUPERVISE: frozenset({"parent", "owner"}),
    Permission.REPORT: frozenset({"its agent", "owner"}),
    # The sample submits a child of "this run".
    Permission.SUBMIT: FAMILY,
}

READ, VIEW, WRITE, RUN = Permission.READ, Permission.VIEW, Permission.WRITE, Permission.RUN


class Sample(NamedTuple):
    """A request that the route would accept, and the permission it must declare."""

    permission: Permission
    path: str
    json: object = None
    body: bytes | None = None


EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

YARD = "/api/v1/workspaces/yard"
WS = "/api/v1/workspaces/{workspace}"
A_SPEC = {"sources": [{"type": "datastore", "datastore": "workspaceblobstore", "path": "x"}]}
A_STORE = {"name": "pool", "url": "memory://pool", "overwrite": True}

DATA_SAMPLES: dict[str, Sample] = {
    f"GET {WS}/datastores": Sample(READ, f"{YARD}/datastores"),
    f"PUT {WS}/datastores/{{datastore}}": Sample(WRITE, f"{YARD}/datastores/pool", A_STORE),
    f"GET {WS}/datastores/{{datastore}}": Sample(READ, f"{YARD}/datastores/workspaceblobstore"),
    f"DELETE {WS}/datastores/{{datastore}}": Sample(WRITE, f"{YARD}/datastores/pool"),
    f"POST {WS}/datastores/{{datastore}}/default": Sample(
        WRITE, f"{YARD}/datastores/workspaceblobstore/default"
    ),
    f"GET {WS}/datastores/{{datastore}}/files": Sample(
        READ, f"{YARD}/datastores/workspaceblobstore/files"
    ),
    f"POST {WS}/datastores/{{datastore}}/files": Sample(
        Permission.JOB, f"{YARD}/datastores/workspaceblobstore/files", [["x", EMPTY, 0]]
    ),
    f"GET {WS}/datastores/{{datastore}}/files/{{path...}}": Sample(
        READ, f"{YARD}/datastores/workspaceblobstore/files/x"
    ),
    "GET /api/v1/stores/{datastore_id}/files/{path...}": Sample(READ, "/api/v1/stores/x/files/y"),
    f"POST {WS}/datasets": Sample(
        Permission.JOB, f"{YARD}/datasets", {"name": "digits", "spec": A_SPEC}
    ),
    f"GET {WS}/datasets": Sample(READ, f"{YARD}/datasets"),
    f"DELETE {WS}/datasets/{{name}}": Sample(WRITE, f"{YARD}/datasets/digits"),
    f"POST {WS}/datasets/resolve": Sample(READ, f"{YARD}/datasets/resolve", A_SPEC),
    "GET /api/v1/datasets/{dataset}": Sample(READ, "/api/v1/datasets/none"),
    "GET /api/v1/datasets/{dataset}/files": Sample(READ, "/api/v1/datasets/none/files"),
    "GET /api/v1/runs/{run}/inputs/{name}": Sample(READ, "/api/v1/runs/RUN/inputs/digits"),
}

AN_ENVIRONMENT = {"name": "mine", "user_managed": True}
ENVIRONMENT_SAMPLES: dict[str, Sample] = {
    f"POST {WS}/environments": Sample(WRITE, f"{YARD}/environments", {"spec": AN_ENVIRONMENT}),
    f"GET {WS}/environments": Sample(READ, f"{YARD}/environments"),
    f"GET {WS}/environments/{{environment}}": Sample(READ, f"{YARD}/environments/AzureML-Minimal"),
    f"GET {WS}/environments/{{environment}}/versions": Sample(
        READ, f"{YARD}/environments/AzureML-Minimal/versions"
    ),
    f"PUT {WS}/environments/{{environment}}/versions/{{version}}/labels": Sample(
        WRITE, f"{YARD}/environments/mine/versions/1/labels", ["good"]
    ),
    "GET /api/v1/environments": Sample(READ, "/api/v1/environments"),
    "GET /api/v1/environments/{key}": Sample(READ, "/api/v1/environments/abcd"),
    "POST /api/v1/environments/find": Sample(READ, "/api/v1/environments/find", AN_ENVIRONMENT),
    "POST /api/v1/environments/builds": Sample(
        WRITE, "/api/v1/environments/builds", AN_ENVIRONMENT
    ),
    "GET /api/v1/environments/builds/{build}": Sample(READ, "/api/v1/environments/builds/abcd"),
    "POST /api/v1/environments/evict": Sample(
        WRITE, "/api/v1/environments/evict", {"keep_days": 30}
    ),
}

A_CLUSTER = {"vm_size": "STANDARD_D2_V2", "max_nodes": 2}

COMPUTE_SAMPLES: dict[str, Sample] = {
    "GET /api/v1/vmsizes": Sample(READ, "/api/v1/vmsizes"),
    f"GET {WS}/computes": Sample(READ, f"{YARD}/computes"),
    f"PUT {WS}/computes/{{compute}}": Sample(WRITE, f"{YARD}/computes/cpu-cluster", A_CLUSTER),
    f"GET {WS}/computes/{{compute}}": Sample(READ, f"{YARD}/computes/cpu-cluster"),
    f"PATCH {WS}/computes/{{compute}}": Sample(
        WRITE, f"{YARD}/computes/cpu-cluster", {"max_nodes": 3}
    ),
    f"DELETE {WS}/computes/{{compute}}": Sample(WRITE, f"{YARD}/computes/cpu-cluster"),
    f"POST {WS}/computes/{{compute}}/attach": Sample(
        WRITE, f"{YARD}/computes/big/attach", {"kind": "slurm"}
    ),
}

A_MODEL = {"workspace": "yard", "name": "digits", "manifest": [["x", EMPTY, 0]]}

MODEL_SAMPLES: dict[str, Sample] = {
    "POST /api/v1/models": Sample(Permission.JOB, "/api/v1/models", A_MODEL),
    "GET /api/v1/models": Sample(READ, "/api/v1/models?limit=1"),
    "GET /api/v1/models/{model}": Sample(READ, "/api/v1/models/none"),
    "PATCH /api/v1/models/{model}": Sample(Permission.JOB, "/api/v1/models/none", {}),
    "DELETE /api/v1/models/{model}": Sample(WRITE, "/api/v1/models/none"),
    "GET /api/v1/models/{model}/lineage": Sample(READ, "/api/v1/models/none/lineage"),
    "GET /api/v1/models/{model}/files/{path...}": Sample(READ, "/api/v1/models/none/files/x"),
    "GET /models": Sample(Permission.PAGE, "/models"),
    "GET /models/{model}": Sample(Permission.PAGE, "/models/none"),
}

# Written by hand, so that a permission changed by mistake in the table is noticed.
NONE = f"{YARD}/services/none"
SERVICE_SAMPLES: dict[str, Sample] = {
    f"GET {WS}/services": Sample(READ, f"{YARD}/services"),
    f"PUT {WS}/services/{{service}}": Sample(WRITE, NONE, {"spec": {"models": ["none"]}}),
    f"GET {WS}/services/{{service}}": Sample(READ, NONE),
    f"PATCH {WS}/services/{{service}}": Sample(WRITE, NONE, {}),
    f"DELETE {WS}/services/{{service}}": Sample(WRITE, NONE),
    f"POST {WS}/services/{{service}}/restart": Sample(WRITE, f"{NONE}/restart"),
    f"GET {WS}/services/{{service}}/logs": Sample(READ, f"{NONE}/logs"),
    f"GET {WS}/services/{{service}}/keys": Sample(WRITE, f"{NONE}/keys"),
    f"POST {WS}/services/{{service}}/keys/{{which}}": Sample(WRITE, f"{NONE}/keys/primary", {}),
    f"POST {WS}/services/{{service}}/token": Sample(WRITE, f"{NONE}/token"),
    "GET /services": Sample(Permission.PAGE, "/services"),
    "GET /services/{workspace}/{service}": Sample(Permission.PAGE, "/services/yard/none"),
}

SAMPLES: dict[str, Sample] = {
    **SERVICE_SAMPLES,
    "GET /healthz": Sample(Permission.PUBLIC, "/healthz"),
    "GET /api/v1/server": Sample(READ, "/api/v1/server"),
    "POST /api/v1/server/stop": Sample(WRITE, "/api/v1/server/stop"),
    "POST /api/v1/ticket": Sample(WRITE, "/api/v1/ticket"),
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
    "POST /api/v1/blobs/missing": Sample(Permission.JOB, "/api/v1/blobs/missing", [EMPTY]),
    "PUT /api/v1/blobs/{digest}": Sample(Permission.JOB, f"/api/v1/blobs/{EMPTY}", body=b""),
    "GET /api/v1/blobs/{digest}": Sample(Permission.JOB, f"/api/v1/blobs/{EMPTY}"),
    "POST /api/v1/runs": Sample(
        Permission.SUBMIT,
        "/api/v1/runs",
        {"spec": {"workspace": "yard", "experiment": "trials", "parent": "RUN"}},
    ),
    "GET /api/v1/runs": Sample(READ, "/api/v1/runs?limit=1"),
    "GET /api/v1/runs/{run}": Sample(VIEW, "/api/v1/runs/RUN"),
    "PATCH /api/v1/runs/{run}": Sample(RUN, "/api/v1/runs/RUN", {"set_tags": {"a": "b"}}),
    "POST /api/v1/runs/{run}/cancel": Sample(WRITE, "/api/v1/runs/RUN/cancel"),
    "POST /api/v1/runs/{run}/complete": Sample(Permission.SUPERVISE, "/api/v1/runs/RUN/complete"),
    "POST /api/v1/runs/{run}/fail": Sample(
        Permission.SUPERVISE, "/api/v1/runs/RUN/fail", {"code": "UserError", "message": "no"}
    ),
    "POST /api/v1/runs/{run}/ticket": Sample(Permission.JOB, "/api/v1/runs/RUN/ticket"),
    "GET /api/v1/runs/{run}/snapshot": Sample(READ, "/api/v1/runs/RUN/snapshot"),
    "GET /api/v1/runs/{run}/metrics": Sample(VIEW, "/api/v1/runs/RUN/metrics"),
    "POST /api/v1/runs/{run}/metrics": Sample(
        RUN, "/api/v1/runs/RUN/metrics", [{"name": "loss", "value": 1.0}]
    ),
    "GET /api/v1/runs/{run}/files": Sample(VIEW, "/api/v1/runs/RUN/files"),
    "GET /api/v1/runs/{run}/files/{path...}": Sample(VIEW, "/api/v1/runs/RUN/files/outputs/x"),
    "POST /api/v1/runs/{run}/files": Sample(RUN, "/api/v1/runs/RUN/files", []),
    "POST /api/v1/runs/{run}/streams/{kind}/{name...}": Sample(
        RUN, "/api/v1/runs/RUN/streams/log/a/b.txt?offset=0", body=b"text"
    ),
    "GET /api/v1/runs/{run}/streams/{kind}/{name...}": Sample(
        RUN, "/api/v1/runs/RUN/streams/log/a/b.txt"
    ),
    "POST /api/v1/runs/{run}/reports": Sample(
        Permission.REPORT, "/api/v1/runs/RUN/reports", {"attempt": 1, "phase": "alive"}
    ),
    "GET /api/v1/runs/{run}/plan": Sample(Permission.REPORT, "/api/v1/runs/RUN/plan?attempt=1"),
    "POST /api/v1/runs/{run}/board": Sample(
        Permission.REPORT, "/api/v1/runs/RUN/board?attempt=1", {"kind": "here", "node": 0}
    ),
    "GET /api/v1/runs/{run}/board": Sample(Permission.REPORT, "/api/v1/runs/RUN/board?attempt=1"),
    "GET /api/v1/runtime": Sample(Permission.JOB, "/api/v1/runtime"),
    "GET /api/v1/uv": Sample(Permission.JOB, "/api/v1/uv"),
    "GET /api/v1/runs/{run}/events": Sample(VIEW, "/api/v1/runs/RUN/events"),
    **DATA_SAMPLES,
    **ENVIRONMENT_SAMPLES,
    **COMPUTE_SAMPLES,
    **MODEL_SAMPLES,
    "GET /": Sample(Permission.PAGE, "/"),
    "GET /runs/{run}": Sample(Permission.PAGE, "/runs/RUN"),
    "GET /runs/{run}/images/{path...}": Sample(VIEW, "/runs/RUN/images/roc.png"),
    "GET /static/{name}": Sample(Permission.PUBLIC, "/static/page.css"),
}


def name_of(route: Route) -> str:
    return f"{route.verb} {route.path}"


def token_of(server: LiveServer, role: str, run: RunRecord) -> str | None:
    assert run.spec.parent is not None
    match role:
        case "none":
            return None
        case "wrong":
            return "wrong"
        case "expired viewer":
            return server.ticket(-1)
        case "viewer":
            return server.ticket(run_id=run.id)
        case "parent's viewer":
            return server.ticket(run_id=run.spec.parent)
        case "other viewer":
            return server.ticket(run_id=server.make_run().id)
        case "viewer of all":
            return server.ticket()
        case "this run":
            return server.run_token(run.id)
        case "its agent":
            return server.agent_token(run.id)
        case "other run":
            return server.run_token(server.make_run().id)
        case "parent":
            return server.run_token(run.spec.parent)
        case "foreign run":
            return server.run_token(server.make_run(workspace="elsewhere").id)
        case "run long over":
            return server.run_token(server.end_long_ago(server.make_run().id).id)
        case _:
            return "the-owner's-token"


def may(role: str, route: Route) -> bool:
    """Whether that role may use the route; `test_other_workspaces…` has what no address names."""
    named = {"run", "workspace"} & set(route.parameters)
    if role == "foreign run" and named:
        return route.permission is Permission.PUBLIC
    if route.permission is Permission.PAGE and "run" not in named:  # for no run in particular
        return role in ("owner", "viewer of all")
    if role == "foreign run" and name_of(route) == "POST /api/v1/models":
        return False  # the body names the workspace
    return role in ALLOWED[route.permission]


def refusal_of(role: str, permission: Permission) -> int:
    """401: who is that? 403: known, but not allowed."""
    if role in ("none", "wrong", "expired viewer"):
        return 401
    if role.endswith("viewer") and permission is Permission.PAGE:
        return 401  # the page that says how to get a link
    if role == "run long over" and Role.RUN in GUARDED[permission]:
        return 401
    return 403


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
        run = server.make_run(parent=server.make_run().id)
        server.keep(b"")
        server.keep_file(run.id, "outputs/x", b"x")
        if sample.path.endswith("/events"):
            server.complete(run.id)
        answer = server.request(
            route.verb,
            sample.path.replace("RUN", run.id),
            json=_for_run(sample.json, run.id),
            body=sample.body,
            token=token_of(server, role, run),
        )
        if may(role, route):
            # 404: allowed, but this run has no snapshot, or there is no such workspace.
            assert answer.status in (200, 404), (role, answer.status, answer.data)
        else:
            expected = refusal_of(role, route.permission)
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


def test_a_jobs_token_does_not_submit_scripts(server: LiveServer) -> None:
    mine = server.make_run()
    script = {"arguments": ["evil.py"], "snapshot": EMPTY, "environment": {"name": "e"}}
    spec = {"workspace": "yard", "experiment": "trials", "parent": mine.id, "script": script}
    for token in (server.run_token(mine.id), server.agent_token(mine.id)):
        answer = server.request("POST", "/api/v1/runs", json={"spec": spec}, token=token)
        assert answer.status == 403
        error = msgspec.json.decode(answer.data, type=ErrorBody)
        assert error.what == "A job may not submit a script."
        assert "Submit from the client" in error.fix


def test_a_runs_tokens_have_some_minutes_for_last_words(server: LiveServer) -> None:
    run, path = server.make_run(), "/api/v1/runs/RUN/streams/log/a.txt?offset=0"
    server.complete(run.id)
    token = server.agent_token(run.id)
    answer = server.request("POST", path.replace("RUN", run.id), body=b"bye", token=token)
    assert answer.status == 200
    gone = server.make_run()
    server.end_long_ago(gone.id)
    tokens = {server.run_token(gone.id): 401, server.run_token("x"): 401}
    tokens[server.agent_token(gone.id)] = 410  # it ends its ranks on this word alone
    for token, status in tokens.items():
        answer = server.request("POST", path.replace("RUN", gone.id), body=b"bye", token=token)
        assert answer.status == status
        assert "which is over" in msgspec.json.decode(answer.data, type=ErrorBody).why
    unknown = server.request("GET", "/api/v1/runs/x/plan?attempt=1", token=server.agent_token("x"))
    assert unknown.status == 404, "which an agent doubts for a while"


def test_other_workspaces_are_out_of_a_jobs_reach(own_server: LiveServer) -> None:
    server = own_server
    server.request("POST", "/api/v1/workspaces", json={"name": "elsewhere"})
    mine, other = server.make_run(), server.make_run(workspace="elsewhere")
    token = server.run_token(mine.id)

    def get(path: str, token: str = token) -> tuple[int, Any]:
        answer = server.request("GET", path, token=token)
        return answer.status, msgspec.json.decode(answer.data)

    assert [one["name"] for one in get("/api/v1/workspaces")[1]] == ["yard"]
    assert [run["id"] for run in get("/api/v1/runs")[1]["runs"]] == [mine.id]
    assert get("/api/v1/runs?workspace=elsewhere")[0] == 403
    assert get(f"/api/v1/runs/{other.id}")[0] == 403
    path = "/api/v1/workspaces/elsewhere/datasets"
    answer = server.request("POST", path, json={"name": "digits", "spec": A_SPEC})
    dataset = msgspec.json.decode(answer.data)["id"]
    stores = get("/api/v1/workspaces/elsewhere/datastores", "the-owner's-token")[1]
    for path in (f"datasets/{dataset}", f"datasets/{dataset}/files"):
        assert get(f"/api/v1/{path}")[0] == 403
        assert get(f"/api/v1/{path}", server.run_token(other.id))[0] != 403
    assert get(f"/api/v1/stores/{stores[0]['id']}/files/x")[0] == 403


def test_passwords_of_package_indexes_are_kept_but_not_shown(own_server: LiveServer) -> None:
    pip = "--extra-index-url https://me:hush@host/simple"
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=own_server.keep(b"[]"),
        environment=EnvironmentSpec(name="tf", pip=(pip,)),
    )
    run = own_server.make_run(script=script, definition={"pip": [pip]})
    for route in ROUTES:
        sample = SAMPLES[name_of(route)]
        if route.path.endswith("/stop"):
            continue
        answer = own_server.request(
            route.verb,
            sample.path.replace("RUN", run.id),
            json=_for_run(sample.json, run.id),
            body=sample.body,
        )
        assert b"hush" not in answer.data, name_of(route)
    kept = own_server.store.records.get(RunRecord, run.id).spec.script
    assert kept is not None
    assert kept.environment.pip == (pip,), "whoever builds the environment needs it"


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
