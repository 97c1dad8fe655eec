"""What nodes fetch that share no disk with the server, and the board where their agents meet."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
import zipfile
from typing import TYPE_CHECKING, Any

import msgspec

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.states import RunState

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer


def ask(server: LiveServer, verb: str, path: str, **more: Any) -> Any:
    answer = server.request(verb, path, **more)
    assert answer.status == 200, answer.data
    return json.loads(answer.data)


def board(run: RunRecord, query: str = "", attempt: int = 1) -> str:
    return f"/api/v1/runs/{run.id}/board?attempt={attempt}{query}"


def test_the_runtime_and_uv_are_named_by_their_digests(server: LiveServer) -> None:
    token = server.agent_token(server.make_run().id)
    for path in ("/api/v1/runtime", "/api/v1/uv"):
        answer = server.request("GET", path, token=token)
        assert answer.status == 200
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.data).hexdigest()}"'
        part = server.request("GET", path, token=token, headers={"Range": "bytes=10-19"})
        assert (part.status, part.data) == (206, answer.data[10:20])
    names = zipfile.ZipFile(io.BytesIO(server.request("GET", "/api/v1/runtime").data)).namelist()
    assert "runyard_runtime/remote.py" in names
    assert "azureml/core/__init__.py" in names


def test_a_note_is_kept_in_its_place_and_read_from_any(server: LiveServer) -> None:
    run = server.make_run()
    assert ask(server, "GET", board(run)) == {"notes": [], "next": 0}
    for number in range(3):
        note = {"kind": "here", "node": number, "text": "Größe\n"}
        answer = ask(server, "POST", board(run, f"&since={number}"), json=note)
        assert answer == {"notes": [note], "next": number + 1}, "who posts sees it"
    found = ask(server, "GET", board(run, "&since=1"))
    assert [note["node"] for note in found["notes"]] == [1, 2]
    assert found["next"] == 3
    assert found["notes"][0]["text"] == "Größe\n"
    assert ask(server, "GET", board(run, attempt=2)) == {"notes": [], "next": 0}
    assert len(server.store.notes.read(run.id, 1)) == 3, "they are durable"


def test_who_waits_hears_of_a_note_at_once(server: LiveServer) -> None:
    run = server.make_run()
    heard: list[Any] = []
    waits = threading.Thread(
        target=lambda: heard.append(ask(server, "GET", board(run, "&since=0&wait=25")))
    )
    before = time.monotonic()
    waits.start()
    ask(server, "POST", board(run), json={"kind": "x"})
    waits.join(20)
    assert heard == [{"notes": [{"kind": "x"}], "next": 1}]
    assert time.monotonic() - before < 20
    assert ask(server, "GET", board(run, "&since=1&wait=0.05")) == {"notes": [], "next": 1}


def test_a_board_takes_objects_of_a_sane_size_only(server: LiveServer) -> None:
    run = server.make_run()
    for body, status in ((b"[1]", 400), (b"{", 400), (b'{"a": "' + b"x" * (1 << 20) + b'"}', 413)):
        answer = server.request("POST", board(run), body=body)
        assert answer.status == status, answer.data
    for query in ("&since=-1", "&wait=31", "&attempt=0"):
        assert server.request("GET", board(run, query)).status == 400
    assert ask(server, "GET", board(run))["next"] == 0


def test_the_plan_is_for_the_attempt_that_is_going_on(server: LiveServer) -> None:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=server.keep(b"[]"),
        environment=EnvironmentSpec(name="e"),
    )
    run = server.make_run(script=script)
    path = f"/api/v1/runs/{run.id}/plan?attempt="
    assert server.request("GET", path + "1").status == 404, "its environment is not known yet"
    use = EnvironmentUse(key="k", interpreter="python", python="3.11.1")
    server.change(
        run.id,
        lambda now: msgspec.structs.replace(now, environment=use, state=RunState.STARTING),
    )
    server.conductor.plan = b'{"run_id": "x"}'
    assert ask(server, "GET", path + "1", token=server.agent_token(run.id)) == {"run_id": "x"}
    answer = server.request("GET", path + "2")
    assert answer.status == 404
    assert b"Attempt 2 of run" in answer.data
