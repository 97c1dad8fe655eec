"""Bodies in and out, at the level of ASGI messages."""

from starlette.types import Receive, Scope, Send

from runyard.domain.errors import TooLarge
from runyard.server.routing import header


class ClientGone(Exception):
    """The caller hung up; there is nobody to answer."""


async def send_json(
    send: Send, status: int, body: bytes, extra: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Send a whole JSON answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body; `TooLarge` as soon as it is known to be over the limit."""
    announced = content_length(scope)
    if announced is not None and announced > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        first: bytes = message.get("body", b"")
        if len(first) > limit:
            raise _too_large(limit)
        return first
    body = bytearray()
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()


def content_length(scope: Scope) -> int | None:
    """What the sender announced; None if it sends in chunks."""
    value = header(scope, b"content-length")
    return int(value) if value is not None and value.isdigit() else None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        "The body of the request is too large.",
        why=f"The limit here is {limit:,} bytes.",
        fix="Send less at a time, or raise RUNYARD_BODY_LIMIT_MB on the server.",
    )
