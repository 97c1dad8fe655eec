"""Bodies that are too large, malformed or missing, and what the server says of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.domain.errors import ErrorBody
from runyard.domain.runs import RunRecord
from runyard_runtime import wire

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

MEGABYTE = 1 << 20  # the limit of the test server


def error(data: bytes) -> ErrorBody:
    return msgspec.json.decode(data, type=ErrorBody)


def pieces(total: int) -> Iterator[bytes]:
    for _ in range(total // 65536):
        yield b" " * 65536


def test_a_body_over_the_limit_is_refused_before_it_is_read(server: LiveServer) -> None:
    path = f"/api/v1/runs/{server.make_run().id}/metrics"
    answer = server.request("POST", path, body=b"[" + b" " * MEGABYTE + b"]")
    assert answer.status == 413
    assert error(answer.data).code == "too_large"
    assert server.request("POST", path, body=b"[" + b" " * (MEGABYTE - 2) + b"]").status == 200


def test_a_chunked_body_over_the_limit_is_refused_while_it_is_read(server: LiveServer) -> None:
    path = f"/api/v1/runs/{server.make_run().id}/metrics"
    answer = server.request("POST", path, body=pieces(4 * MEGABYTE))
    assert answer.status == 413


def test_log_chunks_have_a_limit_of_their_own(server: LiveServer) -> None:
    path = f"/api/v1/runs/{server.make_run().id}/streams/log/big.txt?offset=0"
    assert server.request("POST", path, body=b"x" * (2 * MEGABYTE)).status == 200
    too_much = b"x" * (wire.CHUNK_LIMIT_BYTES + 1)
    assert server.request("POST", path, body=too_much).status == 413


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "truncated"),
        (b"[{", "truncated"),
        (b'[{"name": "x", "value": NaN}]', "malformed"),
        (b'{"name": "x"}', "array"),
        (b'[{"name": 7, "value": 1}]', "$[0].name"),
        (b'[{"value": 1}]', "name"),
        (b'[{"name": "x", "value": 1, "kind": "odd"}]', "$[0].kind"),
        (b'[{"name": "\xff", "value": 1}]', "utf-8"),
        (b"[" * 100_000, ""),
    ],
)
def test_a_malformed_body_is_refused_with_the_place(
    server: LiveServer, body: bytes, words: str
) -> None:
    path = f"/api/v1/runs/{server.make_run().id}/metrics"
    answer = server.request("POST", path, body=body)
    assert answer.status == 400
    assert error(answer.data).code == "invalid"
    assert words in error(answer.data).why


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "state=Odd", "typo=1", "tag=%00", "top_level=maybe"],
)
def test_a_query_that_makes_no_sense_is_refused(server: LiveServer, query: str) -> None:
    answer = server.request("GET", f"/api/v1/runs?{query}")
    assert answer.status == 400
    assert error(answer.data).code == "invalid"


def test_an_unknown_path_is_not_found_as_json(server: LiveServer) -> None:
    for path in ("/nothing", "/api/v1/nothing", "/api/v2/runs", "/api/v1/runs/", "//"):
        answer = server.request("GET", path)
        assert answer.status == 404
        assert error(answer.data).code == "not_found"


def test_a_bug_is_told_by_its_number_alone(
    own_server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_server.conductor.bug = RuntimeError("a secret detail")
    with caplog.at_level(logging.ERROR):
        answer = own_server.request("GET", "/api/v1/runs")
    body = error(answer.data)
    assert answer.status == 500
    assert body.code == "internal"
    assert b"secret detail" not in answer.data
    incident = body.what.partition("(error ")[2].partition(")")[0]
    assert len(incident) == 8
    assert incident in caplog.text
    assert "a secret detail" in caplog.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"spec": {"workspace": "ws", "experiment": "e", "tagz": {}}}', "$.spec.tagz"),
        (b'{"spec": {"workspace": "ws", "experiment": "e"}, "more": 1}', "$.more"),
        (
            b'{"spec": {"workspace": "ws", "experiment": "e", "script": {"arguments": ["x"], '
            b'"snapshot": "0", "environment": {"name": "e", "pipp": []}}}}',
            "$.spec.script.environment.pipp",
        ),
    ],
)
def test_a_field_that_nobody_knows_is_refused(server: LiveServer, body: bytes, field: str) -> None:
    answer = server.request("POST", "/api/v1/runs", body=body)
    assert answer.status == 400
    assert field in error(answer.data).what


def test_answers_may_have_more_fields_than_a_client_knows(server: LiveServer) -> None:
    record = msgspec.json.decode(server.request("GET", f"/api/v1/runs/{server.make_run().id}").data)
    record["spec"]["of_a_newer_server"] = record["of_a_newer_server"] = 1
    assert msgspec.convert(record, RunRecord).id == record["id"]
