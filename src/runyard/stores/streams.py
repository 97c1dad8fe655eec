"""Append-only files of jobs: logs, whose bytes are kept, and event files, whose meaning is.

The newest bytes of a log are in its own row (`tail`), then in rows of `segments`; when those are
many they are packed into one blob. The blob is put first and the rows are swapped for it in one
transaction: a crash between the two leaves a blob that nothing refers to.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from runyard.domain.errors import Conflict, NotFound
from runyard.domain.files import FileInfo
from runyard.stores.base import Blobs, EventEffects
from runyard.stores.database import Database
from runyard.stores.metrics import Batch, append_batches, batches_of
from runyard.stores.records import known_run_seq, load_run, replace_record, run_seq
from runyard.stores.schema import bytes_text, segments, streams, text_bytes, text_key

TAIL_BYTES = 8192  # written anew with every append that it takes in, so not more
PACK_BYTES = 4 * 1024 * 1024

LOG, EVENTS = "log", "events"

_COLUMNS = (
    streams.c.id,
    streams.c.kind,
    streams.c.end,
    streams.c.packed,
    streams.c.settled,
    streams.c.tail,
)
_STREAM = select(*_COLUMNS).where(
    streams.c.run == bindparam("of_run"), streams.c.key == bindparam("of_key")
)
_STREAM_BY_ID = select(*_COLUMNS).where(streams.c.id == bindparam("stream"))
_ADVANCE = (
    update(streams)
    .where(streams.c.id == bindparam("stream"))
    .values(end=bindparam("new_end"), settled=bindparam("new_settled"), tail=bindparam("new_tail"))
)
_FIRST = select(func.max(segments.c.start)).where(
    segments.c.stream == bindparam("stream"), segments.c.start <= bindparam("first")
)
_SEGMENTS = (
    select(segments.c.start, segments.c.size, segments.c.digest, segments.c.data)
    .where(
        segments.c.stream == bindparam("stream"),
        segments.c.start >= func.coalesce(_FIRST.scalar_subquery(), 0),
        segments.c.start < bindparam("stop"),
    )
    .order_by(segments.c.start)
)


class _Stream(NamedTuple):
    """How far a stream is."""

    id: int
    kind: str
    end: int
    packed: int
    settled: int
    tail: bytes | None


class SqlStreams:
    """Streams in a database, and big logs in blobs."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    def append_log(self, run_id: str, name: str, offset: int, data: bytes) -> int:
        """Keep `data` as the bytes of log `name` from `offset` on; the new end."""
        stream, end, unpacked = self._database.write(
            lambda connection: _append_log(connection, run_id, name, offset, data)
        )
        if unpacked >= PACK_BYTES:
            self._pack(stream, whole=False)
        return end

    def read_log(self, run_id: str, name: str, start: int, limit: int) -> bytes:
        """Up to `limit` bytes of a log from `start`; empty at the end."""
        with self._database.read() as connection:
            run = run_seq(connection, run_id)
            row = None if run is None else _find_stream(connection, run, name)
            if row is None or row.kind != LOG:
                raise NotFound(f"Run '{run_id}' has no log '{name}'.")
            stop = min(start + limit, row.end)
            settled = min(stop, row.settled)
            # Rows may become a blob between two statements; this one sees the one or the other.
            found = (
                connection.execute(
                    _SEGMENTS, {"stream": row.id, "first": start, "stop": settled}
                ).all()
                if start < settled
                else []
            )
        parts: list[bytes] = []
        for part in found:
            # Not to its end: such a blob may hold the tail too, which we have already.
            first, last = max(start - part.start, 0), min(settled - part.start, part.size)
            if part.digest is None:
                parts.append(part.data[first:last])
            else:
                parts.extend(self._blobs.open(part.digest, first, last))
        if row.tail is not None and stop > row.settled:
            parts.append(row.tail[max(start - row.settled, 0) : stop - row.settled])
        return b"".join(parts)

    def logs(self, run_id: str) -> list[FileInfo]:
        """The logs of a run with their sizes, by name."""
        # A sealed log that was short enough is one blob, and can be had as such.
        whole = (segments.c.stream == streams.c.id) & (segments.c.size == streams.c.end)
        with self._database.read() as connection:
            rows = connection.execute(
                select(streams.c.name, streams.c.end, segments.c.digest)
                .outerjoin(segments, whole)
                .where(streams.c.run == run_seq(connection, run_id), streams.c.kind == LOG)
            ).all()
        return sorted(
            (FileInfo(path=bytes_text(row.name), size=row.end, digest=row.digest) for row in rows),
            key=lambda info: info.path,
        )

    def seal_logs(self, run_id: str) -> None:
        """Pack the run's logs, which will not grow any more. Idempotent."""
        with self._database.read() as connection:
            open_logs = connection.execute(
                select(streams.c.id).where(
                    streams.c.run == run_seq(connection, run_id),
                    streams.c.kind == LOG,
                    streams.c.packed < streams.c.end,
                )
            ).scalars()
            ids = list(open_logs)
        for stream in ids:
            while not self._pack(stream, whole=True):
                pass  # it grew meanwhile, against the promise; nothing may be lost even so

    def append_events(
        self, run_id: str, name: str, offset: int, end: int, effects: EventEffects
    ) -> int:
        """Apply what the bytes [offset, end) of an event file mean, with the new end, at once."""
        batches = {run: batches_of(points) for run, points in effects.points.items()}

        def operation(connection: Connection) -> int:
            stream = _open_stream(connection, run_id, name, EVENTS)
            if stream.end >= end:
                return stream.end
            if stream.end != offset:
                raise _gap(name, stream.end, offset)
            _keep_points(connection, batches)
            _change_tags(connection, effects)
            connection.execute(
                _ADVANCE, {"stream": stream.id, "new_end": end, "new_settled": 0, "new_tail": None}
            )
            return end

        return self._database.write(operation)

    def end(self, run_id: str, name: str) -> int:
        """The end of a log or event stream; 0 if unknown."""
        with self._database.read() as connection:
            run = run_seq(connection, run_id)
            row = None if run is None else _find_stream(connection, run, name)
        return 0 if row is None else row.end

    def _pack(self, stream: int, *, whole: bool) -> bool:
        """Move a log's rows (`whole`: its tail too) into a blob; False if it changed meanwhile."""
        with self._database.read() as connection:
            row = _load_stream(connection, stream)
            if row is None:
                return True  # the run was deleted
            rows = connection.execute(
                _SEGMENTS, {"stream": stream, "first": row.packed, "stop": row.settled}
            ).all()
        parts = [part.data for part in rows if part.start >= row.packed]
        if any(part is None for part in parts):
            return False  # somebody else has just packed them
        if whole and row.tail is not None:
            parts.append(row.tail)
        content = b"".join(parts)
        if not content:
            return True
        digest = hashlib.sha256(content).hexdigest()
        self._blobs.put(digest, [content])
        return self._database.write(
            lambda connection: _swap(connection, row, len(content), digest, whole=whole)
        )


def _swap(connection: Connection, seen: _Stream, size: int, digest: str, *, whole: bool) -> bool:
    """Operation: have a blob instead of the rows it was made of, if they are as they were."""
    now = _load_stream(connection, seen.id)
    if now is None:
        return True
    if now.packed != seen.packed or (whole and now.end != seen.end):
        return False
    stop = seen.packed + size
    connection.execute(
        delete(segments).where(
            segments.c.stream == seen.id,
            segments.c.start >= seen.packed,
            segments.c.start < stop,
        )
    )
    connection.execute(
        insert(segments),
        {"stream": seen.id, "start": seen.packed, "size": size, "digest": digest},
    )
    changed = update(streams).where(streams.c.id == seen.id).values(packed=stop)
    connection.execute(changed.values(settled=stop, tail=None) if whole else changed)
    return True


def _append_log(
    connection: Connection, run_id: str, name: str, offset: int, data: bytes
) -> tuple[int, int, int]:
    """Operation: the stream, its new end, and how much of it could be packed."""
    stream = _open_stream(connection, run_id, name, LOG)
    if offset > stream.end:
        raise _gap(name, stream.end, offset)
    new = data[stream.end - offset :]
    if not new:
        return stream.id, stream.end, 0
    tail = (stream.tail or b"") + new
    settled = stream.settled
    end = stream.end + len(new)
    if len(tail) > TAIL_BYTES:
        row = {"stream": stream.id, "start": settled, "size": len(tail), "data": tail}
        connection.execute(insert(segments), row)
        settled, tail = end, b""
    connection.execute(
        _ADVANCE,
        {"stream": stream.id, "new_end": end, "new_settled": settled, "new_tail": tail or None},
    )
    return stream.id, end, settled - stream.packed


def _find_stream(connection: Connection, run: int, name: str) -> _Stream | None:
    row = connection.execute(_STREAM, {"of_run": run, "of_key": text_key(name)}).one_or_none()
    return None if row is None else _Stream(*row)


def _load_stream(connection: Connection, id: int) -> _Stream | None:
    row = connection.execute(_STREAM_BY_ID, {"stream": id}).one_or_none()
    return None if row is None else _Stream(*row)


def _open_stream(connection: Connection, run_id: str, name: str, kind: str) -> _Stream:
    """The stream, made if it is new; `Conflict` if the name is that of another kind."""
    run = known_run_seq(connection, run_id)
    found = _find_stream(connection, run, name)
    if found is None:
        row = {"run": run, "key": text_key(name), "kind": kind, "name": text_bytes(name)}
        connection.execute(insert(streams), {**row, "end": 0, "packed": 0, "settled": 0})
        found = _find_stream(connection, run, name)
        assert found is not None
    if found.kind != kind:
        raise Conflict(
            f"Stream '{name}' of run '{run_id}' is of kind {found.kind}, not {kind}.",
            fix="Give one of the two another name.",
        )
    return found


def _keep_points(connection: Connection, batches: Mapping[str, Sequence[Batch]]) -> None:
    for run_id, new in batches.items():
        run = run_seq(connection, run_id)
        if run is not None:  # a run that was deleted meanwhile has no use for them
            append_batches(connection, run, new)


def _change_tags(connection: Connection, effects: EventEffects) -> None:
    for run_id in dict.fromkeys([*effects.set_tags, *effects.remove_tags]):
        run = load_run(connection, run_id)
        if run is None:
            continue
        gone = effects.remove_tags.get(run_id, ())
        tags = {name: value for name, value in run.tags.items() if name not in gone}
        tags |= dict(_plain(effects.set_tags.get(run_id, {})))
        if tags != run.tags:
            replace_record(connection, msgspec.structs.replace(run, tags=tags))


def _plain(tags: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
    """The tags as Unicode: what a job read from an undecodable name must not stop its stream."""
    for name, value in tags.items():
        yield _unicode(name), None if value is None else _unicode(value)


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _gap(name: str, end: int, offset: int) -> Conflict:
    return Conflict(
        f"Stream '{name}' ends at {end}; what starts at {offset} does not join.",
        why="The bytes between are missing.",
        fix=f"Send again from {end} on.",
    )
