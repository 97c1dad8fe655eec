"""A web server on loopback that cuts, hangs, redirects and changes its mind, to order.

with FaultyWeb() as web:
    web.put("/data.bin", b"…")
    web.next("/data.bin", cut(1000))     # the next answer ends after 1000 bytes
    Fetcher(allow_private=True).download(web.url + "/data.bin", …)
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

Fault = Callable[["_Handler", "Page"], None]


@dataclass
class Page:
    """A content, and how much the server says of it."""

    data: bytes
    etag: str | None = None
    ranges: bool = True
    sized: bool = True
    head: bool = True
    faults: list[Fault] = field(default_factory=list)


class FaultyWeb:
    """Serves pages; `requests` has (verb, path, headers) of all that came."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        self.released = threading.Event()  # ends the answers that hang
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.web = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()

    def put(
        self, path: str, data: bytes, *, ranges: bool = True, sized: bool = True, head: bool = True
    ) -> Page:
        """Serve a content; an etag is made from it."""
        etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        page = Page(data, etag, ranges, sized, head)
        self.pages[path] = page
        return page

    def next(self, path: str, *faults: Fault) -> None:
        """Have the next answers of that path go wrong, one after the other."""
        self.pages.setdefault(path, Page(b"")).faults.extend(faults)

    def asked(self, path: str, verb: str = "GET") -> int:
        """How often a path was asked for."""
        return sum(one[0] == verb and one[1] == path for one in self.requests)


def cut(after: int) -> Fault:
    """Close the connection after that many bytes of the body."""

    def fault(handler: "_Handler", page: Page) -> None:
        handler.send_page(page, only=after)
        handler.close_connection = True

    return fault


def hang(after: int) -> Fault:
    """Say nothing more after that many bytes of the body."""

    def fault(handler: "_Handler", page: Page) -> None:
        handler.send_page(page, only=after)
        handler.wfile.flush()
        handler.server.web.released.wait(30)
        handler.close_connection = True

    return fault


def status(code: int, **headers: str) -> Fault:
    """Answer with that status."""

    def fault(handler: "_Handler", page: Page) -> None:
        handler.answer(code, {"Content-Length": "0", **headers})

    return fault


def redirect(location: str) -> Fault:
    """Send them elsewhere."""
    return status(302, Location=location)


def then(change: Callable[[], object], fault: Fault) -> Fault:
    """Do something, for example change the page, before the fault's answer is complete."""

    def both(handler: "_Handler", page: Page) -> None:
        fault(handler, page)
        change()

    return both


class _Http(ThreadingHTTPServer):
    web: FaultyWeb
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that break are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Http

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def answer(self, code: int, headers: Mapping[str, str], pieces: Iterable[bytes] = ()) -> None:
        """Send a whole answer."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)

    def send_page(self, page: Page, only: int | None = None) -> None:
        """Send a page, or the part of it that was asked for."""
        start, end, code = 0, len(page.data), 200
        headers = {"ETag": page.etag} if page.etag else {}
        wanted = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if wanted and page.ranges and condition in (None, page.etag):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else end, end)
            if start >= len(page.data):
                self.answer(416, {"Content-Length": "0"})
                return
            code = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(page.data)}"
        if page.ranges:
            headers["Accept-Ranges"] = "bytes"
        if page.sized:
            headers["Content-Length"] = str(end - start)
        else:
            self.close_connection = True
            headers["Connection"] = "close"
        body = page.data[start:end] if self.command == "GET" else b""
        self.answer(code, headers, [body if only is None else body[:only]])

    def _serve(self) -> None:
        web = self.server.web
        path = unquote(urlsplit(self.path).path)
        web.requests.append((self.command, path, dict(self.headers.items())))
        page = web.pages.get(path)
        if page is None or (self.command == "HEAD" and not page.head):
            self.answer(404 if page is None else 405, {"Content-Length": "0"})
        elif page.faults:
            page.faults.pop(0)(self, page)
        else:
            self.send_page(page)
