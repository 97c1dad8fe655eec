"""Bring a database to the tables of this version. Migrations are Alembic's, in `versions/`.

A new one: change `schema.py`, add `versions/rNNNN_what_changes.py`, set `schema.HEAD`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from runyard.domain.errors import Conflict
from runyard.stores.database import Database
from runyard.stores.schema import HEAD

if TYPE_CHECKING:
    from alembic.config import Config


def migrate(database: Database) -> None:
    """Bring the database to `HEAD`; cheap when it is there. Safe in several processes at once."""
    with database.read() as connection:
        found = stored_revision(connection)
    if found != HEAD:
        database.write(_upgrade)


def stored_revision(connection: Connection) -> str | None:
    """The migration that the database is at; None if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def alembic_config() -> "Config":
    """Alembic's configuration, as its own commands need it too."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: Connection) -> None:
    """Operation: no other process migrates meanwhile; if one did before, nothing is left to do."""
    # Alembic takes longer to import than all the rest of a server; a database that is up to date
    # does not need it.
    from alembic import command
    from alembic.script import ScriptDirectory

    config = alembic_config()
    known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    found = stored_revision(connection)
    if found is not None and found not in known:
        raise Conflict(
            f"The database {connection.engine.url.render_as_string()} was made by a newer Runyard.",
            why=f"It is at migration {found}; this version knows up to {HEAD}.",
            fix="Upgrade with: pip install --upgrade runyard",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
