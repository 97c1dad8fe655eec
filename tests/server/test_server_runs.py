"""Workspaces, experiments and runs over HTTP."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.conductor import runs
from runyard.domain.errors import ErrorBody
from runyard.domain.files import FileEntry, manifest_digest
from runyard.domain.runs import RunPage, RunRecord
from runyard.domain.server import ServerInfo
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

SOURCE = b"print('hello')\n"


def error(data: bytes) -> ErrorBody:
    return msgspec.json.decode(data, type=ErrorBody)


def script_submission(workspace: str = "yard") -> dict[str, Any]:
    manifest = (FileEntry("train.py", hashlib.sha256(SOURCE).hexdigest(), len(SOURCE)),)
    script = {
        "arguments": ["train.py", "--lr", "0.1"],
        "snapshot": manifest_digest(manifest),
        "environment": {"name": "base", "user_managed": True},
    }
    spec = {"workspace": workspace, "experiment": "trials", "script": script}
    return {"spec": spec, "manifest": manifest}


def test_a_workspace_is_made_found_and_removed(server: LiveServer) -> None:
    spec = {"name": "garden", "location": "here", "tags": {"a": None}}
    made = server.request("POST", "/api/v1/workspaces", json=spec)
    record = msgspec.json.decode(made.data, type=WorkspaceRecord)
    assert (record.name, record.location, record.tags) == ("garden", "here", {"a": None})
    again = server.request("POST", "/api/v1/workspaces", json=spec)
    assert msgspec.json.decode(again.data, type=WorkspaceRecord) == record
    refused = server.request("POST", "/api/v1/workspaces", json={**spec, "exist_ok": False})
    assert refused.status == 409
    listed = server.request("GET", "/api/v1/workspaces")
    assert record in msgspec.json.decode(listed.data, type=list[WorkspaceRecord])
    assert server.request("DELETE", "/api/v1/workspaces/garden").status == 200
    gone = server.request("GET", "/api/v1/workspaces/garden")
    assert gone.status == 404
    assert "garden" in error(gone.data).what


def test_a_workspace_with_experiments_stays(server: LiveServer) -> None:
    server.request("POST", "/api/v1/workspaces", json={"name": "busy"})
    path = "/api/v1/workspaces/busy/experiments"
    made = server.request("PUT", f"{path}/first")
    record = msgspec.json.decode(made.data, type=ExperimentRecord)
    assert msgspec.json.decode(server.request("PUT", f"{path}/first").data) == (
        msgspec.json.decode(made.data)
    )
    assert msgspec.json.decode(server.request("GET", path).data, type=list[ExperimentRecord]) == [
        record
    ]
    found = server.request("GET", f"{path}/first")
    assert msgspec.json.decode(found.data, type=ExperimentRecord) == record
    assert server.request("GET", f"{path}/second").status == 404
    assert server.request("DELETE", "/api/v1/workspaces/busy").status == 409


@pytest.mark.parametrize("name", ["", "a", "a b", "ü" * 40, "../x", "x" * 34, "-x"])
def test_a_bad_workspace_name_is_refused(server: LiveServer, name: str) -> None:
    assert server.request("POST", "/api/v1/workspaces", json={"name": name}).status == 400


def test_many_who_make_one_workspace_at_once_get_the_same(server: LiveServer) -> None:
    def make(_: int) -> bytes:
        return server.request("POST", "/api/v1/workspaces", json={"name": "shared"}).data

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(make, range(8)))) == 1


def test_a_script_is_submitted_once_its_sources_are_there(server: LiveServer) -> None:
    submission = script_submission()
    refused = server.request("POST", "/api/v1/runs", json=submission)
    assert refused.status == 424
    (digest,) = error(refused.data).digests
    assert server.request("PUT", f"/api/v1/blobs/{digest}", body=SOURCE).status == 200
    answer = server.request("POST", "/api/v1/runs", json=submission)
    run = msgspec.json.decode(answer.data, type=RunRecord)
    assert (run.state, run.spec.experiment) == ("NotStarted", "trials")
    assert server.conductor.woken[-1] == run.id
    snapshot = server.request("GET", f"/api/v1/runs/{run.id}/snapshot")
    assert msgspec.json.decode(snapshot.data) == [["train.py", digest, len(SOURCE), 0o644]]
    got = server.request("GET", f"/api/v1/runs/{run.id}")
    assert msgspec.json.decode(got.data, type=RunRecord) == run


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"workspace": "nowhere"}, 404),
        ({"experiment": "a b"}, 400),
        ({"parent": "nobody"}, 404),
        ({"typo": 1}, 400),
        ({"id": "../x"}, 400),
    ],
)
def test_a_submission_that_makes_no_sense_is_refused(
    server: LiveServer, change: dict[str, object], status: int
) -> None:
    spec = {"workspace": "yard", "experiment": "trials", **change}
    answer = server.request("POST", "/api/v1/runs", json={"spec": spec})
    assert answer.status == status
    assert error(answer.data).what


def test_the_same_id_twice_is_a_conflict(server: LiveServer) -> None:
    spec = {"spec": {"workspace": "yard", "experiment": "trials", "id": "twice"}}
    assert server.request("POST", "/api/v1/runs", json=spec).status == 200
    assert server.request("POST", "/api/v1/runs", json=spec).status == 409


def test_runs_are_found_by_their_labels_page_by_page(server: LiveServer) -> None:
    tags = {"colour": "red", "odd=key": None}
    made = [server.make_run(tags=tags, properties={"p": "1"}).id for _ in range(5)]
    child = server.make_run(parent=made[0])

    def find(query: str) -> tuple[list[str], str | None]:
        answer = server.request("GET", f"/api/v1/runs?workspace=yard&{query}")
        page = msgspec.json.decode(answer.data, type=RunPage)
        return [run.id for run in page.runs], page.next

    assert find("tag=colour&limit=10") == (made[::-1], None)
    assert find("tag=colour=blue") == ([], None)
    assert find("tag=colour%3Dred&property=p=1&state=Running&state=Queued")[0] == made[::-1]
    assert find(f"parent={made[0]}") == ([child.id], None)
    assert child.id not in find("top_level=true&limit=1000")[0]
    first, cursor = find("tag=colour&limit=3")
    rest, end = find(f"tag=colour&limit=3&after={cursor}")
    assert (first + rest, end) == (made[::-1], None)


def test_labels_change_and_properties_stay(server: LiveServer) -> None:
    run = server.make_run(tags={"old": "1"})
    path = f"/api/v1/runs/{run.id}"
    patch = {"set_tags": {"new": "2"}, "remove_tags": ["old"], "add_properties": {"p": "1"}}
    changed = msgspec.json.decode(server.request("PATCH", path, json=patch).data, type=RunRecord)
    assert (changed.tags, changed.properties) == ({"new": "2"}, {"p": "1"})
    answer = server.request("PATCH", path, json={"add_properties": {"p": "2"}})
    assert answer.status == 409


@pytest.mark.parametrize("how", ["cancel", "complete", "fail"])
def test_ending_a_run_wakes_the_conductor(server: LiveServer, how: str) -> None:
    run = server.make_run()
    body = {"code": "UserError", "message": "it broke"} if how == "fail" else None
    for _ in range(2):  # each is safe to repeat
        answer = server.request("POST", f"/api/v1/runs/{run.id}/{how}", json=body)
        assert answer.status == 200
        assert msgspec.json.decode(answer.data)["state"] != "Running"
        assert server.conductor.woken[-1] == run.id


def test_streams_join_without_gaps_and_repeat_without_harm(server: LiveServer) -> None:
    run = server.make_run()
    path = f"/api/v1/runs/{run.id}/streams/log/logs/a%20b.txt"

    def post(offset: int, body: bytes) -> tuple[int, object]:
        answer = server.request("POST", f"{path}?offset={offset}", body=body)
        return answer.status, msgspec.json.decode(answer.data).get("end")

    assert post(0, b"abc") == (200, 3)
    assert post(0, b"abc") == (200, 3)
    assert post(1, b"bcde") == (200, 5)
    assert post(9, b"x")[0] == 409
    assert msgspec.json.decode(server.request("GET", path).data) == {"end": 5}
    assert server.store.streams.read_log(run.id, "logs/a b.txt", 0, 10) == b"abcde"
    assert server.request("POST", path, body=b"x").status == 400  # no offset


def test_events_are_applied_once(server: LiveServer) -> None:
    run = server.make_run()
    body = b'{"e":"metric","n":"loss","v":{"f":"nan"}}\n{"e":"tag","n":"t","v":"1"}\n'
    path = f"/api/v1/runs/{run.id}/streams/events/0.jsonl?offset=0"
    for _ in range(3):
        assert server.request("POST", path, body=body).status == 200
    assert len(server.store.metrics.series(run.id)[0].values) == 1
    assert server.store.records.get(RunRecord, run.id).tags == {"t": "1"}


def test_an_agents_report_is_answered_with_orders(server: LiveServer) -> None:
    run = server.make_run()
    path = f"/api/v1/runs/{run.id}/reports"
    report = {"attempt": 1, "phase": "alive"}
    answer = server.request("POST", path, json=report, token=server.agent_token(run.id))
    assert msgspec.json.decode(answer.data) == {"stop": False}
    started = {"attempt": 1, "phase": "started"}
    assert server.request("POST", path, json=started).status == 200
    assert server.conductor.woken[-1] == run.id
    server.complete(run.id)
    assert msgspec.json.decode(server.request("POST", path, json=report).data) == {"stop": True}


def test_a_heartbeat_wakes_nobody_and_asks_nothing_until_its_run_changes(
    server: LiveServer,
) -> None:
    run = server.make_run()
    path = f"/api/v1/runs/{run.id}/reports"
    woken = list(server.conductor.woken)

    def beat() -> object:
        answer = server.request("POST", path, json={"attempt": 1, "phase": "alive"})
        return msgspec.json.decode(answer.data)["stop"]

    assert beat() is False
    runs.complete(server.store, run.id, datetime.now(UTC))  # nobody says so
    assert beat() is False
    server.changes.notify(run.id)
    assert beat() is True
    assert server.conductor.woken == woken


def test_the_server_describes_itself(server: LiveServer) -> None:
    info = msgspec.json.decode(server.request("GET", "/api/v1/server").data, type=ServerInfo)
    assert info.url == server.url
    health = msgspec.json.decode(server.request("GET", "/healthz", token=None).data)
    assert health == {"status": "ok", "version": info.version}
