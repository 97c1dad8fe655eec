"""Routes of contents by digest, and of the files of a run by name."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import msgspec
from starlette.types import Receive

from runyard.conductor.runs import check_manifest
from runyard.domain.errors import BlobsMissing, Invalid, NotFound
from runyard.domain.files import FileEntry, FileInfo, is_digest
from runyard.domain.runs import RunRecord
from runyard.server.downloads import Download
from runyard.server.messages import ClientGone, content_length, read_body
from runyard.server.routing import Call, NoQuery
from runyard.stores.base import Store

# A body up to this size is read whole, and needs a thread only while it is being kept.
_SMALL = 1 << 20
_LOG_CHUNK = 1 << 18


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which files to list."""

    prefix: str = ""


def missing_blobs(call: Call[list[str], NoQuery]) -> list[str]:
    """Which of these contents the server lacks."""
    wrong = [text for text in call.body if not is_digest(text)]
    if wrong:
        raise Invalid(f"{wrong[0][:100]!r} is not a digest.", why="It needs 64 hex digits.")
    return call.platform.store.blobs.missing(call.body)


async def put_blob(call: Call[None, NoQuery]) -> None:
    """Keep a content; its digest is verified."""
    digest = _digest(call)
    blobs, length = call.platform.store.blobs, content_length(call.scope)
    if length is not None and length <= _SMALL:
        data = await read_body(call.scope, call.receive, _SMALL)
        await call.platform.in_thread(blobs.put, digest, [data])
        return
    pump = _Pump(call.receive)
    try:
        await call.platform.in_upload_thread(lambda: blobs.put(digest, pump.chunks()))
    finally:
        pump.stop()


class _Pump:
    """Hands a body that arrives in the event loop to a thread, one chunk at a time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._pending: Future[tuple[bytes, bool]] | None = None
        self._stopped = False

    def chunks(self) -> Iterator[bytes]:
        """The body; for the thread. `ClientGone` if it ends too early."""
        more = True
        while more:
            if self._stopped:
                raise ClientGone
            self._pending = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            try:
                chunk, more = self._pending.result()
            except CancelledError:
                raise ClientGone from None
            if chunk:
                yield chunk

    async def _next(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGone
        return message.get("body", b""), bool(message.get("more_body"))

    def stop(self) -> None:
        """Nothing will come any more: let go of the thread."""
        self._stopped = True
        if self._pending is not None:
            self._pending.cancel()


def get_blob(call: Call[None, NoQuery]) -> Download:
    """A content, or a range of it."""
    digest, blobs = _digest(call), call.platform.store.blobs
    return Download(
        call.platform,
        lambda start, end: blobs.open(digest, start, end),
        size=blobs.size(digest),
        etag=digest,
    )


def _digest(call: Call[None, NoQuery]) -> str:
    digest = call.params["digest"]
    if not is_digest(digest):
        raise Invalid(f"{digest[:100]!r} is not a digest.", why="It needs 64 hex digits.")
    return digest


def list_files(call: Call[None, FilesQuery]) -> list[FileInfo]:
    """The files of a run: artifacts and logs, by name."""
    run = call.platform.store.records.get(RunRecord, call.params["run"])
    return files_of(call.platform.store, run.id, call.query.prefix)


def files_of(store: Store, run_id: str, prefix: str = "") -> list[FileInfo]:
    """The artifacts and logs whose path starts with `prefix`, by path; artifacts come first."""
    found = {info.path: info for info in store.streams.logs(run_id)}
    found.update((info.path, info) for info in store.artifacts.list(run_id, prefix))
    return [found[path] for path in sorted(found) if path.startswith(prefix)]


def get_file(call: Call[None, NoQuery]) -> Download:
    """A file of a run, always as an attachment."""
    store, path = call.platform.store, call.params["path"]
    run = store.records.get(RunRecord, call.params["run"])
    name = path.rsplit("/", 1)[-1]
    try:
        digest = store.artifacts.get(run.id, path).digest
    except NotFound:
        digest = None
    if digest is not None:
        return Download(
            call.platform,
            lambda start, end: store.blobs.open(digest, start, end),
            size=store.blobs.size(digest),
            etag=digest,
            name=name,
        )
    size = next((log.size for log in store.streams.logs(run.id) if log.path == path), None)
    if size is None:
        raise NotFound(
            f"Run '{run.id}' has no file '{path}'.", fix="run.get_file_names() lists its files."
        )
    return Download(
        call.platform,
        lambda start, end: _read_log(store, run.id, path, start, end),
        size=size,
        etag=f"log-{run.uid}",  # a log only grows: any part of it stays true
        name=name,
    )


def _read_log(store: Store, run_id: str, name: str, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        chunk = store.streams.read_log(run_id, name, start, min(_LOG_CHUNK, end - start))
        if not chunk:
            return
        start += len(chunk)
        yield chunk


def put_files(call: Call[list[FileEntry], NoQuery]) -> None:
    """Give a run files whose contents are on the server."""
    store, run_id, entries = call.platform.store, call.params["run"], call.body
    check_manifest(tuple(entries))
    missing = store.blobs.missing({entry.digest for entry in entries})
    if missing:
        raise BlobsMissing(
            f"{len(missing)} contents are not on the server.",
            fix="Upload them, then try again.",
            digests=tuple(missing),
        )
    store.artifacts.put(run_id, entries)
    call.platform.changed(run_id)
