"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make everything."""
    _records()
    _metrics()
    _files()


def _child(name: str, of: str, *, primary_key: bool) -> sa.Column[int]:
    """A column that refers to a row of another table and goes away with it."""
    key = sa.ForeignKey(of, ondelete="CASCADE")
    if primary_key:
        return sa.Column(name, NUMBER, key, primary_key=True, autoincrement=False)
    return sa.Column(name, NUMBER, key, nullable=False)


def _records() -> None:
    op.create_table(
        "records",
        sa.Column("seq", NUMBER, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("id", sa.String, nullable=False),
        sa.Column("version", NUMBER, nullable=False),
        sa.Column("workspace", sa.String),
        sa.Column("experiment", sa.String),
        sa.Column("parent", sa.String),
        sa.Column("name", sa.String),
        sa.Column("state", sa.String),
        sa.Column("run_kind", sa.String),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_index("records_id", "records", ["kind", "id"], unique=True)
    for name, columns in {
        "newest": [],
        "name": ["name"],
        "state": ["state"],
        "workspace": ["workspace"],
        "workspace_state": ["workspace", "state"],
        "experiment": ["workspace", "experiment"],
        "experiment_state": ["workspace", "experiment", "state"],
    }.items():
        op.create_index(f"records_{name}", "records", ["kind", *columns, "seq"])
    top, child = sa.text("parent IS NULL"), sa.text("parent IS NOT NULL")
    for name, columns, only in (
        ("parent", ["parent"], child),
        ("workspace_top", ["workspace"], top),
        ("experiment_top", ["workspace", "experiment"], top),
    ):
        op.create_index(
            f"records_{name}",
            "records",
            ["kind", *columns, "seq"],
            sqlite_where=only,
            postgresql_where=only,
        )
    op.create_table(
        "labels",
        sa.Column("label", NUMBER, primary_key=True, autoincrement=False),
        _child("record", "records.seq", primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("labels_record", "labels", ["record"])
    op.create_table(
        "run_numbers",
        sa.Column("workspace", sa.String, primary_key=True),
        sa.Column("experiment", sa.String, primary_key=True),
        sa.Column("last", NUMBER, nullable=False),
    )


def _metrics() -> None:
    op.create_table(
        "series",
        sa.Column("id", NUMBER, primary_key=True),
        _child("run", "records.seq", primary_key=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("count", NUMBER, nullable=False),
        sa.Column("settled", NUMBER, nullable=False),
        sa.Column("tail", sa.LargeBinary),
    )
    op.create_index("series_run", "series", ["run", "key", "kind"], unique=True)
    op.create_table(
        "points",
        _child("series", "series.id", primary_key=True),
        sa.Column("first", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("count", NUMBER, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _files() -> None:
    op.create_table(
        "streams",
        sa.Column("id", NUMBER, primary_key=True),
        _child("run", "records.seq", primary_key=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("end", NUMBER, nullable=False),
        sa.Column("packed", NUMBER, nullable=False),
        sa.Column("settled", NUMBER, nullable=False),
        sa.Column("tail", sa.LargeBinary),
    )
    op.create_index("streams_run", "streams", ["run", "key"], unique=True)
    op.create_table(
        "segments",
        _child("stream", "streams.id", primary_key=True),
        sa.Column("start", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("digest", sa.String),
        sa.Column("data", sa.LargeBinary),
    )
    op.create_table(
        "artifacts",
        _child("run", "records.seq", primary_key=True),
        sa.Column("key", sa.LargeBinary, primary_key=True),
        sa.Column("path", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("mode", sa.Integer, nullable=False),
    )
