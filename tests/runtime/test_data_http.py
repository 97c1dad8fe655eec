"""The fetcher against servers that speak no proper HTTP, by mistake or on purpose."""

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from runyard_runtime.fetch import Fetcher, FetchFailed
from runyard_runtime.http_connection import number

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that says the same bytes to everybody; its address."""
    listening: list[socket.socket] = []

    def start(said: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def answer() -> None:
            while True:
                try:
                    connected, _ = server.accept()
                except OSError:
                    return
                with connected:
                    connected.recv(1 << 16)
                    with contextlib.suppress(OSError):
                        connected.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/x"

    yield start
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    fetcher = Fetcher(
        allow_private=True, read_seconds=5.0, environ={}, sleep=lambda seconds: None, tries=1
    )
    yield fetcher
    fetcher.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n", id="negative chunk"),
        pytest.param(CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n", id="signed chunk"),
        pytest.param(CHUNKED + b"\r\nhello\r\n0\r\n\r\n", id="no chunk length"),
        pytest.param(CHUNKED + b"f" * 5000 + b"\r\nhello", id="absurd chunk"),
        pytest.param(CHUNKED + b"0\r\n" + b"a: b\r\n" * 9999 + b"\r\n", id="trailers"),
        pytest.param(OK + b"a: b\r\n" * 9999 + b"Content-Length: 0\r\n\r\n", id="headers"),
        pytest.param(b"HTTP/1.1 100 \r\n\r\n" * 9999 + OK + b"\r\n", id="announced for ever"),
        pytest.param(OK + b"Content-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(OK + b"Content-Length: \xb2\r\n\r\nhe", id="length in superscript"),
        pytest.param(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nh", id="absurd length"),
        pytest.param(b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n", id="status in superscript"),
        pytest.param(
            b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-4/9\r\nContent-Length: 5\r\n\r\nhello",
            id="a part that nobody asked for",
        ),
        pytest.param(
            b"HTTP/1.1 302 Go\r\nLocation: http://[::1/x\r\nContent-Length: 0\r\n\r\n",
            id="redirect to nowhere",
        ),
    ],
)
def test_what_is_no_proper_answer_is_an_error_in_words(
    serve: Serve, fetcher: Fetcher, said: bytes
) -> None:
    with pytest.raises(FetchFailed, match="cannot be fetched"):
        fetcher.fetch(serve(said), io.BytesIO())


@pytest.mark.parametrize("total", [b"\xb2", b"9" * 5000, b"*"])
def test_a_part_of_an_odd_total_is_of_unknown_size(
    serve: Serve, fetcher: Fetcher, total: bytes
) -> None:
    head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-0/" + total
    assert fetcher.head(serve(head + b"\r\nContent-Length: 1\r\n\r\n")).size == -1


def test_a_part_in_odd_digits_is_no_part(serve: Serve, fetcher: Fetcher) -> None:
    head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes \xb2-\xb3/9\r\n"
    with pytest.raises(FetchFailed, match="cannot be read in parts"):
        list(fetcher.read(serve(head + b"Content-Length: 1\r\n\r\nx"), 2, 3))


def test_proper_chunks_announcements_and_trailers_are_read(serve: Serve, fetcher: Fetcher) -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"A;x=1\r\n0123456789\r\n"
    stream = io.BytesIO()
    fetcher.fetch(serve(said + b"1 \r\n!\r\n0\r\nTrailer: x\r\n\r\n"), stream)
    assert stream.getvalue() == b"0123456789!"


@pytest.mark.parametrize(
    ("text", "base", "expected"),
    [
        ("12", 10, 12),
        ("ff", 16, 255),
        ("", 10, -1),
        ("1_0", 10, -1),
        ("٣", 10, -1),
        ("0x1", 16, -1),
    ],
)
def test_only_digits_are_a_number(text: str, base: int, expected: int) -> None:
    assert number(text, base) == expected


def test_a_proxy_is_asked_for_a_number_in_brackets() -> None:
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            connected, _ = proxy.accept()
            with connected:
                asked.append(connected.recv(1 << 16))
                connected.sendall(b"HTTP/1.1 403 No\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        environ = {"https_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        through = Fetcher(environ=environ, sleep=lambda seconds: None, tries=1)
        with pytest.raises(FetchFailed, match="the proxy refused"):
            through.fetch("https://[2606:4700::1111]/x", io.BytesIO())
        thread.join()
    assert asked[0].startswith(b"CONNECT [2606:4700::1111]:443 HTTP/1.1\r\n")
