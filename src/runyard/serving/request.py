"""A request on its way from a client to a worker and back."""

from typing import Protocol

Reply = tuple[int, bytes, bytes]  # status, header lines (empty: JSON), body


class Asker(Protocol):
    """Where an answer goes."""

    def reply(self, request: "Request", status: int, lines: bytes, body: bytes) -> None:
        """Send the answer of the request."""


class Request:
    """One request, complete; `asker` is None once it is answered or the client has gone."""

    __slots__ = (
        "asker",
        "body",
        "head",
        "headers",
        "held",
        "is_old",
        "keep_alive",
        "lost",
        "method",
        "refusal",
        "started",
        "target",
    )

    def __init__(
        self,
        asker: Asker,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        started: float,
    ) -> None:
        self.asker: Asker | None = asker
        self.method = method
        self.target = target
        self.headers = headers
        self.body = body
        self.started = started
        self.head = b""  # what the worker must know beside the body
        self.held = 0  # bytes of a large body, as counted in what all clients hold together
        self.is_old = False  # the client speaks HTTP/1.0
        self.keep_alive = True
        self.lost = False  # a worker died over it
        self.refusal: Reply | None = None

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Send the answer, unless one was sent or nobody waits for it any more."""
        asker = self.asker
        if asker is not None:
            self.asker = None
            asker.reply(self, status, lines, body)
