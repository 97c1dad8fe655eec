"""A run that was started again: what an earlier attempt still sends does not mix with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.domain.runs import RunRecord
from runyard.domain.tokens import Role, mint
from runyard_runtime import wire

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

SECRET = b"a secret for tests only"


def token(run: RunRecord, attempt: int, role: Role = Role.AGENT) -> str:
    return mint(SECRET, role, run.id, wire.NEVER, attempt=attempt)


def send(server: LiveServer, run: RunRecord, attempt: int, offset: int, text: bytes) -> int:
    path = f"/api/v1/runs/{run.id}/streams/log/driver.txt?offset={offset}"
    return server.request("POST", path, body=text, token=token(run, attempt)).status


def restart(server: LiveServer, run: RunRecord) -> None:
    server.change(run.id, lambda now: msgspec.structs.replace(now, attempt=now.attempt + 1))


def test_an_earlier_attempt_is_not_heard_once_a_later_one_spoke(server: LiveServer) -> None:
    run = server.make_run()
    assert send(server, run, 1, 0, b"one\n") == 200
    restart(server, run)
    assert send(server, run, 2, 4, b"two\n") == 200
    assert send(server, run, 1, 8, b"late\n") == 410
    assert send(server, run, 2, 8, b"three\n") == 200
    text = server.request("GET", f"/api/v1/runs/{run.id}/files/driver.txt").data
    assert text == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("role", [Role.AGENT, Role.RUN])
def test_neither_files_nor_contents_are_taken_of_it(server: LiveServer, role: Role) -> None:
    run = server.make_run()
    restart(server, run)
    old, new = token(run, 1, role), token(run, 2, role)
    row = ["outputs/model", server.keep(b"weights"), 7, 0o644]
    files = f"/api/v1/runs/{run.id}/files"
    assert server.request("POST", files, json=[row], token=new).status == 200
    assert server.request("POST", files, json=[row], token=old).status == 410
    assert server.request("POST", "/api/v1/blobs/missing", json=[], token=old).status == 410


def test_its_agent_is_told_to_stop(server: LiveServer) -> None:
    run = server.make_run()
    restart(server, run)
    body = {"attempt": 1, "node": 0, "phase": "alive"}
    path = f"/api/v1/runs/{run.id}/reports"
    answer = server.request("POST", path, json=body, token=token(run, 1))
    assert answer.status == 200
    assert msgspec.json.decode(answer.data)["stop"] is True


def test_a_token_without_an_attempt_speaks_for_all(server: LiveServer) -> None:
    run = server.make_run()
    restart(server, run)
    assert send(server, run, 0, 0, b"one\n") == 200
