"""The notes that the agents of one job leave for each other."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make their table."""
    run = sa.ForeignKey("records.seq", ondelete="CASCADE")
    op.create_table(
        "notes",
        sa.Column("run", NUMBER, run, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("place", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
