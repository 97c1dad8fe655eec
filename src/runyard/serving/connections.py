"""A client's connection: HTTP/1.1 in, answers out, in order and in one write each.

httptools parses and calls back; nothing here waits. A client that sends a second request before
the first is answered is not read any further until it is.
"""

import asyncio
import logging
import time
from collections import deque
from typing import cast

import httptools

from runyard.serving import answers
from runyard.serving.desk import Desk
from runyard.serving.request import Reply, Request

log = logging.getLogger("runyard.serving")

MAX_HEAD = 64 << 10  # bytes of the request line and all headers
_SKIPPED_BODY = 64 << 10  # of a refused request is read over; for more the connection is closed
_SMALL_BODY = 64 << 10  # is not counted in what all connections hold together
_DRAINED = 8 << 20  # is read and thrown away after a refusal, so that the client sees the answer

# Seconds.
_HEAD_TIME = 20.0  # for a whole head
_PROGRESS_TIME = 20.0  # without a byte of the body
_BODY_TIME = 600.0  # for a whole body
_IDLE_TIME = 120.0  # between requests on a kept connection
_WRITE_TIME = 60.0  # in which a client reads nothing of its answer
_DRAIN_TIME = 2.0


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_advancing",
        "_begun",
        "_chunks",
        "_current",
        "_desk",
        "_drained",
        "_draining",
        "_head_size",
        "_headers",
        "_held",
        "_method",
        "_parser",
        "_paused",
        "_phase",
        "_refusal",
        "_seen",
        "_size",
        "_target",
        "_transport",
        "_waiting",
        "_writing_since",
    )

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._current: Request | None = None  # is being answered
        self._waiting: deque[Request] = deque()  # came after it
        self._phase = ""  # of the request that is being read: "", "head" or "body"
        self._target = b""
        self._method = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = 0  # bytes of large bodies, until they are answered
        self._refusal: Reply | None = None
        self._draining = False
        self._drained = 0
        self._advancing = False
        self._paused = False
        self._begun = self._seen = time.monotonic()
        self._writing_since = 0.0

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came."""
        self._transport = cast(asyncio.Transport, transport)
        connections = self._desk.connections
        connections.add(self)
        if len(connections) > self._desk.max_connections:
            self._phase = "head"
            self._refuse(answers.no_room(self._desk.max_connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """It left; what it asked is of no use any more."""
        self._transport = None
        self._let_go()
        self._desk.connections.discard(self)
        if self._current is not None:
            self._current.asker = None
            self._current = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        """Some bytes of some requests."""
        self._seen = time.monotonic()
        if self._draining:
            self._drained += len(data)
            if self._drained > _DRAINED:
                self._abort()
            return
        if self._phase != "body":
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserCallbackError as error:
            log.error("a request could not be taken", exc_info=error.__context__)
            self._abort()
        except httptools.HttpParserError as error:
            self._refuse(answers.bad_request(str(error)))
        if self._phase == "head" and self._head_size > MAX_HEAD:
            self._refuse(answers.head_too_large(MAX_HEAD))

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for answers."""
        if self._current is None or self._draining:
            return False
        self._current.keep_alive = False
        if self._waiting:
            self._current.keep_alive = True
            self._waiting[-1].keep_alive = False
        return True

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        self._writing_since = time.monotonic()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writing_since = 0.0

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request starts."""
        self._phase = "head"
        self._begun = self._seen
        self._target = b""
        self._headers = {}
        self._chunks = []
        self._size = 0
        self._refusal = None

    def on_url(self, url: bytes) -> None:
        """The target, or a part of it."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which nobody needs."""
        if self._phase == "head":
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Decide whether the body is worth reading."""
        if self._draining or self._parser.should_upgrade():
            return
        self._phase = "body"
        headers = self._headers
        method = self._method = self._parser.get_method()
        if self._target[:1] != b"/":
            self._target = _path_of(self._target)
        length = int(headers.get(b"content-length", 0))
        refusal = self._desk.gate(method, self._target, headers) or self._unfit(length)
        if refusal is None:
            if b"expect" in headers and self._current is None:
                self._expected(headers[b"expect"])
            return
        if length > _SKIPPED_BODY or refusal[0] in (400, 431) or b"expect" in headers:
            self._refuse(refusal)
        self._refusal = refusal

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._size += len(body)
        if self._refusal is not None:
            if self._size > _SKIPPED_BODY:
                self._refuse(self._refusal)
        elif self._size > self._desk.max_body:
            self._refuse(answers.body_too_large(self._desk.max_body))
        else:
            self._chunks.append(body)
            if self._size > _SMALL_BODY:
                self._hold(len(body))

    def on_message_complete(self) -> None:
        """A request is whole."""
        parser = self._parser
        if self._draining or parser.should_upgrade():
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._phase = ""
        self._head_size = 0
        request = Request(self, self._method, self._target, self._headers, body, self._seen)
        request.keep_alive = parser.should_keep_alive()
        request.refusal = self._refusal
        self._take(request)

    # What the rest of the front end calls.

    def reply(self, request: Request, status: int, lines: bytes, body: bytes) -> None:
        """Write the answer of the request that is being answered."""
        transport, desk = self._transport, self._desk
        self._current = None
        if self._held and not self._waiting:
            self._let_go()
        desk.answered(request, status, time.monotonic() - request.started)
        if transport is None or transport.is_closing():
            return
        keep = request.keep_alive and not desk.stopping
        common = status == 200 and not lines and request.method == b"POST" and not desk.cors
        if common and keep and self._parser.get_http_version() == "1.1":
            head = desk.heads.common[200]
            transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
            if self._waiting and not self._advancing:
                self._advance()
            return
        self._reply_in_full(transport, request, status, lines, body, keep=keep)

    def stop(self, *, patient: bool) -> None:
        """Close unless an answer is due; `patient`: a request that is being sent may arrive."""
        if self._current is None and self._transport is not None and not (self._phase and patient):
            self._transport.close()

    def sweep(self, now: float) -> None:
        """End what takes too long; called about once a second."""
        transport = self._transport
        if transport is None:
            return
        quiet = now - self._seen
        if self._draining:
            if self._current is None and quiet > _DRAIN_TIME:
                self._abort()
        elif self._writing_since and now - self._writing_since > _WRITE_TIME:
            self._abort()
        elif self._current is not None:
            return
        elif too_slow(self._phase, now - self._begun, quiet):
            self._refuse(answers.too_slow())
        elif not self._phase and quiet > _IDLE_TIME:
            transport.close()

    def _take(self, request: Request) -> None:
        if self._current is None:
            self._current = request
            self._desk.receive(request)
            return
        self._waiting.append(request)
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _advance(self) -> None:
        """Go on with what came meanwhile; a loop, for there may be thousands."""
        self._advancing = True
        while self._waiting and self._current is None:
            self._current = self._waiting.popleft()
            self._desk.receive(self._current)
        self._advancing = False
        if self._paused and not self._waiting and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _reply_in_full(
        self,
        transport: asyncio.Transport,
        request: Request,
        status: int,
        lines: bytes,
        body: bytes,
        *,
        keep: bool,
    ) -> None:
        desk = self._desk
        if desk.cors:
            lines = (lines or answers.JSON) + desk.cors_lines(request.headers)
        data = desk.heads.assemble(
            status,
            lines,
            body,
            keep_alive=keep,
            old=self._parser.get_http_version() == "1.0",
            head=request.method == b"HEAD",
        )
        transport.write(data)
        if keep:
            if self._waiting and not self._advancing:
                self._advance()
            return
        self._waiting.clear()
        if self._draining:
            # The client may still be sending. To close now would throw away what it should read.
            if transport.can_write_eof():
                transport.write_eof()
            if self._paused:
                self._paused = False
                transport.resume_reading()
        else:
            transport.close()

    def _unfit(self, length: int) -> Reply | None:
        headers = self._headers
        if self._head_size > MAX_HEAD and _size_of(self._target, headers) > MAX_HEAD:
            return answers.head_too_large(MAX_HEAD)
        if length > self._desk.max_body:
            return answers.body_too_large(self._desk.max_body)
        if length > _SMALL_BODY and self._desk.held + length > self._desk.max_held:
            return answers.no_memory(self._desk.max_held)
        if b"host" not in headers and self._parser.get_http_version() == "1.1":
            return answers.bad_request("It has no Host header.")
        return None

    def _hold(self, size: int) -> None:
        """Count a part of a large body: many clients together must not fill the memory."""
        self._held += size
        self._desk.held += size
        if self._desk.held > self._desk.max_held:
            self._refuse(answers.no_memory(self._desk.max_held))

    def _let_go(self) -> None:
        self._desk.held -= self._held
        self._held = 0

    def _decline(self, rest: bytes) -> None:
        """A client offers another protocol. The parser stops there: read on as if it had not."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(answers.bad_request("This is no proxy."))
            return
        kept = {
            name: value
            for name, value in self._headers.items()
            if name not in (b"upgrade", b"connection")
        }
        head = b"".join(b"%b: %b\r\n" % pair for pair in kept.items())
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self._target, head, rest))

    def _expected(self, value: bytes) -> None:
        if value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, reply: Reply) -> None:
        """Answer now and read no further."""
        if self._draining:
            return
        self._draining = True
        self._chunks = []
        self._phase = ""
        method = self._method or b"GET"
        request = Request(self, method, self._target, self._headers, b"", self._seen)
        request.keep_alive = False
        request.refusal = reply
        self._take(request)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def too_slow(phase: str, taken: float, quiet: float) -> bool:
    """True for a request that was begun `taken` seconds ago and of which nothing came lately."""
    if phase == "head":
        return taken > _HEAD_TIME
    return phase == "body" and (quiet > _PROGRESS_TIME or taken > _BODY_TIME)


def _path_of(target: bytes) -> bytes:
    """The path of a target that names the whole address, as requests through a proxy do."""
    _, mark, rest = target.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if mark else target


def _size_of(target: bytes, headers: dict[bytes, bytes]) -> int:
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
