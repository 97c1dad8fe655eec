"""Answers as bytes: heads that are made once a second, errors in words."""

import json
import re
import time
from http import HTTPStatus

from runyard.serving.request import Reply

JSON = b"Content-Type: application/json\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
_RETRY = b"Content-Type: application/json\r\nRetry-After: 1\r\n"
_PER_CONNECTION = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}
_NO_BODY = (204, 304)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # what a name of a header is made of
_BREAKS = re.compile(r"[\r\n\0]")


class Heads:
    """First lines of answers with today's date; `refresh` them every second."""

    def __init__(self) -> None:
        self.common: dict[int, bytes] = {}  # of JSON on a kept connection, up to the length
        self._date = b""

    def refresh(self, now: float) -> None:
        """Take over the time of day."""
        text = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))
        self._date = f"Date: {text}\r\n".encode()
        self.common = {200: self._first(200) + JSON + b"Content-Length: "}

    def assemble(
        self, status: int, lines: bytes, body: bytes, *, keep_alive: bool, old: bool, head: bool
    ) -> bytes:
        """Any answer. `old`: the client speaks HTTP/1.0; `head`: it asked for the head alone."""
        parts = [self._first(status), lines or JSON]
        if status not in _NO_BODY:
            parts.append(b"Content-Length: %d\r\n" % len(body))
        if not keep_alive:
            parts.append(b"Connection: close\r\n")
        elif old:
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        if not head and status not in _NO_BODY:
            parts.append(body)
        return b"".join(parts)

    def _first(self, status: int) -> bytes:
        return b"HTTP/1.1 %d %s\r\n%s" % (status, _phrase(status), self._date)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Status"  # a script may answer with numbers of its own


def passed_on(status: int, head: bytes, body: bytes) -> Reply:
    """A worker's reply as a client gets it; one that makes no sense becomes an error in words."""
    if not 200 <= status <= 599:
        return bad_reply(f"Its status is {status}; answers have 200 to 599.")
    try:
        return status, header_lines(head) if head else b"", body
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return bad_reply(f"Its headers cannot be read: {error}")


def header_lines(head: bytes) -> bytes:
    """The header lines that a worker asks for in the head of its reply."""
    given: dict[str, object] = json.loads(head).get("headers") or {}
    lines = {
        name: f"{name}: {value}\r\n"
        for name, value in given.items()
        # What is left out would end early and start another header, or is not the worker's to say.
        if name.lower() not in _PER_CONNECTION
        and _TOKEN.fullmatch(name)
        and not _BREAKS.search(str(value))
    }
    if not any(name.lower() == "content-type" for name in lines):
        lines[""] = JSON.decode()
    return "".join(lines.values()).encode("latin-1", "replace")


def refusal(
    status: int, code: str, what: str, *, why: str = "", fix: str = "", lines: bytes = JSON
) -> Reply:
    """An error: what happened, why, and what to do."""
    body = {"error": what, "code": code, "why": why, "fix": fix}
    return status, lines, json.dumps(body, ensure_ascii=False).encode()


def unauthorized(service: str, authorization: bytes | None) -> Reply:
    """No key, or a wrong one."""
    lines = JSON + b'WWW-Authenticate: Bearer realm="%s"\r\n' % service.encode("ascii", "ignore")
    return refusal(
        401,
        "denied",
        f"Service '{service}' does not know you.",
        why=_why_denied(authorization),
        fix="Send 'Authorization: Bearer KEY'; service.get_keys() or get_token() has it.",
        lines=lines,
    )


def _why_denied(authorization: bytes | None) -> str:
    if authorization is None:
        return "The request carries no key."
    if authorization[:7].lower() != b"bearer ":
        return "The Authorization header does not begin with 'Bearer ' before the key."
    return "The key or token is wrong or too old."


def not_found(path: str) -> Reply:
    """A path that nobody answers."""
    return refusal(
        404,
        "not_found",
        f"There is nothing at '{path}'.",
        why="A service has /score, /healthz, /swagger.json, /metrics, /v1/… and /v2/….",
        fix="Send the request to /score.",
    )


def wrong_method(method: str, path: str, allowed: list[str]) -> Reply:
    """The path is there, but not for this verb."""
    words = ", ".join(allowed)
    return refusal(
        405,
        "wrong_verb",
        f"'{path}' does not answer {method}.",
        why=f"It answers {words}.",
        fix=f"Use {allowed[0]}.",
        lines=JSON + b"Allow: %s\r\n" % words.encode("latin-1"),
    )


def body_too_large(limit: int) -> Reply:
    """Over the limit of the service."""
    return refusal(
        413,
        "too_large",
        "The body of the request is too large.",
        why=f"This service takes up to {limit:,} bytes.",
        fix="Send fewer rows at once.",
    )


def head_too_large(limit: int) -> Reply:
    """Too much before the body, or around it."""
    return refusal(
        431,
        "too_large",
        "The head of the request is too large, or what is around its body.",
        why=f"The limit is {limit:,} bytes for the headers, and for chunk extensions and trailers.",
        fix="Send fewer or shorter headers.",
    )


def bad_request(why: str) -> Reply:
    """What came is no HTTP."""
    return refusal(400, "invalid", "This is not a proper request in HTTP/1.1.", why=why)


def too_slow() -> Reply:
    """The client does not get to the end."""
    return refusal(408, "timed_out", "The request took too long to arrive.")


def queue_full(limit: int) -> Reply:
    """Too many wait already."""
    return refusal(
        429,
        "too_many",
        "The service has more to do than it can.",
        why=f"{limit:,} requests wait for a worker already.",
        fix="Try again in a second, or give the service more replicas.",
        lines=_RETRY,
    )


def no_room(limit: int) -> Reply:
    """Too many clients."""
    return refusal(
        503,
        "unavailable",
        "The service has no room for another connection.",
        why=f"{limit:,} are open.",
        fix="Keep connections and use them again.",
        lines=_RETRY,
    )


def no_memory(limit: int) -> Reply:
    """Too many large bodies at once."""
    return refusal(
        503,
        "unavailable",
        "The service holds too many large requests.",
        why=f"All of them together may have {limit:,} bytes.",
        fix="Try again in a second, or send fewer rows at once.",
        lines=_RETRY,
    )


def no_worker() -> Reply:
    """The model is not loaded, or its processes are gone."""
    return refusal(
        503,
        "unavailable",
        "No worker of this service is ready.",
        why="The model is being loaded, or its process has ended.",
        fix="Try again in a moment; service.get_logs() says what the workers do.",
        lines=_RETRY,
    )


def timed_out(seconds: float) -> Reply:
    """No answer within the time allowed."""
    return refusal(
        504,
        "timed_out",
        f"The model did not answer within {seconds:g} seconds.",
        why="It is busy with other requests, or slow with this one.",
        fix="Send less at once, or deploy with a longer scoring_timeout_ms or more replicas.",
    )


def worker_lost() -> Reply:
    """Two workers ended over the same request."""
    return refusal(
        502,
        "engine_failed",
        "The worker ended while it answered this request, and so did another.",
        why="The model's code crashes on this input, or there is too little memory.",
        fix="service.get_logs() has the last words of the workers.",
    )


def bad_reply(why: str) -> Reply:
    """The worker answered, but not so that it could be passed on."""
    return refusal(
        502,
        "engine_failed",
        "The worker's reply to this request is no answer in HTTP.",
        why=why,
        fix="Look at what the entry script returns.",
    )
