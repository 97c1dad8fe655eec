"""A client's connection: HTTP/1.1 in, answers out, in order and in one write each.

httptools parses and calls back; nothing here waits. A client that sends a second request before
the first is answered is not read any further until it is, nor is one that does not read.
"""

import asyncio
import fcntl
import logging
import struct
import termios
import time
from collections import deque
from contextlib import suppress
from typing import cast

import httptools

from runyard.serving import answers
from runyard.serving.desk import Desk
from runyard.serving.request import Reply, Request

log = logging.getLogger("runyard.serving")

MAX_HEAD = 64 << 10  # bytes of the request line and all headers
_MOST_AROUND = 2 * MAX_HEAD  # of all that is no body: head, chunk extensions, trailers
_CHUNK_FRAME = 32  # bytes around a chunk that are not counted in it
_SMALL_PIECE = 4 << 10  # of a body; such pieces are put together, or each would cost an object
_SKIPPED_BODY = 64 << 10  # of a refused request is read over; for more the connection is closed
_SMALL_BODY = 64 << 10  # is not counted in what all connections hold together
_DRAINED = 8 << 20  # is read and thrown away after a refusal, so that the client sees the answer

# Seconds.
_HEAD_TIME = 20.0  # for a whole head
_PROGRESS_TIME = 20.0  # without a byte of the body
_BODY_TIME = 600.0  # for a whole body
_IDLE_TIME = 120.0  # between requests on a kept connection
_WRITE_TIME = 60.0  # in which a client reads nothing of its answer
_DRAIN_TIME = 2.0  # without a byte, after a refusal
_DRAIN_LIMIT = 5.0  # after a refusal, whatever comes

_ONCE = frozenset({b"host", b"authorization"})  # two of them: which one was meant?


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_advancing",
        "_around",
        "_begun",
        "_blocked",
        "_chunks",
        "_current",
        "_desk",
        "_drained",
        "_draining",
        "_ends",
        "_headers",
        "_held",
        "_method",
        "_moved",
        "_parser",
        "_paused",
        "_phase",
        "_refusal",
        "_seen",
        "_size",
        "_target",
        "_transport",
        "_unsent",
        "_waiting",
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
        self._around = 0  # bytes of it that are no body
        self._chunks: list[bytes | bytearray] = []
        self._size = 0
        self._held = 0  # bytes of it that count against what all clients may hold together
        self._refusal: Reply | None = None
        self._draining = False
        self._drained = 0
        self._ends = 0.0  # when a refused client is left, however much it still sends
        self._advancing = False
        self._paused = False  # is not read
        self._blocked = False  # does not read
        self._begun = self._seen = time.monotonic()
        self._unsent = 0  # bytes of answers that the client had not taken at the last sweep
        self._moved = 0.0  # when it last took some

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
        self._desk.connections.discard(self)
        self._let_go()
        if self._current is not None:
            self._current.asker = None
            self._desk.forget(self._current)
            self._current = None
        self._drop_waiting()

    def data_received(self, data: bytes) -> None:
        """Some bytes of some requests."""
        self._seen = time.monotonic()
        if self._draining:
            self._drained += len(data)
            if self._drained > _DRAINED:
                self._abort()
            return
        self._around += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._read_on(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._fail(error)
        around = self._around
        if around > MAX_HEAD:
            if self._phase == "head" or around > _MOST_AROUND:
                self._refuse(answers.head_too_large(MAX_HEAD))
        elif around < 0:  # a body behind the end of another request
            self._around = 0

    def eof_received(self) -> bool:
        """The client sends no more; it may still wait for answers."""
        last = self._waiting[-1] if self._waiting else self._current
        if last is None:
            return False
        last.keep_alive = False
        return True

    def pause_writing(self) -> None:
        """The client does not read what it asked for: it shall not ask for more."""
        self._blocked = True
        self._regulate()

    def resume_writing(self) -> None:
        """It reads again."""
        self._blocked = False
        if not self._advancing:
            self._advance()

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
            name = name.lower()
            if name in _ONCE and name in self._headers:
                self._refusal = answers.bad_request(f"It has two {name.decode()} headers.")
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Decide whether the body is worth reading."""
        if self._draining or self._parser.should_upgrade():
            return
        self._phase = "body"
        headers = self._headers
        self._method = self._parser.get_method()
        if self._target[:1] != b"/":
            self._target = _path_of(self._target)
        length = int(headers.get(b"content-length", 0))
        refusal = self._refusal or self._desk.gate(self._target, headers)
        refusal = refusal or self._unfit(length)
        if refusal is None:
            if b"expect" in headers and self._current is None:
                self._expected(headers[b"expect"])
            return
        if length > _SKIPPED_BODY or refusal[0] in (400, 431) or b"expect" in headers:
            self._refuse(refusal)
        self._refusal = refusal

    def on_chunk_header(self) -> None:
        """A piece of the body comes with its size; what else is said of it counts."""
        self._around -= _CHUNK_FRAME

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._draining:
            return
        self._around -= len(body)
        self._size += len(body)
        if self._refusal is not None:
            if self._size > _SKIPPED_BODY:
                self._refuse(self._refusal)
        elif self._size > self._desk.max_body:
            self._refuse(answers.body_too_large(self._desk.max_body))
        else:
            self._collect(body)
            if self._size > _SMALL_BODY:
                self._hold(len(body))

    def on_message_complete(self) -> None:
        """A request is whole."""
        parser = self._parser
        if self._draining or parser.should_upgrade():
            return
        body = b"".join(self._chunks)
        self._chunks = []
        self._phase = ""
        self._around = 0
        request = Request(self, self._method, self._target, self._headers, body, self._seen)
        request.keep_alive = parser.should_keep_alive()
        request.is_old = parser.get_http_version() != "1.1"
        request.refusal = self._refusal
        if self._held:
            request.held, self._held = self._held, 0
        self._take(request)

    # What the rest of the front end calls.

    def reply(self, request: Request, status: int, lines: bytes, body: bytes) -> None:
        """Write the answer of the request that is being answered."""
        transport, desk = self._transport, self._desk
        self._current = None
        if request.held:
            desk.release(request)
        desk.answered(request, status, time.monotonic() - request.started)
        if transport is None or transport.is_closing():
            return
        keep = request.keep_alive and not desk.stopping
        common = status == 200 and not lines and request.method == b"POST"
        if common and keep and not request.is_old:
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
        if transport.get_write_buffer_size():
            if self._is_stuck(transport, now):
                self._abort()
            return
        self._unsent = 0
        if self._current is not None or self._waiting:
            return
        if self._draining:
            self._ends = self._ends or now + _DRAIN_LIMIT
            if quiet > _DRAIN_TIME or now > self._ends:
                self._abort()
        elif too_slow(self._phase, now - self._begun, quiet):
            self._refuse(answers.too_slow())
        elif not self._phase and quiet > _IDLE_TIME:
            transport.close()

    def _is_stuck(self, transport: asyncio.Transport, now: float) -> bool:
        """True if the client has taken nothing of its answers for too long."""
        unsent = transport.get_write_buffer_size() + _in_kernel(transport)
        if not self._unsent or unsent < self._unsent:
            self._moved = now
        self._unsent = unsent
        return now - self._moved > _WRITE_TIME

    def _take(self, request: Request) -> None:
        if self._current is None and not self._blocked and not self._waiting:
            self._current = request
            self._desk.receive(request)
            return
        self._waiting.append(request)
        self._regulate()

    def _advance(self) -> None:
        """Go on with what came meanwhile; a loop, for there may be thousands."""
        self._advancing = True
        while self._waiting and self._current is None and not self._blocked:
            self._current = self._waiting.popleft()
            self._desk.receive(self._current)
        self._advancing = False
        self._regulate()

    def _regulate(self) -> None:
        """Read on only if all that came before is being answered and the client reads, too."""
        transport = self._transport
        wanted = self._blocked or bool(self._waiting)
        if wanted is self._paused or transport is None or transport.is_closing():
            return
        self._paused = wanted
        if wanted:
            transport.pause_reading()
        else:
            self._begun = self._seen = time.monotonic()  # it was not its fault
            transport.resume_reading()

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
        data = self._desk.heads.assemble(
            status,
            lines,
            body,
            keep_alive=keep,
            old=request.is_old,
            head=request.method == b"HEAD",
        )
        transport.write(data)
        if keep:
            if self._waiting and not self._advancing:
                self._advance()
            return
        self._drop_waiting()
        if self._draining:
            # The client may still be sending. To close now would throw away what it should read.
            if transport.can_write_eof():
                transport.write_eof()
            self._regulate()
        else:
            transport.close()

    def _unfit(self, length: int) -> Reply | None:
        headers = self._headers
        if self._around > MAX_HEAD and _size_of(self._target, headers) > MAX_HEAD:
            return answers.head_too_large(MAX_HEAD)
        if length > self._desk.max_body:
            return answers.body_too_large(self._desk.max_body)
        if length > _SMALL_BODY and self._desk.held + length > self._desk.max_held:
            return answers.no_memory(self._desk.max_held)
        if b"host" not in headers and self._parser.get_http_version() == "1.1":
            return answers.bad_request("It has no Host header.")
        return None

    def _collect(self, body: bytes) -> None:
        chunks = self._chunks
        if not chunks or len(body) > _SMALL_PIECE:
            chunks.append(body)
            return
        last = chunks[-1]
        if isinstance(last, bytearray) and len(last) < _SMALL_BODY:
            last += body
        else:
            chunks.append(bytearray(body))

    def _hold(self, size: int) -> None:
        """Count a part of a large body: many clients together must not fill the memory."""
        self._held += size
        self._desk.held += size
        if self._desk.held > self._desk.max_held:
            self._refuse(answers.no_memory(self._desk.max_held))

    def _let_go(self) -> None:
        """Throw away what has come of a body."""
        self._desk.held -= self._held
        self._held = 0
        self._chunks = []

    def _drop_waiting(self) -> None:
        for request in self._waiting:
            self._desk.release(request)
        self._waiting.clear()

    def _read_on(self, rest: memoryview) -> None:
        """A client offers another protocol. The parser stops there: go on as if it had not."""
        pieces = [rest, self._plain_head()]
        while pieces and not self._draining:
            piece = pieces.pop()
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as offer:
                pieces += [piece[offer.args[0] :], self._plain_head()]
            except httptools.HttpParserError as error:
                self._fail(error)
                return

    def _plain_head(self) -> memoryview:
        """The head that has come, without the offer, for a parser that has not seen it."""
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        if method == b"CONNECT":
            self._refusal = answers.bad_request("This is no proxy.")
        if self._refusal is not None:
            self._refuse(self._refusal)
        options = self._headers.pop(b"connection", b"").lower().split(b",")
        kept = [word.strip() for word in options if word.strip() in (b"close", b"keep-alive")]
        self._headers.pop(b"upgrade", None)
        lines = [b"%b: %b\r\n" % pair for pair in self._headers.items()]
        lines += [b"Connection: %b\r\n" % word for word in kept]
        self._parser = httptools.HttpRequestParser(self)
        start = b"%b %b HTTP/%b\r\n" % (method, self._target, version)
        return memoryview(start + b"".join(lines) + b"\r\n")

    def _fail(self, error: httptools.HttpParserError) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            log.error("a request could not be taken", exc_info=error.__context__)
            self._abort()
        else:
            self._refuse(answers.bad_request(str(error)))

    def _expected(self, value: bytes) -> None:
        if value.lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, reply: Reply) -> None:
        """Answer now and read no further."""
        if self._draining:
            return
        self._draining = True
        self._let_go()
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


def _in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that were written but have not reached the client: may be megabytes."""
    found = b"\0\0\0\0"
    with suppress(OSError):
        found = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, found)
    size: int = struct.unpack("i", found)[0]
    return size
