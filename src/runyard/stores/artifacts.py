"""The files a run keeps: paths in the database, contents in blobs."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from runyard.domain.errors import NotFound
from runyard.domain.files import FileEntry, FileInfo
from runyard.stores.database import Database
from runyard.stores.records import known_run_seq, run_seq
from runyard.stores.schema import artifacts, bytes_text, text_bytes, text_key

_FORGET = delete(artifacts).where(
    artifacts.c.run == bindparam("of_run"), artifacts.c.key == bindparam("of_key")
)


class SqlArtifacts:
    """Artifacts in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, run_id: str, entries: Sequence[FileEntry]) -> None:
        """Keep the entries; a path that is there already gets the new content."""
        rows = {
            text_key(entry.path): {
                "path": text_bytes(entry.path),
                "digest": entry.digest,
                "size": entry.size,
                "mode": entry.mode,
            }
            for entry in entries
        }
        if rows:
            self._database.write(lambda connection: _put(connection, run_id, rows))

    def list(self, run_id: str, prefix: str = "") -> list[FileInfo]:
        """The run's artifacts whose path starts with `prefix`, by path."""
        wanted = select(artifacts.c.path, artifacts.c.size, artifacts.c.digest)
        if start := text_bytes(prefix):
            wanted = wanted.where(func.substr(artifacts.c.path, 1, len(start)) == start)
        with self._database.read() as connection:
            run = run_seq(connection, run_id)
            rows = connection.execute(wanted.where(artifacts.c.run == run)).all()
        return [
            FileInfo(path=bytes_text(row.path), size=row.size, digest=row.digest)
            for row in sorted(rows, key=lambda row: row.path)
        ]

    def get(self, run_id: str, path: str) -> FileInfo:
        """One artifact, or `NotFound`."""
        with self._database.read() as connection:
            row = connection.execute(
                select(artifacts.c.size, artifacts.c.digest).where(
                    artifacts.c.run == run_seq(connection, run_id),
                    artifacts.c.key == text_key(path),
                )
            ).one_or_none()
        if row is None:
            raise NotFound(f"Run '{run_id}' has no file '{path}'.")
        return FileInfo(path=path, size=row.size, digest=row.digest)


def _put(connection: Connection, run_id: str, rows: Mapping[bytes, Mapping[str, object]]) -> None:
    run = known_run_seq(connection, run_id)
    connection.execute(_FORGET, [{"of_run": run, "of_key": key} for key in rows])
    new = [{"run": run, "key": key, **row} for key, row in rows.items()]
    connection.execute(insert(artifacts), new)
