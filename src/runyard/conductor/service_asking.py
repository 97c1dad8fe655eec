"""Asks the front end of a service, from the machine that it runs on."""

import http.client
from collections.abc import Mapping

from runyard.settings import near


def ask_front(
    host: str,
    port: int,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float,
    most_bytes: int | None = None,
) -> tuple[int, bytes]:
    """(status, body) of its answer; OSError or HTTPException if there is none."""
    link = http.client.HTTPConnection(near(host), port, timeout=seconds)
    try:
        link.request(method, path, body, dict(headers or {}))
        answer = link.getresponse()
        return answer.status, answer.read(most_bytes)
    finally:
        link.close()
