"""The files that runs and managed datastores keep: paths in the database, contents in blobs."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from runyard.domain.errors import NotFound
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.runs import RunRecord
from runyard.stores.base import Owner
from runyard.stores.database import Database
from runyard.stores.records import known_seq, noun, record_seq
from runyard.stores.schema import artifacts, bytes_text, text_bytes, text_key

_FORGET = delete(artifacts).where(
    artifacts.c.run == bindparam("of_run"), artifacts.c.key == bindparam("of_key")
)


class SqlArtifacts:
    """Artifacts in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, owner: str, entries: Sequence[FileEntry], *, of: Owner = RunRecord) -> None:
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
            self._database.write(lambda connection: _put(connection, of, owner, rows))

    def list(self, owner: str, prefix: str = "", *, of: Owner = RunRecord) -> list[FileInfo]:
        """The owner's files whose path starts with `prefix`, by path."""
        wanted = select(artifacts.c.path, artifacts.c.size, artifacts.c.digest)
        if start := text_bytes(prefix):
            wanted = wanted.where(func.substr(artifacts.c.path, 1, len(start)) == start)
        with self._database.read() as connection:
            seq = record_seq(connection, of, owner)
            rows = connection.execute(wanted.where(artifacts.c.run == seq)).all()
        return [
            FileInfo(path=bytes_text(row.path), size=row.size, digest=row.digest)
            for row in sorted(rows, key=lambda row: row.path)
        ]

    def get(self, owner: str, path: str, *, of: Owner = RunRecord) -> FileInfo:
        """One file, or `NotFound`."""
        with self._database.read() as connection:
            row = connection.execute(
                select(artifacts.c.size, artifacts.c.digest).where(
                    artifacts.c.run == record_seq(connection, of, owner),
                    artifacts.c.key == text_key(path),
                )
            ).one_or_none()
        if row is None:
            raise NotFound(f"{noun(of)} '{owner}' has no file '{path}'.")
        return FileInfo(path=path, size=row.size, digest=row.digest)


def _put(
    connection: Connection, of: Owner, owner: str, rows: Mapping[bytes, Mapping[str, object]]
) -> None:
    seq = known_seq(connection, of, owner)
    connection.execute(_FORGET, [{"of_run": seq, "of_key": key} for key in rows])
    new = [{"run": seq, "key": key, **row} for key, row in rows.items()]
    connection.execute(insert(artifacts), new)
