"""One kept HTTP connection, as lean as the standard library has it; the same for us and peers."""

import http.client
from types import TracebackType
from urllib.parse import urlsplit


class Connection:
    """A connection to a server that is closed at the end of a `with`."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=60
        )  # fmt: skip
        self._headers = headers

    def get(self, path: str) -> bytes:
        """The body of the answer."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: bytes) -> bytes:
        """The body of the answer to `body`."""
        return self._ask("POST", path, body)

    def _ask(self, verb: str, path: str, body: bytes | None) -> bytes:
        self._connection.request(verb, path, body, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{verb} {path}: {response.status} {answer[:500]!r}")
        return answer

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
