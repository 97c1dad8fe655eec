"""The notes that the agents of a job leave for each other."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from runyard.domain.runs import RunRecord
from runyard.stores.database import Database
from runyard.stores.records import known_seq, record_seq
from runyard.stores.schema import notes


class SqlNotes:
    """Notes in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, run_id: str, attempt: int, note: bytes) -> int:
        """Keep a note after all others; the place behind it."""
        return self._database.write(lambda connection: _add(connection, run_id, attempt, note))

    def read(self, run_id: str, attempt: int, since: int = 0) -> Sequence[bytes]:
        """The notes from that place on, in order."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(notes.c.data)
                .where(
                    notes.c.run == record_seq(connection, RunRecord, run_id),
                    notes.c.attempt == attempt,
                    notes.c.place >= since,
                )
                .order_by(notes.c.place)
            ).all()
        return [bytes(row.data) for row in rows]


def _add(connection: Connection, run_id: str, attempt: int, note: bytes) -> int:
    seq = known_seq(connection, RunRecord, run_id)
    last = select(func.max(notes.c.place)).where(notes.c.run == seq, notes.c.attempt == attempt)
    found = connection.execute(last).scalar()
    place = 0 if found is None else int(found) + 1
    row = {"run": seq, "attempt": attempt, "place": place, "data": note}
    connection.execute(insert(notes), row)
    return place + 1
