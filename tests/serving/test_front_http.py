"""HTTP at the front end, over real sockets: what is odd, large, slow or broken."""

import base64
import json
import random
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from runyard.testing.front_service import (
    PATIENCE,
    Service,
    a_service,
    read_all,
    resident_mb,
    wait_for,
)

HOST = b"Host: x\r\n"


def post(body: bytes, more: bytes = b"", target: bytes = b"/score") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    kind = b"Content-Type: application/json\r\n"
    return b"POST %s HTTP/1.1\r\n%s%s%s%s\r\n%s" % (target, HOST, kind, length, more, body)


CLOSE = b"Connection: close\r\n"


def head_of(answer: bytes) -> dict[str, object]:
    """What the worker was told, from the header in which it sends it back."""
    line = next(line for line in answer.split(b"\r\n") if line.startswith(b"X-Head: "))
    found: dict[str, object] = json.loads(base64.b64decode(line[8:]))
    return found


@pytest.mark.parametrize(
    "body",
    [b"[1, 2]", b"", b"\xff\xfe not utf-8", b"[NaN, Infinity, -1e999]", b"x" * 200_000, b"\0\r\n"],
    ids=["json", "empty", "bytes", "nan", "large", "controls"],
)
def test_a_body_goes_through_unread(echo: Service, body: bytes) -> None:
    answer = echo.score(body)
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["Content-Type"] == "application/json"


def test_json_to_the_scoring_path_needs_no_head(echo: Service) -> None:
    assert "X-Head" not in echo.score().headers
    answer = echo.ask("POST", "/api/v1/service/demo/score", b"[1]")
    assert (answer.status, answer.body) == (200, b"[1]")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (b"/score?verbose=1", b"application/json"),
        (b"/score", b"text/csv"),
        (b"/v1/models/m:predict", b"application/json"),
        (b"/v2/models/m/versions/1/infer", b"application/json"),
    ],
)
def test_a_worker_is_told_what_is_unusual(echo: Service, target: bytes, kind: bytes) -> None:
    secret = b"Authorization: Bearer x\r\nCookie: y\r\nX-Own: z\r\n"
    length = b"Content-Type: %s\r\nContent-Length: 1\r\n" % kind
    request = b"POST %s HTTP/1.1\r\n%s%s%s\r\n1" % (target, HOST, secret, length)
    head = head_of(echo.exchange(request))
    path, _, query = target.decode().partition("?")
    assert (head["method"], head["path"], head["query"]) == ("POST", path, query)
    assert head["headers"] == {"host": "x", "content-type": kind.decode(), "x-own": "z"}


def test_chunks_become_one_body_and_trailers_are_ignored(echo: Service) -> None:
    chunks = b"3\r\n[1,\r\n3;x=y\r\n 2]\r\n0\r\nContent-Type: evil\r\n\r\n"
    request = b"POST /score HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    assert echo.exchange(request).endswith(b"\r\n\r\n[1, 2]")


def test_a_request_in_single_bytes_is_a_request(echo: Service) -> None:
    with echo.raw() as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(b"[7]", CLOSE):
            one.send(bytes([byte]))
        assert read_all(one).endswith(b"\r\n\r\n[7]")


def test_pipelined_requests_are_answered_in_order(echo: Service) -> None:
    bodies = [b"[%d]" % number for number in range(300)]
    slow = post(b'{"sleep": 0.05}')
    health = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    answer = echo.exchange(slow + health + b"".join(post(body) for body in bodies))
    assert answer.count(b"HTTP/1.1 200 OK") == 302
    found = [part.split(b"\r\n\r\n")[1] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert found[0] == b'{"sleep": 0.05}'
    assert b"healthy" in found[1]
    assert found[2:] == bodies


def test_thousands_of_pipelined_health_checks_do_not_exhaust_the_stack(echo: Service) -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    answer = echo.exchange(post(b'{"sleep": 0.05}') + one * 3000)
    assert answer.count(b"HTTP/1.1 200 OK") == 3001


def test_the_client_that_asks_for_leave_gets_it(echo: Service) -> None:
    with echo.raw() as one:
        whole = post(b"[5]", b"Expect: 100-continue\r\n" + CLOSE)
        one.sendall(whole[:-3])
        assert one.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.sendall(b"[5]")
        assert read_all(one).endswith(b"\r\n\r\n[5]")


def test_too_large_a_body_is_refused_before_it_is_sent(echo: Service) -> None:
    with echo.raw() as one:
        one.sendall(b"POST /score HTTP/1.1\r\n" + HOST + b"Content-Length: 200001\r\n")
        one.sendall(b"Expect: 100-continue\r\n\r\n")
        answer = read_all(one)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"200,000 bytes" in answer
    assert b"Connection: close" in answer


def test_a_client_that_sends_too_much_still_reads_why(echo: Service) -> None:
    answer = echo.score(b"x" * 5_000_000)
    assert answer.status == 413
    assert answer.json()["code"] == "too_large"


def test_too_large_a_body_in_chunks_is_cut_off(echo: Service) -> None:
    with echo.raw() as one:
        one.sendall(b"POST /score HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        one.sendall((b"8000\r\n" + b"x" * 0x8000 + b"\r\n") * 10)
        assert read_all(one).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("pieces", [1, 100])
def test_endless_headers_are_refused(echo: Service, pieces: int) -> None:
    line = b"X-%d: " % pieces + b"y" * (300_000 // pieces) + b"\r\n"
    with echo.raw() as one:
        one.sendall(b"POST /score HTTP/1.1\r\n" + HOST)
        one.sendall(line * pieces)
        assert read_all(one).startswith(b"HTTP/1.1 431 ")


CHUNKED = b"POST /score HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def locked() -> Iterator[Service]:
    """A front end that nobody has a key of."""
    with a_service() as one:
        one.start(auth="key")
        yield one


@pytest.mark.parametrize(
    "around",
    [
        b"0\r\n" + b"X-Trailer: y\r\n" * 40_000,
        b"0\r\nX-Trailer: " + b"y" * 600_000,
        b"1;" + b"x" * 600_000,
        (b"1;" + b"x" * 2000 + b"\r\ny\r\n") * 300,
        b"\r\n" * 300_000,
    ],
    ids=["trailers", "a trailer", "an extension", "extensions", "blank lines"],
)
def test_what_is_around_a_body_has_an_end(echo: Service, locked: Service, around: bytes) -> None:
    start = b"" if around.startswith(b"\r\n") else CHUNKED
    for service in (echo, locked):
        with service.raw() as one:
            one.sendall(start + around)
            assert read_all(one).startswith(b"HTTP/1.1 431 ")


def test_a_body_in_many_small_chunks_is_a_body(echo: Service) -> None:
    body = bytes(range(65, 91)) * 2000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    answer = echo.exchange(CHUNKED + chunks + b"0\r\nX-Trailer: y\r\n\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == body


def test_a_client_that_does_not_read_is_not_read_either(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    count, body = 200, b"x" * 400_000
    data = memoryview(post(body) * count)
    sent = 0
    with service.raw() as one:
        one.settimeout(2)
        with suppress(TimeoutError):
            while sent < len(data):
                sent += one.send(data[sent : sent + 100_000])
        assert sent < len(data)
        figures = service.ask("GET", "/metrics").body
        answered = re.search(rb'requests_total{service="demo",code="200"} (\d+)', figures)
        assert answered
        assert int(answered[1]) < count / 2
        one.settimeout(PATIENCE)
        with ThreadPoolExecutor(1) as pool:  # when it reads, it gets everything
            rest = pool.submit(one.sendall, data[sent:])
            found = 0
            while found < count * len(body):
                found += one.recv(1 << 20).count(b"x")
            rest.result()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Host: a\r\nHost: b\r\n", 400),
        (b"Host: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n", 400),
        (b"Host: a\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n", 400),
        (b"Host: a\r\nX-A: a\r\nX-A: b\r\n", 200),
    ],
)
def test_two_hosts_or_keys_are_one_too_many(echo: Service, lines: bytes, status: int) -> None:
    answer = echo.exchange(b"POST /score HTTP/1.1\r\n" + lines + b"Content-Length: 3\r\n\r\n[1]")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /score HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400),  # no Host
        (b"POST /score HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", (400, 404)),
        (b"GET /no%0d%0athing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"DELETE /score HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    echo: Service, request_bytes: bytes, status: int | tuple[int, ...]
) -> None:
    answer = echo.exchange(request_bytes)
    code = int(answer.split(b" ")[1])
    assert code in (status if isinstance(status, tuple) else (status,))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]
    assert b"Content-Length: %d" % len(body) in head
    assert echo.score().status == 200


def test_random_bytes_do_not_harm_the_service(echo: Service) -> None:
    chance = random.Random(5)
    good = post(b"[1, 2, 3]", b"X-More: things\r\n")
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        answer = echo.exchange(bytes(damaged[: chance.randint(1, len(damaged))]))
        assert not answer or answer.startswith(b"HTTP/1.1 ")
        assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert echo.score(b"[4]").body == b"[4]"
    assert "Traceback" not in echo.log


def test_head_gets_the_head_alone(echo: Service) -> None:
    answer = echo.exchange(b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 0" not in answer


@pytest.mark.parametrize(
    ("first_lines", "kept"),
    [
        (b"HTTP/1.1\r\nHost: x\r\n", True),
        (b"HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", False),
        (b"HTTP/1.0\r\n", False),
        (b"HTTP/1.0\r\nConnection: keep-alive\r\n", True),
    ],
)
def test_connections_are_kept_as_the_client_wishes(
    echo: Service, first_lines: bytes, kept: bool
) -> None:
    request = b"POST /score " + first_lines + b"Content-Length: 3\r\n\r\n[1]"
    with echo.raw() as one:
        for _ in range(3 if kept else 1):
            one.sendall(request)
            answer = one.recv(4096)
            assert answer.endswith(b"\r\n\r\n[1]")
        if not kept:
            assert one.recv(1) == b""
        assert (b"Connection: keep-alive" in answer) is (kept and b"1.0" in first_lines)


def test_an_offer_of_another_protocol_is_answered_in_this_one(echo: Service) -> None:
    more = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    assert echo.exchange(post(b"[1]", more)).endswith(b"\r\n\r\n[1]")


def test_an_old_client_that_offers_another_protocol_stays_old(echo: Service) -> None:
    request = b"POST /score HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    with echo.raw() as one:
        one.sendall(request + b"Content-Length: 3\r\n\r\n[1]")
        answer = read_all(one)  # to the end: HTTP/1.0 does not keep connections
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(b"\r\n\r\n[1]")


def test_thousands_of_offers_in_a_row_are_answered(echo: Service) -> None:
    offer = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert echo.exchange(offer * 3000).count(b"HTTP/1.1 200 OK") == 3000


def test_answers_are_in_the_version_of_their_own_request(echo: Service) -> None:
    body = b'{"sleep": 0.1}'
    old = b"POST /score HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    answer = echo.exchange(old + body + post(b"[1]"))
    first, second = answer.split(b"HTTP/1.1 200 OK")[1:]
    assert b"Connection: keep-alive" in first
    assert b"Connection" not in second.replace(b"Connection: close", b"")


def test_what_came_before_nonsense_is_answered(echo: Service) -> None:
    answer = echo.exchange(post(b'{"sleep": 0.1}') + b"nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 400 " in answer


def test_a_whole_address_as_target_is_understood(echo: Service) -> None:
    assert echo.exchange(post(b"[1]", target=b"http://x/score")).endswith(b"\r\n\r\n[1]")


def test_what_the_worker_says_of_its_answer_is_passed_on(echo: Service) -> None:
    answer = echo.score(b'{"status": 418, "headers": {"X-Own": "1", "Content-Type": "a/b"}}')
    assert answer.status == 418
    assert (answer.headers["X-Own"], answer.headers["Content-Type"]) == ("1", "a/b")


def test_one_bad_reply_does_not_harm_the_batch(service: Service) -> None:
    service.worker()
    service.start()
    service.wait_ready()
    bad = [b'{"status": 0}', b'{"status": 101}', b'{"status": 600}', b'{"head": "[1]"}']
    bad += [b'{"head": "{"}', b'{"head": "{\\"headers\\": 5}"}']
    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(service.score, b'{"sleep": 0.5}')
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        wrong = [pool.submit(service.score, body) for body in bad]
        right = [pool.submit(service.score, b"[1]") for _ in range(3)]
        wait_for(lambda: service.revisions()["1"]["waiting"] == len(bad) + 3)
        assert first.result().status == 200
        for one in wrong:
            assert one.result().status == 502
            assert one.result().json()["why"]
        assert [one.result().body for one in right] == [b"[1]"] * 3
    assert "gone" not in service.log


def test_a_client_that_leaves_is_forgotten(service: Service) -> None:
    service.worker()
    service.start(limits={"queue": 2})
    service.wait_ready()
    assert service.front is not None
    with service.raw() as busy, service.raw() as patient:
        busy.sendall(post(b'{"sleep": 60}'))
        wait_for(lambda: service.revisions()["1"]["in_flight"] == 1)
        patient.sendall(post(b"[1]"))
        wait_for(lambda: service.revisions()["1"]["waiting"] == 1)
        for _ in range(6):
            with service.raw() as one, service.raw() as half:
                one.sendall(post(b"x" * 20_000_000))
                half.sendall(post(b"x" * 1_000_000)[:-1])
                wait_for(lambda: service.revisions()["1"]["waiting"] == 2)
                assert service.status()["held_bytes"] >= 19_000_000  # type: ignore[operator]
                assert service.score().status == 429
                service.leave(one)
                service.leave(half)
            wait_for(lambda: service.revisions()["1"]["waiting"] == 1)
            wait_for(lambda: service.status()["held_bytes"] == 0)
        assert resident_mb(service.front.pid) < 100
        assert service.revisions()["1"]["in_flight"] == 1


def test_health_description_and_figures(echo: Service) -> None:
    assert echo.ask("GET", "/").body == b"Healthy"
    assert echo.ask("GET", "/healthz").json()["status"] == "healthy"
    assert echo.ask("GET", "/v2/health/live").status == 200
    assert echo.ask("GET", "/v2/health/ready").status == 200
    definitions = echo.ask("GET", "/swagger.json").json()["definitions"]
    assert definitions["ServiceInput"] == {"type": "array"}  # type: ignore[index]
    figures = echo.ask("GET", "/metrics").body.decode()
    assert 'runyard_workers_ready{service="demo",revision="1"} 1' in figures
    assert 'runyard_requests_total{service="demo",code="200"}' in figures
    assert (
        echo.ask("GET", "/metrics").body.decode().split("runyard_connections")[0]
        == (figures.split("runyard_connections")[0])
    ), "who only looks changes nothing"


def test_many_large_bodies_do_not_fill_the_memory(service: Service) -> None:
    service.worker()
    service.start(limits={"max_held_bytes": 300_000})
    service.wait_ready()
    start = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
    with service.raw() as first:
        first.sendall(start + b"x" * 199_999)
        wait_for(lambda: service.score(b"y" * 200_000).status == 503)
        assert service.score(b"small").status == 200
        first.sendall(b"x")
        assert first.recv(100).startswith(b"HTTP/1.1 200 OK")
    for _ in range(3):  # and what was held is let go
        assert service.score(b"y" * 200_000).status == 200


def test_an_answer_does_not_uncount_the_next_body(service: Service) -> None:
    service.worker()
    service.start(limits={"max_held_bytes": 300_000})
    service.wait_ready()
    body = b'{"sleep": 0.2}'
    with service.raw() as one:
        one.sendall(post(body) + post(b"x" * 200_000)[:-1])
        assert one.recv(4096).endswith(body)
        wait_for(lambda: service.status()["held_bytes"] > 100_000)  # type: ignore[operator]
        assert service.score(b"y" * 200_000).status == 503
        one.sendall(b"x")
        assert one.recv(100).startswith(b"HTTP/1.1 200 OK")
    wait_for(lambda: service.status()["held_bytes"] == 0)
