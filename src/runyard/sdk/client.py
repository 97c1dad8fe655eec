"""The one HTTP client: everything the SDK and the CLI know of a server comes through it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from runyard import __version__
from runyard.domain.errors import (
    Conflict,
    Denied,
    ErrorBody,
    Invalid,
    RunyardError,
    Unavailable,
    from_wire,
)

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, HTTPConnectionPool

log = logging.getLogger(__name__)

T = TypeVar("T")
Refresh = Callable[[], tuple[str, str]]

PATIENCE_SECONDS = 30.0  # a server that restarts is back long before
FIRST_PATIENCE_SECONDS = 4.0  # with an address that never answered: it may simply be wrong
FIRST_DELAY_SECONDS = 0.05
LONGEST_DELAY_SECONDS = 2.0
CHUNK_BYTES = 1 << 18
# The server sends a comment at least every 15 s; silence for longer means that it is gone.
SILENCE_SECONDS = 60.0

_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class Client:
    """A connection to one server. Threads may share it; connections are kept alive.

    `refresh` is asked for the present address and token whenever the server is not reached or
    does not accept the token: an embedded server may have come back on another port.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        refresh: Refresh | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.url = _checked_url(url)
        self.token = token
        self._refresh = refresh
        self._patience = patience_seconds
        self._reached = False
        self._lock = threading.Lock()
        self._pool: HTTPConnectionPool | None = None
        self._pool_owner: tuple[int, str] = (0, "")

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object | None = None,
        answer: type[T],
        timeout_seconds: float = 60.0,
        safe_to_repeat: bool = False,
    ) -> T:
        """Send `body` as JSON and return what comes back as an `answer`.

        The segments of `path` are quoted by the caller: only they know where a slash belongs.
        GET, PUT and DELETE are repeated while the server is away; say `safe_to_repeat` where
        another verb may be, too.
        """
        attempt = _Attempts(self, repeat=safe_to_repeat or method in _IDEMPOTENT)
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            with attempt:
                response = self._send(
                    method, _target(path, query), data, headers, timeout_seconds=timeout_seconds
                )
                return _decoded(response.data, answer, self.url)

    def upload(self, path: str, source: BinaryIO | Iterable[bytes], size: int | None) -> None:
        """PUT the bytes of `source`. A file that can be rewound survives a cut connection."""
        start = _position(source)
        attempt = _Attempts(self, repeat=start is not None)
        headers = {"Content-Type": "application/octet-stream"}
        if size is not None:
            headers["Content-Length"] = str(size)
        while True:
            with attempt:
                if start is not None:
                    source.seek(start)  # type: ignore[union-attr]  # it has a position
                self._send("PUT", _target(path, None), _chunks(source, size), headers)
                return

    def download(self, path: str, target: BinaryIO, *, start: int = 0) -> int:
        """Write what is at `path`, from byte `start` on, to `target`; returns how many bytes.

        After a cut the rest is asked for, so nothing travels twice.
        """
        attempt = _Attempts(self, repeat=True)
        done = 0
        tag: str | None = None
        while True:
            with attempt:
                offset = start + done
                headers = {"Range": f"bytes={offset}-"} if offset else {}
                response = self._send("GET", _target(path, None), None, headers, stream=True)
                try:
                    if response.status == 416:  # the range begins at the end: nothing is left
                        return done
                    if done and tag != response.headers.get("ETag"):
                        raise _changed(path)
                    tag = response.headers.get("ETag")
                    skip = 0 if response.status == 206 else offset
                    for chunk in response.stream(CHUNK_BYTES):
                        fresh, skip = chunk[skip:], max(0, skip - len(chunk))
                        target.write(fresh)
                        done += len(fresh)
                        attempt.progress()
                    return done
                finally:
                    response.close()  # no loss if it was read whole: its connection is kept

    def events(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Server-sent events as (name, data), up to and with the one named `end`.

        After a cut the stream goes on behind the last event that arrived: the server gives each
        event an id and takes it back as `Last-Event-ID`.
        """
        attempt = _Attempts(self, repeat=True)
        last = ""
        while True:
            with attempt:
                headers = {"Accept": "text/event-stream"}
                if last:
                    headers["Last-Event-ID"] = last
                response = self._send(
                    "GET",
                    _target(path, query),
                    None,
                    headers,
                    stream=True,
                    timeout_seconds=SILENCE_SECONDS,
                )
                try:
                    for name, data, event_id in _parse_events(_arriving(response)):
                        attempt.progress()
                        last = event_id or last
                        yield name, data
                        if name == "end":
                            return
                finally:
                    response.close()
                raise _Cut("the stream of events stopped")

    def close(self) -> None:
        """Drop the kept connections; the client may be used again."""
        with self._lock:
            if self._pool is not None:
                self._pool.close()
            self._pool = None

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str],
        *,
        stream: bool = False,
        timeout_seconds: float = 60.0,
    ) -> "BaseHTTPResponse":
        """One request, once. A refusal of the server is raised as the error it describes."""
        import urllib3

        pool, prefix = self._connections()
        response = pool.urlopen(
            method,
            prefix + target,
            body=body,
            headers={
                "Authorization": f"Bearer {self.token}",
                "User-Agent": f"runyard/{__version__}",
                **headers,
            },
            retries=False,
            redirect=False,
            preload_content=not stream,
            timeout=urllib3.Timeout(connect=min(10.0, timeout_seconds), read=timeout_seconds),
        )
        self._reached = True
        if response.status < 300 or (stream and response.status == 416):
            return response
        try:
            raise _refusal(response.status, response.data, self.url)
        finally:
            response.close()

    def _connections(self) -> "tuple[HTTPConnectionPool, str]":
        import urllib3

        with self._lock:
            # A forked child must not speak on its parent's sockets.
            owner = (os.getpid(), self.url)
            if self._pool is None or self._pool_owner != owner:
                self._pool = urllib3.connection_from_url(
                    self.url,
                    maxsize=32,
                    blocksize=CHUNK_BYTES,
                    # Without TCP_NODELAY a small request may wait 40 ms for an acknowledgement.
                    socket_options=urllib3.connection.HTTPConnection.default_socket_options,
                )
                self._pool_owner = owner
            return self._pool, urlsplit(self.url).path

    def _patience_now(self) -> float:
        known = self._reached or self._refresh is not None
        return self._patience if known else min(self._patience, FIRST_PATIENCE_SECONDS)

    def _renew(self, url: str, token: str) -> bool:
        """Ask for the present address; True if it differs from the one that failed."""
        if self._refresh is None:
            return False
        with self._lock:
            if (self.url, self.token) == (url, token):
                self.url, self.token = self._refresh()
                self.url = _checked_url(self.url)
            return (self.url, self.token) != (url, token)


class _Cut(Exception):
    """The connection ended before the answer did."""


class _Attempts:
    """Swallows a failure that is worth another attempt, after waiting; raises the others."""

    def __init__(self, client: Client, *, repeat: bool) -> None:
        self._client = client
        self._repeat = repeat
        self._renewed = False
        self.progress()

    def progress(self) -> None:
        """The server answers: failures before this one are forgotten."""
        self._began = time.monotonic()
        self._failures = 0
        self._failing_since = 0.0
        self._delay = FIRST_DELAY_SECONDS

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._used = (self._client.url, self._client.token)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        import urllib3

        if isinstance(error, Denied):
            return self._with_another_token()
        if isinstance(error, Unavailable):
            return self._again(error, unsent=False)
        if isinstance(error, urllib3.exceptions.HTTPError | _Cut):
            return self._again(error, unsent=_never_arrived(error))
        return False

    def _with_another_token(self) -> bool:
        if self._renewed:
            return False
        self._renewed = True
        return self._client._renew(*self._used)

    def _again(self, error: Exception, *, unsent: bool) -> bool:
        now = time.monotonic()
        if not self._failures:
            # A server that kept us waiting for the whole time-out has been away since then.
            self._failing_since = self._began if _is_timeout(error) else now
        self._failures += 1
        away = now - self._failing_since
        if not (self._repeat or unsent) or away + self._delay > self._client._patience_now():
            remote = self._client._refresh is None
            last = now - self._began
            raise _unavailable(self._used[0], self._failures, last, away, error, remote=remote)
        log.debug("%s: %s; trying again in %.2f s", self._used[0], error, self._delay)
        time.sleep(self._delay)
        self._delay = min(self._delay * 2, LONGEST_DELAY_SECONDS)
        self._client._renew(*self._used)
        return True


def _never_arrived(error: Exception) -> bool:
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return isinstance(error, NewConnectionError | ConnectTimeoutError)


def _is_timeout(error: Exception) -> bool:
    from urllib3.exceptions import NewConnectionError
    from urllib3.exceptions import TimeoutError as Timeout

    return isinstance(error, Timeout) and not isinstance(error, NewConnectionError)


def _unavailable(
    url: str,
    tries: int,
    last_seconds: float,
    away_seconds: float,
    error: Exception,
    *,
    remote: bool,
) -> Unavailable:
    if isinstance(error, Unavailable) and tries == 1:
        return error
    times = "once" if tries == 1 else f"{tries} times in {away_seconds:.1f} seconds"
    cause = f"no answer within {last_seconds:.1f} seconds" if _is_timeout(error) else _cause(error)
    return Unavailable(
        f"The Runyard server at {url} does not answer.",
        why=f"Tried {times}; the last failure: {cause}.",
        fix="Check RUNYARD_URL, or the url in config.json, and that the server runs there."
        if remote
        else "See whether it runs with: runyard status   (start it with: runyard up --detach)",
    )


def _cause(error: BaseException) -> str:
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise Invalid(
            f"{url!r} is not the address of a server.",
            why="It must look like http://HOST:PORT.",
            fix="Correct RUNYARD_URL, or unset it to use the embedded server.",
        )
    return url.rstrip("/")


def _target(path: str, query: Mapping[str, object] | None) -> str:
    """Path and query as sent: None is left out, a list repeats its key, True is `true`."""
    pairs: list[tuple[str, str]] = []
    for key, value in (query or {}).items():
        values = value if isinstance(value, list | tuple | set | frozenset) else [value]
        pairs += [(key, _text(item)) for item in values if item is not None]
    safe = quote(path, safe="/%:@!$&'()*+,;=~")
    return f"{safe}?{urlencode(pairs)}" if pairs else safe


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _position(source: BinaryIO | Iterable[bytes]) -> int | None:
    """Where a file stands, so that it can be sent again; None if it cannot be rewound."""
    seekable = getattr(source, "seekable", None)
    return source.tell() if seekable is not None and seekable() else None  # type: ignore[union-attr]


def _chunks(source: BinaryIO | Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """The bytes to send, exactly `size` of them where that was announced."""
    read = getattr(source, "read", None)
    pieces = iter(lambda: read(CHUNK_BYTES), b"") if read is not None else iter(source)
    sent = 0
    for piece in pieces:
        if size is not None and sent + len(piece) > size:
            piece = piece[: size - sent]
        sent += len(piece)
        if piece:
            yield piece
        if sent == size:
            return
    if size is not None and sent < size:
        raise Conflict(
            f"Only {sent} of {size} bytes could be read for the upload.",
            why="The file became shorter while it was being sent.",
            fix="Wait until nothing writes to it, and try again.",
        )


def _decoded(data: bytes, answer: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except msgspec.DecodeError as error:
        raise RunyardError(
            f"The answer of {url} was not understood.",
            why=f"{error}.",
            fix="Make the versions match (runyard status), or check the address of the server.",
        ) from error


def _refusal(status: int, data: bytes, url: str) -> RunyardError:
    """The error in the body; for a body that has none, what the status says."""
    try:
        body = msgspec.json.decode(data, type=ErrorBody)
    except msgspec.DecodeError:
        text = " ".join(data[:300].decode(errors="replace").split())
    else:
        return from_wire(body)
    if status in (401, 403):
        return Denied(
            f"The server at {url} does not accept the token.",
            why=text or f"It answered {status}.",
            fix="Set RUNYARD_TOKEN to the token of that server (the file `token` in its home).",
        )
    if status == 503:
        return Unavailable(f"The server at {url} is not ready.", why=text, fix="Try again.")
    return RunyardError(
        f"The server at {url} answered {status}.",
        why=text or "It gave no reason.",
        fix="Check that the address is a Runyard server's; its log tells more.",
    )


def _changed(path: str) -> Conflict:
    return Conflict(
        f"{path} changed while it was being downloaded.",
        why="The connection was cut, and the rest belongs to another content.",
        fix="Download it again.",
    )


def _arriving(response: "BaseHTTPResponse") -> Iterator[bytes]:
    """What arrives, as soon as it arrives."""
    while data := response.read1(CHUNK_BYTES):
        yield data


def _parse_events(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes, str]]:
    """Events as (name, data, id); the id is empty where the event has none."""
    name, event_id, rest = "message", "", b""
    data: list[bytes] = []
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                name = value.decode()
            elif field == b"data":
                data.append(value)
            elif field == b"id":
                event_id = value.decode()
            elif not line.rstrip(b"\r"):
                if data:
                    yield name, b"\n".join(data), event_id
                name, event_id, data = "message", "", []
