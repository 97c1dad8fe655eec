"""The tables. `migrations/` makes them; a test holds the two together.

    records ─┬─ labels                 tags and properties, as numbers to search by
             ├─ series ── points       logged values
             ├─ streams ── segments    logs, and how far event files were applied
             ├─ artifacts              paths beside digests
             └─ notes                  what the agents of a job told each other
    run_numbers                        the last number given out, per experiment; and per model,
                                       as the experiment "models/NAME"

All that hangs on a record goes away with it. Names and paths that users choose are kept as bytes
(any character, any length) and found by a short key, because index rows are limited in size.
"""

import hashlib

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

HEAD = "0002"  # the newest migration; opening a store compares this before anything else

# SQLite numbers rows only in an INTEGER PRIMARY KEY, which is 64 bits wide there anyway.
Number = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

records = Table(
    "records",
    metadata,
    Column("seq", Number, primary_key=True),  # grows with every insert: the order of pages
    Column("kind", String, nullable=False),
    Column("id", String, nullable=False),
    Column("version", Number, nullable=False),
    Column("workspace", String),
    Column("experiment", String),
    Column("parent", String),
    Column("name", String),
    Column("state", String),
    Column("run_kind", String),
    Column("created", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),  # the record as JSON
)
# Each common search has an index that ends in `seq`, so a page is read off its end.
Index("records_id", records.c.kind, records.c.id, unique=True)
Index("records_newest", records.c.kind, records.c.seq)
Index("records_name", records.c.kind, records.c.name, records.c.seq)
Index("records_state", records.c.kind, records.c.state, records.c.seq)
Index("records_workspace", records.c.kind, records.c.workspace, records.c.seq)
Index(
    "records_workspace_state",
    records.c.kind,
    records.c.workspace,
    records.c.state,
    records.c.seq,
)
Index(
    "records_experiment",
    records.c.kind,
    records.c.workspace,
    records.c.experiment,
    records.c.seq,
)
Index(
    "records_experiment_state",
    records.c.kind,
    records.c.workspace,
    records.c.experiment,
    records.c.state,
    records.c.seq,
)
# A sweep's children are many; a page of the runs above them must not walk over them. The index
# of children is partial too, or it would be taken for one of the runs without a parent.
_TOP = records.c.parent.is_(None)
_CHILD = records.c.parent.is_not(None)
Index(
    "records_parent",
    records.c.kind,
    records.c.parent,
    records.c.seq,
    sqlite_where=_CHILD,
    postgresql_where=_CHILD,
)
Index(
    "records_workspace_top",
    records.c.kind,
    records.c.workspace,
    records.c.seq,
    sqlite_where=_TOP,
    postgresql_where=_TOP,
)
Index(
    "records_experiment_top",
    records.c.kind,
    records.c.workspace,
    records.c.experiment,
    records.c.seq,
    sqlite_where=_TOP,
    postgresql_where=_TOP,
)

labels = Table(
    "labels",
    metadata,
    Column("label", Number, primary_key=True, autoincrement=False),
    Column(
        "record",
        Number,
        ForeignKey("records.seq", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    sqlite_with_rowid=False,
)
Index("labels_record", labels.c.record)

run_numbers = Table(
    "run_numbers",
    metadata,
    Column("workspace", String, primary_key=True),
    Column("experiment", String, primary_key=True),
    Column("last", Number, nullable=False),
)

series = Table(
    "series",
    metadata,
    Column("id", Number, primary_key=True),  # grows: the order of first appearance
    Column("run", Number, ForeignKey("records.seq", ondelete="CASCADE"), nullable=False),
    Column("key", LargeBinary, nullable=False),  # of the name, see `text_key`
    Column("kind", String, nullable=False),
    Column("name", LargeBinary, nullable=False),
    Column("count", Number, nullable=False),  # of all points
    Column("settled", Number, nullable=False),  # of those in `points`; the others are in `tail`
    Column("tail", LargeBinary),  # the newest few points, so that one more is one small update
)
Index("series_run", series.c.run, series.c.key, series.c.kind, unique=True)

points = Table(
    "points",
    metadata,
    Column(
        "series",
        Number,
        ForeignKey("series.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("first", Number, primary_key=True, autoincrement=False),  # index of its first point
    Column("count", Number, nullable=False),
    Column("data", LargeBinary, nullable=False),  # see stores/chunks.py
)

streams = Table(
    "streams",
    metadata,
    Column("id", Number, primary_key=True),
    Column("run", Number, ForeignKey("records.seq", ondelete="CASCADE"), nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("kind", String, nullable=False),  # log, events
    Column("name", LargeBinary, nullable=False),
    Column("end", Number, nullable=False),
    Column("packed", Number, nullable=False),  # bytes of a log that are in blobs
    Column("settled", Number, nullable=False),  # bytes in `segments`; the others are in `tail`
    Column("tail", LargeBinary),
)
Index("streams_run", streams.c.run, streams.c.key, unique=True)

segments = Table(
    "segments",
    metadata,
    Column(
        "stream",
        Number,
        ForeignKey("streams.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("start", Number, primary_key=True, autoincrement=False),
    Column("size", Number, nullable=False),
    Column("digest", String),  # the blob that holds it, or NULL: it is in `data`
    Column("data", LargeBinary),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column(
        "run",  # or a managed datastore
        Number,
        ForeignKey("records.seq", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("key", LargeBinary, primary_key=True),
    Column("path", LargeBinary, nullable=False),
    Column("digest", String, nullable=False),
    Column("size", Number, nullable=False),
    Column("mode", Integer, nullable=False),
)

notes = Table(
    "notes",
    metadata,
    Column(
        "run",
        Number,
        ForeignKey("records.seq", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("place", Number, primary_key=True, autoincrement=False),  # 0, 1, … without a gap
    Column("data", LargeBinary, nullable=False),
)


def text_bytes(text: str) -> bytes:
    """A user's text as it is kept; also what is not Unicode (undecodable file names) survives."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    """The text that `text_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


def text_key(text: str) -> bytes:
    """The short key that a name or path is found by."""
    return hashlib.blake2b(text_bytes(text), digest_size=16).digest()
