"""The HTTP client against a small real server that can be told to misbehave."""

import io
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from runyard.domain.errors import (
    BlobsMissing,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    RunyardError,
    Unavailable,
    to_wire,
)
from runyard.sdk.client import Client

TOKEN = "the-token"
Act = Callable[["Handler"], None]


class Yard(ThreadingHTTPServer):
    """A server whose next answers are given by the test; the last one is used for the rest."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.acts: list[Act] = []
        self.seen: list[tuple[str, str, bytes]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.peers: set[tuple[str, int]] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A cut connection is part of the test."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Yard

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size + 2)[:-2]
            self.rfile.readline()
        with self.server.lock:
            self.server.seen.append((self.command, self.path, body))
            self.server.headers_seen.append(dict(self.headers))
            self.server.peers.add(self.client_address)
            act = self.server.acts[0] if len(self.server.acts) == 1 else self.server.acts.pop(0)
        act(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)


def says(value: object, status: int = 200) -> Act:
    return lambda handler: handler.reply(msgspec.json.encode(value), status)


def refuses(error: RunyardError) -> Act:
    return lambda handler: handler.reply(msgspec.json.encode(to_wire(error)), error.status)


def cuts(handler: Handler) -> None:
    handler.cut()


@pytest.fixture
def yard() -> Iterator[Yard]:
    server = Yard()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def client(yard: Yard) -> Iterator[Client]:
    made = Client(yard.url, TOKEN, patience_seconds=5)
    yield made
    made.close()


def closed_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_json_goes_both_ways_with_the_token(yard: Yard, client: Client) -> None:
    yard.acts = [says({"a": 1})]
    assert client.request("POST", "/x", body={"b": [None]}, answer=dict[str, int]) == {"a": 1}
    assert yard.seen == [("POST", "/x", b'{"b":[null]}')]
    assert yard.headers_seen[0]["Authorization"] == f"Bearer {TOKEN}"


def test_query_lists_repeat_the_key_and_none_is_left_out(yard: Yard, client: Client) -> None:
    yard.acts = [says([])]
    query = {"state": ["Running", "Failed"], "after": None, "top_level": True, "q": "a b&c"}
    client.request("GET", "/runs", query=query, answer=list)
    assert yard.seen[0][1] == "/runs?state=Running&state=Failed&top_level=true&q=a+b%26c"


def test_a_quoted_path_is_sent_as_it_is(yard: Yard, client: Client) -> None:
    yard.acts = [says(None)]
    client.request("GET", "/files/a%2Fb%20c/d\u00e9", answer=object)
    assert yard.seen[0][1] == "/files/a%2Fb%20c/d%C3%A9"


def test_one_connection_serves_many_requests(yard: Yard, client: Client) -> None:
    yard.acts = [says(1)]
    for _ in range(5):
        client.request("GET", "/x", answer=int)
    assert len(yard.peers) == 1


def test_threads_may_share_a_client(yard: Yard, client: Client) -> None:
    yard.acts = [says(1)]
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: answers.extend(
                client.request("GET", "/x", answer=int) for _ in range(20)
            )
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1] * 160


def test_a_forked_child_speaks_on_a_connection_of_its_own(yard: Yard, client: Client) -> None:
    yard.acts = [says(1)]
    client.request("GET", "/x", answer=int)
    child = os.fork()
    if child == 0:
        os._exit(0 if client.request("GET", "/x", answer=int) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.request("GET", "/x", answer=int)
    assert len(yard.peers) == 2


@pytest.mark.parametrize("error", [NotFound("w", why="y", fix="f"), Conflict("w"), Invalid("w")])
def test_an_error_arrives_as_itself(yard: Yard, client: Client, error: RunyardError) -> None:
    yard.acts = [refuses(error)]
    with pytest.raises(type(error)) as caught:
        client.request("GET", "/x", answer=int)
    assert str(caught.value) == str(error)


def test_missing_blobs_are_named(yard: Yard, client: Client) -> None:
    yard.acts = [refuses(BlobsMissing("w", digests=("d",)))]
    with pytest.raises(BlobsMissing) as caught:
        client.request("POST", "/x", answer=int)
    assert caught.value.digests == ("d",)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_says_what_to_do(yard: Yard, client: Client, status: int) -> None:
    yard.acts = [lambda handler: handler.reply(b"<html>no</html>", status)]
    with pytest.raises(Denied, match="RUNYARD_TOKEN"):
        client.request("GET", "/x", answer=int)
    assert len(yard.seen) == 1


def test_a_token_that_changed_is_read_again(yard: Yard) -> None:
    yard.acts = [refuses(Denied("no")), says(7)]
    client = Client(yard.url, "old", refresh=lambda: (yard.url, "new"))
    assert client.request("POST", "/x", answer=int) == 7
    assert [seen["Authorization"] for seen in yard.headers_seen] == ["Bearer old", "Bearer new"]
    client.close()


def test_an_answer_of_another_program_is_an_error_in_words(yard: Yard, client: Client) -> None:
    yard.acts = [lambda handler: handler.reply(b"<html>hello</html>")]
    with pytest.raises(RunyardError, match="was not understood"):
        client.request("GET", "/x", answer=int)
    yard.acts = [lambda handler: handler.reply(b"<html>oops</html>", 500)]
    with pytest.raises(RunyardError, match="answered 500"):
        client.request("GET", "/x", answer=int)
    yard.acts = [lambda handler: handler.reply(b"", 302, Location="http://elsewhere/")]
    with pytest.raises(RunyardError, match="answered 302"):
        client.request("GET", "/x", answer=int)


def test_503_is_tried_again(yard: Yard, client: Client) -> None:
    yard.acts = [refuses(Unavailable("stopping")), refuses(Unavailable("stopping")), says(7)]
    assert client.request("GET", "/x", answer=int) == 7
    assert len(yard.seen) == 3


@pytest.mark.parametrize(("method", "safe"), [("GET", False), ("PUT", False), ("POST", True)])
def test_a_cut_connection_is_tried_again(
    yard: Yard, client: Client, method: str, safe: bool
) -> None:
    yard.acts = [cuts, cuts, says(7)]
    assert client.request(method, "/x", answer=int, safe_to_repeat=safe) == 7


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_what_may_have_been_done_is_not_repeated(yard: Yard, client: Client, method: str) -> None:
    yard.acts = [cuts, says(7)]
    with pytest.raises(Unavailable, match="Tried once"):
        client.request(method, "/x", answer=int)
    assert len(yard.seen) == 1


def test_an_address_that_never_answered_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runyard.sdk.client.FIRST_PATIENCE_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"times in 0\.\d seconds"):
        Client(closed_port(), TOKEN).request("GET", "/x", answer=int)


def test_an_unreachable_server_is_said_with_what_was_tried() -> None:
    url = closed_port()
    client = Client(url, TOKEN, patience_seconds=0.2)
    with pytest.raises(Unavailable) as caught:
        client.request("GET", "/x", answer=int)
    assert url in caught.value.what
    assert "times" in caught.value.why
    assert "connection refused" in caught.value.why
    assert "RUNYARD_URL" in caught.value.fix


def test_a_server_that_hangs_is_given_up(yard: Yard) -> None:
    release = threading.Event()

    def hangs(handler: Handler) -> None:
        release.wait(10)
        handler.cut()

    yard.acts = [hangs]
    client = Client(yard.url, TOKEN, patience_seconds=0.1)
    with pytest.raises(Unavailable, match="no answer within"):
        client.request("GET", "/x", answer=int, timeout_seconds=0.2)
    release.set()
    client.close()


def test_even_a_post_follows_a_server_that_moved(yard: Yard) -> None:
    # Nothing listened at the old address, so the request cannot have been done there.
    yard.acts = [says(7)]
    client = Client(closed_port(), "old", refresh=lambda: (yard.url, TOKEN))
    assert client.request("POST", "/x", answer=int) == 7
    assert client.url == yard.url
    client.close()


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://x", "http://", "http://h:x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="http://HOST:PORT"):
        Client(url, TOKEN)


DATA = bytes(range(256)) * 4096  # 1 MiB


def test_a_file_is_uploaded_whole_from_where_it_stands(yard: Yard, client: Client) -> None:
    yard.acts = [cuts, says({})]
    source = io.BytesIO(b"skip" + DATA)
    source.seek(4)
    client.upload("/blobs/d", source, len(DATA))
    assert yard.seen[1] == ("PUT", "/blobs/d", DATA)


def test_pieces_of_unknown_length_are_uploaded(yard: Yard, client: Client) -> None:
    yard.acts = [says({})]
    client.upload("/b", iter([b"one", b"", b"two"]), None)
    assert yard.seen[0][2] == b"onetwo"


def test_pieces_that_are_gone_are_not_sent_again(yard: Yard, client: Client) -> None:
    yard.acts = [cuts, says({})]
    with pytest.raises(Unavailable):
        client.upload("/b", iter([b"one"]), 3)
    assert len(yard.seen) == 1


def test_a_file_that_grew_is_sent_as_announced(yard: Yard, client: Client) -> None:
    yard.acts = [says({}), says(7)]
    client.upload("/b", io.BytesIO(b"12345"), 3)
    assert yard.seen[0][2] == b"123"
    assert client.request("GET", "/x", answer=int) == 7  # the connection is still good


def test_a_file_that_shrank_is_an_error(yard: Yard, client: Client) -> None:
    yard.acts = [says({})]
    with pytest.raises(Conflict, match="3 of 9 bytes"):
        client.upload("/b", io.BytesIO(b"123"), 9)


def serves(
    data: bytes, *, cut_after: int | None = None, ranges: bool = True, tag: str = "t"
) -> Act:
    def act(handler: Handler) -> None:
        start = 0
        if ranges and (asked := handler.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                handler.reply(b"", 416)
                return
        rest = data[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(rest)))
        handler.send_header("ETag", tag)
        handler.end_headers()
        handler.wfile.write(rest[:cut_after])
        if cut_after is not None:
            handler.cut()

    return act


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_goes_on_after_a_cut(yard: Yard, client: Client, ranges: bool) -> None:
    yard.acts = [
        serves(DATA, cut_after=300_000, ranges=ranges),
        serves(DATA, cut_after=500_000, ranges=ranges),
        serves(DATA, ranges=ranges),
    ]
    target = io.BytesIO()
    assert client.download("/b", target) == len(DATA)
    assert target.getvalue() == DATA
    asked = [seen.get("Range") for seen in yard.headers_seen]
    assert asked[0] is None
    assert asked[1] is not None


def test_a_download_may_begin_in_the_middle(yard: Yard, client: Client) -> None:
    yard.acts = [serves(DATA)]
    target = io.BytesIO()
    assert client.download("/b", target, start=1000) == len(DATA) - 1000
    assert target.getvalue() == DATA[1000:]
    assert client.download("/b", target, start=len(DATA)) == 0


def test_two_contents_are_never_mixed(yard: Yard, client: Client) -> None:
    yard.acts = [serves(DATA, cut_after=300_000), serves(DATA[::-1], tag="other")]
    with pytest.raises(Conflict, match="changed while"):
        client.download("/b", io.BytesIO())


def test_a_file_that_does_not_exist_is_said(yard: Yard, client: Client) -> None:
    yard.acts = [refuses(NotFound("no such file")), says(7)]
    with pytest.raises(NotFound, match="no such file"):
        client.download("/b", io.BytesIO())
    assert client.request("GET", "/x", answer=int) == 7
    assert len(yard.peers) == 1


def streams(*events: tuple[str, str, object], chunked: bool = True) -> Act:
    """Sends events as (id, name, data) and cuts; the id may be empty."""

    def act(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for event_id, name, data in events:
            text = f": still here\n{f'id: {event_id}' if event_id else ''}\nevent: {name}\n"
            text = text.replace("\n\n", "\n") + f"data: {json.dumps(data)}\n\n"
            half = len(text) // 2
            for piece in (text[:half].encode(), text[half:].encode()):
                framed = b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
                handler.wfile.write(framed)
                handler.wfile.flush()
        handler.cut()

    return act


@pytest.mark.parametrize("chunked", [True, False])
def test_events_go_on_behind_the_last_one_after_a_cut(
    yard: Yard, client: Client, chunked: bool
) -> None:
    yard.acts = [
        streams(("a1", "log", "one"), ("a2", "log", "two"), chunked=chunked),
        streams(chunked=chunked),
        streams(("a3", "log", "three"), ("", "end", {}), chunked=chunked),
    ]
    got = list(client.events("/events", query={"log": "x"}))
    assert got == [("log", b'"one"'), ("log", b'"two"'), ("log", b'"three"'), ("end", b"{}")]
    assert [seen.get("Last-Event-ID") for seen in yard.headers_seen] == [None, "a2", "a2"]
    assert {path for _, path, _ in yard.seen} == {"/events?log=x"}


def test_an_event_arrives_at_once(yard: Yard, client: Client) -> None:
    release = threading.Event()

    def act(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        data = b"data: one\ndata: more\n\n"
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.flush()
        release.wait(10)
        handler.cut()

    yard.acts = [act]
    events = client.events("/events")
    assert next(events) == ("message", b"one\nmore")
    events.close()  # type: ignore[attr-defined]
    release.set()


def test_events_of_a_server_that_stays_away_end_in_an_error(yard: Yard) -> None:
    client = Client(yard.url, TOKEN, patience_seconds=0.2)
    yard.acts = [streams(("1", "log", "one")), refuses(Unavailable("stopping"))]
    events = client.events("/events")
    assert next(events)[0] == "log"
    with pytest.raises(Unavailable, match="times in"):
        next(events)
    client.close()
