"""The parts of the front end that are pure: keys, frames, heads, documents."""

import json
from pathlib import Path

import pytest

from runyard.domain.errors import Invalid
from runyard.serving.access import guard, hash_key, mint_token, token_holds
from runyard.serving.answers import JSON, Heads, header_lines
from runyard.serving.connections import too_slow
from runyard.serving.front_config import Auth, FrontConfig, read_config
from runyard.serving.metrics import Metrics, exposition
from runyard.serving.swagger import swagger
from runyard_runtime import scoring_wire


@pytest.mark.parametrize(
    ("header", "opens"),
    [
        (b"Bearer first", True),
        (b"bearer second", True),
        (b"Bearer  first ", True),
        (b"Bearer third", False),
        (b"Bearer", False),
        (b"Basic first", False),
        (b"first", False),
        (b"", False),
        (b"Bearer \xff\xfe", False),
        (None, False),
    ],
)
def test_either_key_opens_the_door(header: bytes | None, opens: bool) -> None:
    hashes = (hash_key("first"), hash_key("second"))
    config = FrontConfig(name="s", port=1, auth=Auth.KEY, key_hashes=hashes)
    assert guard(config, lambda: 0.0)(header) is opens


def test_without_keys_nobody_gets_in_by_an_empty_one() -> None:
    config = FrontConfig(name="s", port=1, auth=Auth.KEY)
    assert not guard(config, lambda: 0.0)(b"Bearer ")


@pytest.mark.parametrize(
    ("token", "holds"),
    [
        (mint_token("secret", "demo", 100), True),
        (mint_token("secret", "demo", 99), False),  # too old
        (mint_token("other", "demo", 200), False),
        (mint_token("secret", "another", 200), False),
        ("200." + mint_token("secret", "demo", 100).partition(".")[2], False),
        ("", False),
        ("100", False),
        ("100.", False),
        ("é.ü", False),
        ("9" * 5000 + ".x", False),
    ],
)
def test_a_token_is_for_one_service_and_runs_out(token: str, holds: bool) -> None:
    assert token_holds("secret", "demo", token.encode(), now=100) is holds


def test_a_front_end_without_a_secret_takes_no_token() -> None:
    assert not token_holds("", "demo", mint_token("", "demo", 100).encode(), now=0)


def test_replies_are_found_however_they_are_cut() -> None:
    replies = [(200, b"", b"[1]"), (400, b'{"headers": {}}', b""), (200, b"", b"x" * 1000)]
    data = scoring_wire.encode_replies(replies)
    for cut in range(len(data)):
        assert scoring_wire.split_replies(data[:cut]) is None
    assert scoring_wire.split_replies(data) == replies
    with pytest.raises(scoring_wire.Broken):
        scoring_wire.split_replies(data + b"x")


def test_a_hello_is_found_however_it_is_cut() -> None:
    data = scoring_wire.encode_hello({"scorer": "é"})
    for cut in range(len(data)):
        assert scoring_wire.split_hello(data[:cut]) is None
    assert scoring_wire.split_hello(data) == {"scorer": "é"}


def test_a_worker_cannot_break_out_of_a_header() -> None:
    bad = {"X-A": "1\r\nX-Evil: 2", "X-B\r\n": "3", "Content-Length": "5", "X D": "6", "": "7"}
    head = {"headers": bad | {"X-É": "8", "(X)": "9", "X-C": "4"}}
    assert header_lines(json.dumps(head).encode()) == b"X-C: 4\r\n" + JSON


def test_a_worker_may_choose_the_content_type() -> None:
    head = json.dumps({"headers": {"content-type": "image/png"}}).encode()
    assert header_lines(head) == b"content-type: image/png\r\n"


def test_the_head_of_an_answer_has_the_date() -> None:
    heads = Heads()
    heads.refresh(0.0)
    data = heads.assemble(204, b"", b"", keep_alive=False, old=False, head=False)
    assert data == (
        b"HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        b"Content-Type: application/json\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("phase", "taken", "quiet", "late"),
    [
        ("", 1e6, 1e6, False),
        ("head", 19, 0, False),
        ("head", 21, 0, True),  # a byte now and then does not help
        ("body", 300, 1, False),
        ("body", 30, 21, True),
        ("body", 700, 1, True),
    ],
)
def test_slow_clients_are_given_up(phase: str, taken: float, quiet: float, late: bool) -> None:
    assert too_slow(phase, taken, quiet) is late


def test_the_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    metrics.count(200, 0.002)
    metrics.count(200, 99)
    metrics.count(503, 0.0001)
    metrics.batches.add(3)
    text = exposition('a"b', metrics, {"runyard_x": ("An x.", {'revision="1"': 2.0})})
    assert 'runyard_requests_total{service="a\\"b",code="200"} 2\n' in text
    assert 'runyard_request_seconds_bucket{service="a\\"b",le="0.0025"} 2\n' in text
    assert 'runyard_request_seconds_bucket{service="a\\"b",le="+Inf"} 3\n' in text
    assert 'runyard_batch_size_sum{service="a\\"b"} 3.000000\n' in text
    assert 'runyard_x{service="a\\"b",revision="1"} 2\n' in text


def test_the_description_has_the_schemas_and_says_when_a_key_is_needed() -> None:
    hello = {"swagger": {"input": {"type": "array"}, "output": None}}
    plain = swagger("demo", hello, secured=False)
    assert plain["definitions"]["ServiceInput"] == {"type": "array"}  # type: ignore[index]
    assert "securityDefinitions" not in plain
    secured = swagger("demo", {}, secured=True)
    assert secured["paths"]["/score"]["post"]["security"] == [{"Bearer": []}]  # type: ignore[index]


def test_a_folder_without_configuration_says_so(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        read_config(tmp_path)
    (tmp_path / "front.json").write_text('{"name": 5}')
    with pytest.raises(Invalid, match="not the configuration"):
        read_config(tmp_path)
