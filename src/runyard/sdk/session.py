"""The SDK's border: one client per server and process, whose errors are v1's exceptions."""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import quote

from runyard.domain.errors import RunyardError
from runyard.sdk.exceptions import as_v1
from runyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from runyard.sdk.client import Client

T = TypeVar("T")


class Session:
    """A connection as the SDK uses it."""

    def __init__(self, client: "Client", settings: Settings) -> None:
        self.client = client
        self.settings = settings

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object | None = None,
        answer: type[T],
        safe_to_repeat: bool = False,
        timeout_seconds: float = 60.0,
    ) -> T:
        """Send `body`, return what comes back as an `answer`."""
        with border():
            return self.client.request(
                method,
                path,
                query=query,
                body=body,
                answer=answer,
                safe_to_repeat=safe_to_repeat,
                timeout_seconds=timeout_seconds,
            )

    def upload(self, path: str, source: BinaryIO | Iterable[bytes], size: int | None) -> None:
        """PUT a content, streamed."""
        with border():
            self.client.upload(path, source, size)

    def download(self, path: str, target: BinaryIO, *, start: int = 0) -> int:
        """Write a content, from byte `start` on, to `target`, streamed; how many bytes."""
        with border():
            return self.client.download(path, target, start=start)

    def events(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Server-sent events, however often the server restarts meanwhile."""
        with border():
            yield from self.client.events(path, query=query)


@contextmanager
def border() -> Iterator[None]:
    """Errors of the domain leave as the exceptions that v1 code catches."""
    try:
        yield
    except RunyardError as error:
        # Without the chain: the text is complete, and a second traceback only hides it.
        raise as_v1(error) from None


_sessions: dict[tuple[int, str], Session] = {}
_lock = threading.Lock()


def open_session(settings: Settings | None = None) -> Session:
    """The session for these settings; handles of one process share it."""
    from runyard.sdk.embedded import connect

    with _lock, border():
        wanted = settings or load_settings()
        key = (os.getpid(), repr(wanted))
        if key not in _sessions:
            _sessions[key] = Session(connect(wanted), wanted)
        return _sessions[key]


def segment(name: str) -> str:
    """A name as one segment of a path of the API."""
    return quote(name, safe="")


def segments(path: str) -> str:
    """A file's path as the tail of a path of the API."""
    return quote(path, safe="/")
