"""Logged values: a row per series, and a row per chunk of points.

The newest few points of a series are in its own row (`tail`); when they are many they become a
chunk. So one point more is one small update, a batch is one row, and reading a long series is
reading few rows, however it was written. Chunks never change.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from runyard.domain.metrics import MetricKind, Point, Series
from runyard.stores.chunks import Columns, decode_chunk, encode_chunk
from runyard.stores.database import Database, Operation
from runyard.stores.records import known_run_seq, run_seq
from runyard.stores.schema import bytes_text, points, series, text_bytes, text_key

# About 80 numbers. It is written anew with every append, so not more; and PostgreSQL compresses
# and moves aside what makes a row longer than 2 kB.
TAIL_BYTES = 1536

_STATE = (series.c.id, series.c.count, series.c.settled, series.c.tail)
_SERIES = select(series.c.key, series.c.kind, *_STATE).where(
    series.c.run == bindparam("of_run"), series.c.key.in_(bindparam("keys", expanding=True))
)
_EXTEND = (
    update(series)
    .where(series.c.id == bindparam("of_series"))
    .values(
        count=bindparam("new_count"), settled=bindparam("new_settled"), tail=bindparam("new_tail")
    )
)
_ALL_SERIES = (
    select(series.c.name, series.c.kind, *_STATE)
    .where(series.c.run == bindparam("of_run"))
    .order_by(series.c.id)
)
_ALL_POINTS = (
    select(points.c.series, points.c.first, points.c.data)
    .join(series, series.c.id == points.c.series)
    .where(series.c.run == bindparam("of_run"))
    .order_by(points.c.series, points.c.first)
)


class Batch(NamedTuple):
    """New points of one series, ready to be kept."""

    name: str
    kind: MetricKind
    columns: Columns
    data: bytes


class _State(NamedTuple):
    """How far a series is."""

    id: int
    points: int
    settled: int
    tail: bytes | None


class SqlMetrics:
    """Metrics in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, run_id: str, points: Sequence[Point]) -> None:
        """Keep the points. All or none; `NotFound` if there is no such run."""
        self.append_soon(run_id, points).result()

    def append_soon(self, run_id: str, points: Sequence[Point]) -> Future[None]:
        """As `append`; the future resolves when the points are durable."""
        return self._database.submit(_append(run_id, batches_of(points)))

    def series(self, run_id: str, name: str | None = None) -> list[Series]:
        """All series of the run, in order of first appearance, or those of one name."""
        with self._database.read() as connection:
            seq = run_seq(connection, run_id)
            if seq is None:
                return []
            every, chunks = _ALL_SERIES, _ALL_POINTS
            if name is not None:
                named = series.c.key == text_key(name)
                every, chunks = every.where(named), chunks.where(named)
            rows = connection.execute(every, {"of_run": seq}).all()
            found = [(bytes_text(title), kind, _State(*state)) for title, kind, *state in rows]
            # A tail may become a chunk right now: the first answer says which chunks belong to it.
            settled = {state.id: state.settled for _, _, state in found}
            parts: dict[int, list[Columns]] = {id: [] for id in settled}
            for id, first, data in connection.execute(chunks, {"of_run": seq}):
                if first < settled.get(id, 0):
                    parts[id].append(decode_chunk(data))
        return [_series(title, kind, parts[state.id], state.tail) for title, kind, state in found]


def batches_of(points: Sequence[Point]) -> list[Batch]:
    """The points by series, in order of first appearance."""
    groups: dict[object, list[Point]] = {}
    scalar = MetricKind.SCALAR
    for point in points:
        # Hashing an enum member is slow, and this loop sees every point there is.
        key = point.name if point.kind is scalar else (point.name, point.kind)
        group = groups.get(key)
        if group is None:
            groups[key] = [point]
        else:
            group.append(point)
    return [_batch(group) for group in groups.values()]


def append_batches(connection: Connection, run: int, batches: Sequence[Batch]) -> None:
    """Operation: keep new points of one run."""
    keys = [text_key(batch.name) for batch in batches]
    found = connection.execute(_SERIES, {"of_run": run, "keys": list(dict.fromkeys(keys))})
    known = {(key, kind): _State(*state) for key, kind, *state in found}
    chunks: list[dict[str, object]] = []
    changes: list[dict[str, object]] = []
    for key, batch in zip(keys, batches, strict=True):
        state = known.get((key, batch.kind.value)) or _new_series(connection, run, key, batch)
        tail, whole = _settle(state.tail, batch)
        settled = state.settled
        for data, size in whole:
            chunks.append({"series": state.id, "first": settled, "count": size, "data": data})
            settled += size
        count = state.points + len(batch.columns.times)
        changes.append(
            {"of_series": state.id, "new_count": count, "new_settled": settled, "new_tail": tail}
        )
    if chunks:
        connection.execute(insert(points), chunks)
    if changes:
        connection.execute(_EXTEND, changes)


def _append(run_id: str, batches: Sequence[Batch]) -> Operation[None]:
    return lambda connection: append_batches(connection, known_run_seq(connection, run_id), batches)


def _batch(group: list[Point]) -> Batch:
    columns = Columns(
        [point.step for point in group],
        [point.time for point in group],
        [point.value for point in group],
    )
    return Batch(group[0].name, group[0].kind, columns, encode_chunk(columns))


def _settle(tail: bytes | None, batch: Batch) -> tuple[bytes | None, list[tuple[bytes, int]]]:
    """The new tail, and the chunks (with their sizes) that go out before it."""
    size = len(batch.columns.times)
    if len(batch.data) > TAIL_BYTES:
        own = (batch.data, size)
        if tail is None:
            return None, [own]
        return None, [(tail, len(decode_chunk(tail).times)), own]
    if tail is None:
        return batch.data, []
    merged = decode_chunk(tail).plus(batch.columns)
    data = encode_chunk(merged)
    if len(data) > TAIL_BYTES:
        return None, [(data, len(merged.times))]
    return data, []


def _new_series(connection: Connection, run: int, key: bytes, batch: Batch) -> _State:
    row = {"run": run, "key": key, "kind": batch.kind.value, "name": text_bytes(batch.name)}
    added = connection.execute(insert(series), {**row, "count": 0, "settled": 0})
    assert added.inserted_primary_key is not None
    return _State(added.inserted_primary_key[0], 0, 0, None)


def _series(name: str, kind: str, parts: list[Columns], tail: bytes | None) -> Series:
    if tail is not None:
        parts = [*parts, decode_chunk(tail)]
    return Series(
        name=name,
        kind=MetricKind(kind),
        values=[value for part in parts for value in part.values],
        steps=[step for part in parts for step in part.steps],
        times=[time for part in parts for time in part.times],
    )
