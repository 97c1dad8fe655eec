"""Every noun in one table: some columns to search by, and the record itself as JSON."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from runyard.domain.compute import ComputeRecord
from runyard.domain.data import DatasetRecord, DatastoreRecord
from runyard.domain.environments import EnvironmentRecord
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale
from runyard.domain.models import ModelRecord, search_keys
from runyard.domain.runs import RunRecord
from runyard.domain.services import ServiceRecord
from runyard.domain.states import RunState
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord
from runyard.stores.base import R, Where
from runyard.stores.database import Database
from runyard.stores.schema import labels, records, run_numbers
from runyard.stores.searches import labels_of, plan_count, plan_page

Record = (
    WorkspaceRecord
    | ExperimentRecord
    | RunRecord
    | DatastoreRecord
    | DatasetRecord
    | EnvironmentRecord
    | ComputeRecord
    | ModelRecord
    | ServiceRecord
)

RUN = "run"
KINDS: Mapping[type[Record], str] = {
    WorkspaceRecord: "workspace",
    ExperimentRecord: "experiment",
    RunRecord: RUN,
    DatastoreRecord: "datastore",
    DatasetRecord: "dataset",
    EnvironmentRecord: "environment",
    ComputeRecord: "compute",
    ModelRecord: "model",
    ServiceRecord: "service",
}

_BY_ID = select(records.c.seq, records.c.version, records.c.body).where(
    records.c.kind == bindparam("of"), records.c.id == bindparam("known_as")
)
_SEQ = select(records.c.seq).where(
    records.c.kind == bindparam("of"), records.c.id == bindparam("known_as")
)
_REPLACE = update(records).where(records.c.seq == bindparam("row"))
_LABELS = select(labels.c.label).where(labels.c.record == bindparam("row"))


class _Kept(NamedTuple):
    """A record as it is in the table."""

    seq: int
    version: int
    body: bytes


class SqlRecords:
    """Records in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Every submit reads its target, which may have thousands of nodes: as it was read last.
        self._computes: dict[str, tuple[bytes, ComputeRecord]] = {}

    def insert(self, record: R) -> R:
        """Keep a new record; see `stores.base`."""
        return self._database.write(lambda connection: insert_record(connection, record))

    def get(self, kind: type[R], id: str) -> R:
        """The record, or `NotFound`."""
        with self._database.read() as connection:
            row = _find_row(connection, kind, id)
        if row is None:
            raise _not_found(kind, id)
        body, known = self._computes.get(id, (b"", None))
        if isinstance(known, kind) and body == row.body:
            return known
        record = msgspec.json.decode(row.body, type=kind)
        if isinstance(record, ComputeRecord):
            self._computes[id] = row.body, record
        return record

    def replace(self, record: R) -> R:
        """Replace the record that has `record.version`; see `stores.base`."""
        return self.replace_soon(record).result()

    def replace_soon(self, record: R) -> Future[R]:
        """As `replace`; the future resolves when the record is durable."""
        return self._database.submit(lambda connection: replace_record(connection, record))

    def delete(self, record: R) -> None:
        """Remove the record, and all that is kept of a run."""
        self._database.write(lambda connection: delete_record(connection, record))

    def find(
        self, kind: type[R], where: Where, *, limit: int = 100, after: str | None = None
    ) -> tuple[tuple[R, ...], str | None]:
        """Matching records, newest first, and where to go on."""
        if limit < 1:
            raise Invalid(f"A page of {limit} records makes no sense.", fix="Ask for 1 or more.")
        before = None if after is None else _parse_cursor(after)
        with self._database.read() as connection:
            # One more than asked for tells whether there are more.
            page = plan_page(KINDS[kind], where, limit=limit + 1, before=before)
            rows = connection.execute(page).all()
        found = tuple(msgspec.json.decode(row.body, type=kind) for row in rows[:limit])
        return found, str(rows[limit - 1].seq) if len(rows) > limit else None

    def count(self, where: Where) -> Mapping[RunState, int]:
        """How many matching runs are in each state."""
        with self._database.read() as connection:
            rows = connection.execute(plan_count(RUN, where)).all()
        return {RunState(state): count for state, count in rows}


def insert_record(connection: Connection, record: R) -> R:
    """Operation: keep a new record, with version 1 and, for a run or a model, its number."""
    kind = type(record)
    if "\0" in record.id:
        raise Invalid(f"{record.id!r} is not a possible id.", why="It has a NUL character.")
    if _find_row(connection, kind, record.id) is not None:
        raise Conflict(
            f"{noun(kind)} '{record.id}' exists already.", fix="Choose another id, or use it."
        )
    record = msgspec.structs.replace(record, version=1)
    if isinstance(record, RunRecord):
        number = _next_number(connection, record.spec.workspace, record.spec.experiment)
        record = msgspec.structs.replace(record, number=number)
    elif isinstance(record, ModelRecord):
        # Counted like runs, so that a number is never given twice, not even after a removal. No
        # experiment has a slash in its name.
        number = _next_number(connection, record.workspace, f"models/{record.name}")
        record = msgspec.structs.replace(record, number=number)
    added = connection.execute(
        insert(records),
        {"kind": KINDS[kind], "id": record.id, **_columns(record)},
    )
    assert added.inserted_primary_key is not None
    _update_labels(connection, added.inserted_primary_key[0], record, present=set())
    return record


def replace_record(connection: Connection, record: R) -> R:
    """Operation: compare and set by version."""
    row = _same_version(connection, record)
    changed = msgspec.structs.replace(record, version=record.version + 1)
    connection.execute(_REPLACE, {"row": row.seq, **_columns(changed)})
    present = set(connection.execute(_LABELS, {"row": row.seq}).scalars())
    _update_labels(connection, row.seq, changed, present=present)
    return changed


def delete_record(connection: Connection, record: Record) -> None:
    """Operation: remove the record; foreign keys take along what hangs on it."""
    row = _same_version(connection, record)
    connection.execute(delete(records).where(records.c.seq == row.seq))


def load_run(connection: Connection, run_id: str) -> RunRecord | None:
    """The run, or None if there is none."""
    row = _find_row(connection, RunRecord, run_id)
    return None if row is None else msgspec.json.decode(row.body, type=RunRecord)


def record_seq(connection: Connection, kind: type[Record], id: str) -> int | None:
    """The number that tables refer to the record by; None if there is no such record."""
    if "\0" in id:
        return None
    seq: int | None = connection.execute(_SEQ, {"of": KINDS[kind], "known_as": id}).scalar()
    return seq


def known_seq(connection: Connection, kind: type[Record], id: str) -> int:
    """As `record_seq`, but `NotFound` if there is no such record."""
    seq = record_seq(connection, kind, id)
    if seq is None:
        raise _not_found(kind, id)
    return seq


def run_seq(connection: Connection, run_id: str) -> int | None:
    """The number that tables refer to the run by; None if there is no such run."""
    return record_seq(connection, RunRecord, run_id)


def known_run_seq(connection: Connection, run_id: str) -> int:
    """As `run_seq`, but `NotFound` if there is no such run."""
    return known_seq(connection, RunRecord, run_id)


def _find_row(connection: Connection, kind: type[Record], id: str) -> _Kept | None:
    if "\0" in id:  # PostgreSQL cannot even compare such a text
        return None
    row = connection.execute(_BY_ID, {"of": KINDS[kind], "known_as": id}).one_or_none()
    return None if row is None else _Kept(*row)


def _same_version(connection: Connection, record: Record) -> _Kept:
    row = _find_row(connection, type(record), record.id)
    if row is None:
        raise _not_found(type(record), record.id)
    if row.version != record.version:
        raise Stale(
            f"{noun(type(record))} '{record.id}' was changed by somebody else.",
            why=f"It is at version {row.version}, not {record.version}.",
            fix="Read it again and repeat the change.",
        )
    return row


def _columns(record: Record) -> dict[str, object]:
    """What a record is found by, and the record."""
    columns: dict[str, object]
    match record:
        case RunRecord(spec=spec):
            columns = {
                "workspace": spec.workspace,
                "experiment": spec.experiment,
                "parent": spec.parent,
                "name": record.display_name,
                "state": record.state.value,
                "run_kind": spec.kind.value,
            }
        case (
            ExperimentRecord()
            | DatastoreRecord()
            | DatasetRecord()
            | EnvironmentRecord()
            | ComputeRecord()
            | ServiceRecord()
        ):
            columns = {"workspace": record.workspace, "name": record.name}
        case ModelRecord():
            columns = {
                "workspace": record.workspace,
                "name": record.name,
                "parent": record.run,
            }
        case WorkspaceRecord():
            columns = {"name": record.name}
    return {
        **columns,
        "version": record.version,
        "created": record.created.timestamp(),
        "body": msgspec.json.encode(record),
    }


def _update_labels(connection: Connection, seq: int, record: Record, *, present: set[int]) -> None:
    tags = {} if isinstance(record, DatastoreRecord) else record.tags
    properties: Mapping[str, str] = {}
    if isinstance(record, RunRecord):
        properties = record.properties
    elif isinstance(record, ModelRecord):
        properties = search_keys(record)
    wanted = labels_of(tags, properties)
    if gone := present - wanted:
        connection.execute(delete(labels).where(labels.c.record == seq, labels.c.label.in_(gone)))
    if new := wanted - present:
        connection.execute(insert(labels), [{"record": seq, "label": label} for label in new])


def _next_number(connection: Connection, workspace: str, experiment: str) -> int:
    here = (run_numbers.c.workspace == workspace, run_numbers.c.experiment == experiment)
    last: int | None = connection.execute(select(run_numbers.c.last).where(*here)).scalar()
    if last is None:
        new = {"workspace": workspace, "experiment": experiment, "last": 1}
        connection.execute(insert(run_numbers), new)
        return 1
    connection.execute(update(run_numbers).where(*here).values(last=last + 1))
    return last + 1


def _parse_cursor(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise Invalid(
            f"{after!r} is not a place in a list.",
            fix="Pass on what the page before gave as `next`.",
        )
    return int(after)


def noun(kind: type[Record]) -> str:
    """What people call a record of that kind."""
    return KINDS[kind].capitalize()


def _not_found(kind: type[Record], id: str) -> NotFound:
    return NotFound(f"{noun(kind)} '{id}' does not exist.")
