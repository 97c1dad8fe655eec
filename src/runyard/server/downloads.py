"""Bytes that leave the server: whole or a range, streamed, never shown by a browser as a page."""

import re
from collections.abc import Callable, Iterator
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from runyard.server.messages import ClientGone
from runyard.server.platform import Platform
from runyard.server.routing import header
from runyard.server.waiting import attending

Open = Callable[[int, int], Iterator[bytes]]  # the bytes [start, end), in chunks

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")

# What users and jobs upload is hostile: no type that renders, no script, no origin of ours.
SAFE_HEADERS = {
    "content-type": "application/octet-stream",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "accept-ranges": "bytes",
}


class Download:
    """A file on its way out. `open_range` blocks, so it is called in the thread pool."""

    def __init__(
        self,
        platform: Platform,
        open_range: Open,
        *,
        size: int,
        etag: str,
        name: str = "",
        image: str = "",  # its type, where it is certain that it is a harmless image
        elsewhere: bool = False,  # the bytes come over a network; other threads wait for them
    ) -> None:
        self._in_thread = platform.in_data_thread if elsewhere else platform.in_thread
        self._open = open_range
        self._size = size
        # Status and length depend on the request.
        self._headers = {**SAFE_HEADERS, "etag": f'"{etag}"', "content-disposition": _attach(name)}
        if image:
            shown = {"content-type": image, "content-disposition": "inline"}
            self._headers |= {**shown, "cache-control": "private, max-age=3600"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the part that was asked for."""
        wanted = parse_range(header(scope, b"range"), self._size)
        headers = dict(self._headers)
        if wanted is None:
            status, start, end = 416, 0, 0
            headers["content-range"] = f"bytes */{self._size}"
        else:
            start, end = wanted
            status = 200 if header(scope, b"range") is None else 206
            if status == 206:
                headers["content-range"] = f"bytes {start}-{end - 1}/{self._size}"
        chunks = iter(()) if start == end else await self._in_thread(self._open, start, end)
        headers["content-length"] = str(end - start)
        raw = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        left = end - start
        with attending(receive) as caller:
            while left and (chunk := await self._in_thread(next, chunks, b"")):
                caller.check()
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if left:
            raise ClientGone  # the content is shorter than announced: cut, do not pretend
        await send({"type": "http.response.body", "body": b""})


def parse_range(value: str | None, size: int) -> tuple[int, int] | None:
    """The bytes [start, end) a Range header asks for; None if there are no such bytes.

    No header, or one of a form we do not serve (several ranges), means all of it.
    """
    match = _RANGE.fullmatch(value.strip()) if value is not None else None
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match[1], match[2]
    if not first:  # the last N bytes
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    return (start, end) if start < end else None


def _attach(name: str) -> str:
    if not name:
        return "attachment"
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}"
