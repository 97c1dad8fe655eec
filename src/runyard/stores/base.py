"""What the platform keeps, and the promises every store makes.

A write has returned only when it is durable: killing the process or the machine afterwards
loses nothing. All methods are synchronous and safe to call from many threads. Writes of all
callers are committed in groups, so many small writers cost one transaction.

The promises are tested by `runyard.testing.store_suite` on SQLite and on PostgreSQL, and by
`runyard.testing.blob_suite` on every blob store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

import msgspec

from runyard.domain.compute import ComputeRecord
from runyard.domain.data import DatasetRecord, DatastoreRecord
from runyard.domain.environments import EnvironmentRecord
from runyard.domain.errors import Stale
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.metrics import Point, Series
from runyard.domain.models import ModelRecord
from runyard.domain.runs import RunRecord
from runyard.domain.services import ServiceRecord
from runyard.domain.states import RunState
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord

R = TypeVar(
    "R",
    WorkspaceRecord,
    ExperimentRecord,
    RunRecord,
    DatastoreRecord,
    DatasetRecord,
    EnvironmentRecord,
    ComputeRecord,
    ModelRecord,
    ServiceRecord,
)
Owner = type[RunRecord] | type[DatastoreRecord]  # what files are kept of

PAGE = 500  # records in one query of find_all


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Which records to find; what is None or empty does not narrow the search."""

    workspace: str | None = None
    experiment: str | None = None  # an experiment's name
    parent: str | None = None  # a run's id
    top_level: bool = False  # only runs without a parent
    name: str | None = None
    states: frozenset[RunState] = frozenset()
    kind: str | None = None  # a RunKind
    tags: Mapping[str, str | None] = {}  # a value of None: the tag is there, whatever its value
    properties: Mapping[str, str | None] = {}


class Records(Protocol):
    """Every noun through the same doors. Records are immutable; `version` guards replacement."""

    def insert(self, record: R) -> R:
        """Keep a new record and return it with version 1 (a run also gets its `number`).

        `Conflict` if one of that kind has the same id.
        """

    def get(self, kind: type[R], id: str) -> R:
        """The record, or `NotFound`."""

    def replace(self, record: R) -> R:
        """Replace the record that has `record.version`, return it with the next version.

        `Stale` if the stored version is another; `NotFound` if there is none.
        """

    def replace_soon(self, record: R) -> "Future[R]":
        """As `replace`, without waiting; the future resolves when the record is durable.

        What one thread sends is written in that order.
        """

    def delete(self, record: R) -> None:
        """Remove the record, and all that is kept of a run; `Stale` as above."""

    def find(
        self, kind: type[R], where: Where, *, limit: int = 100, after: str | None = None
    ) -> tuple[tuple[R, ...], str | None]:
        """Matching records, newest first, and the cursor for `after` (None: no more).

        A page costs the same however many records there are.
        """

    def count(self, where: Where) -> Mapping[RunState, int]:
        """How many matching runs are in each state."""


def find_all(records: Records, kind: type[R], where: Where) -> Iterator[R]:
    """Every matching record, newest first, read a page at a time."""
    after: str | None = None
    while True:
        page, after = records.find(kind, where, limit=PAGE, after=after)
        yield from page
        if after is None:
            return


def change_record(records: Records, kind: type[R], id: str, how: Callable[[R], R]) -> R:
    """Apply a pure change to a record, again if somebody else changed it meanwhile."""
    while True:
        record = records.get(kind, id)
        changed = how(record)
        if changed == record:
            return record
        try:
            return records.replace(changed)
        except Stale:
            continue


class Metrics(Protocol):
    """Logged values, in the order they were acknowledged."""

    def append(self, run_id: str, points: Sequence[Point]) -> None:
        """Keep the points. All or none."""

    def append_soon(self, run_id: str, points: Sequence[Point]) -> "Future[None]":
        """As `append`, without waiting; the future resolves when the points are durable."""

    def series(self, run_id: str, name: str | None = None) -> list[Series]:
        """All series of the run, in order of first appearance, or those of one name."""


class EventEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk of a job's event file means: points by run id, and tags by run id."""

    points: Mapping[str, Sequence[Point]] = {}
    set_tags: Mapping[str, Mapping[str, str | None]] = {}
    remove_tags: Mapping[str, Sequence[str]] = {}


class Streams(Protocol):
    """Append-only files of jobs, applied exactly once.

    A stream knows its end. An append that starts before the end is a repetition: what is known
    already is skipped. One that starts after it is a gap and raises `Conflict`.
    """

    def append_log(self, run_id: str, name: str, offset: int, data: bytes) -> int:
        """Keep `data` as the bytes of log `name` from `offset` on; the new end."""

    def read_log(self, run_id: str, name: str, start: int, limit: int) -> bytes:
        """Up to `limit` bytes of a log from `start`; empty at the end. `NotFound` if unknown."""

    def logs(self, run_id: str) -> list[FileInfo]:
        """The logs of a run with their sizes, by name."""

    def seal_logs(self, run_id: str) -> None:
        """Pack the run's logs, which will not grow any more. Idempotent."""

    def append_events(
        self, run_id: str, name: str, offset: int, end: int, effects: EventEffects
    ) -> int:
        """Apply what the bytes [offset, end) of an event file mean, with the new end, at once.

        If the stored end is already `end` or beyond, nothing is applied. If it is not exactly
        `offset` otherwise, `Conflict`. Returns the stored end.
        """

    def end(self, run_id: str, name: str) -> int:
        """The end of a log or event stream; 0 if unknown."""


class Artifacts(Protocol):
    """The files that a run, or a managed datastore, keeps: path → content.

    `of` says whose id is meant; ids of different kinds may be equal.
    """

    def put(self, owner: str, entries: Sequence[FileEntry], *, of: Owner = RunRecord) -> None:
        """Keep the entries; a path that is there already gets the new content."""

    def list(self, owner: str, prefix: str = "", *, of: Owner = RunRecord) -> list[FileInfo]:
        """The owner's files whose path starts with `prefix`, by path."""

    def get(self, owner: str, path: str, *, of: Owner = RunRecord) -> FileInfo:
        """One file, or `NotFound`."""


class Notes(Protocol):
    """What the agents of one attempt of a run told each other: a list that only grows."""

    def add(self, run_id: str, attempt: int, note: bytes) -> int:
        """Keep a note after all others; the place behind it. `NotFound` without such a run."""

    def read(self, run_id: str, attempt: int, since: int = 0) -> Sequence[bytes]:
        """The notes from that place on, in order; the first place is 0."""


class Blobs(Protocol):
    """Contents by their sha256. Nothing is ever changed; putting twice keeps one."""

    def put(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Keep the content; `Invalid` (and nothing kept) if it does not have that digest."""

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks; `NotFound` at once if the blob is not there."""

    def size(self, digest: str) -> int:
        """Its length in bytes, or `NotFound`."""

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are not here."""

    def folder(self) -> str | None:
        """A local folder that holds the blobs as `ab/cdef…` files, or None if there is none."""


class Store(Protocol):
    """Everything that is kept, opened by `runyard.stores.open_store`."""

    records: Records
    metrics: Metrics
    streams: Streams
    artifacts: Artifacts
    notes: Notes
    blobs: Blobs

    def close(self) -> None:
        """Finish pending writes and let go. Idempotent."""
