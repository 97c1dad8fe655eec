"""One database, many threads: a pool to read from and a single writer that commits in groups.

A write is an *operation*: a function of a connection. The writer takes all operations that are
waiting, runs them in one transaction and commits once; what comes meanwhile is the next group.
So a lonely write costs one commit, and a thousand at a time cost one commit too.

Writers of several processes take turns, on PostgreSQL as on SQLite. An operation may therefore
look first and then write: nothing changes in between.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from runyard.domain.errors import Invalid, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[Connection], T]

MAX_GROUP = 1000  # operations per transaction, so that the first of a flood is not kept waiting
READERS, MORE_READERS = 8, 24  # connections kept open, and opened for a rush
BUSY_SECONDS = 30  # how long to wait for another process's transaction

# What makes a transaction the only one that writes. The number is an arbitrary name for the lock.
BEGIN_WRITING = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SELECT pg_advisory_xact_lock(7310876491)",
}


class _Pending(NamedTuple, Generic[T]):
    operation: Operation[T]
    future: Future[T]


class Database:
    """An open database. Close it to let go of its connections and its thread."""

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self._reader = _open_reader(self.url)
        self._writer = _open_writer(self.url)
        self._waiting: list[_Pending[Any]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Have the operation run and committed soon; the future resolves when it is durable."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable("The store is closed.", why="The server is stopping.")
            self._waiting.append(_Pending(operation, future))
            self._changed.notify()
        return future

    def write(self, operation: Operation[T]) -> T:
        """What the operation returns, once it is durable."""
        return self.submit(operation).result()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection to read from. Every statement sees the newest commit."""
        with _failures_explained(self._reader), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Finish the waiting writes, then let go. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._reader.dispose()
        self._writer.dispose()

    def _work(self) -> None:
        while group := self._next_group():
            self._commit(group)

    def _next_group(self) -> list[_Pending[Any]]:
        """All that waits, as soon as something does; nothing once the database is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            group = self._waiting[:MAX_GROUP]
            del self._waiting[:MAX_GROUP]
        return group

    def _commit(self, group: list[_Pending[Any]]) -> None:
        running = [pending for pending in group if pending.future.set_running_or_notify_cancel()]
        outcomes: list[Callable[[], None]] = []
        try:
            with _failures_explained(self._writer), self._writer.begin() as connection:
                outcomes = [_run(connection, pending) for pending in running]
        except Exception as error:  # noqa: BLE001 - the callers get it
            for pending in running:
                pending.future.set_exception(error)
        else:
            for resolve in outcomes:
                resolve()


def _run(connection: Connection, pending: _Pending[Any]) -> Callable[[], None]:
    """Run one operation, in a savepoint of its own: it fails alone. Returns what to do after."""
    # By the driver's own cursor: SQLAlchemy's savepoints cost as much as a whole operation.
    savepoints = connection.connection.cursor()
    try:
        savepoints.execute("SAVEPOINT operation")
        try:
            with _failures_explained(connection.engine):
                result = pending.operation(connection)
        except Unavailable:
            raise  # not this operation failed but the database; the whole group is undone
        except Exception as error:  # noqa: BLE001 - the caller gets it
            savepoints.execute("ROLLBACK TO SAVEPOINT operation")
            return partial(pending.future.set_exception, error)
        savepoints.execute("RELEASE SAVEPOINT operation")
        return partial(pending.future.set_result, result)
    finally:
        savepoints.close()


def parse_url(text: str) -> URL:
    """Where a database is; `Invalid` if records cannot be kept there."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise Invalid(
            f"{text!r} is not a database URL.",
            why=str(error),
            fix="Set RUNYARD_DATABASE to sqlite:///FILE or postgresql+psycopg://HOST/DATABASE.",
        ) from error
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    in_memory = url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
    if in_memory or url.get_backend_name() not in BEGIN_WRITING:
        raise Invalid(
            f"Records cannot be kept in {url.render_as_string()}.",
            why="Runyard keeps them in an SQLite file or in PostgreSQL.",
            fix="Set RUNYARD_DATABASE to sqlite:///FILE or postgresql+psycopg://HOST/DATABASE.",
        )
    return url


def _open_reader(url: URL) -> Engine:
    """Connections that read. Each statement is a transaction of its own, which costs nothing."""
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=READERS,
        max_overflow=MORE_READERS,
        pool_pre_ping=url.get_backend_name() != "sqlite",
    )
    if url.get_backend_name() == "sqlite":

        def prepare(connection: Any, _: ConnectionPoolEntry) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
            connection.execute("PRAGMA query_only=ON")

        event.listen(engine, "connect", prepare)
    return engine


def _open_writer(url: URL) -> Engine:
    """The one connection that writes; its transactions shut out those of other processes."""
    sqlite = url.get_backend_name() == "sqlite"
    engine = create_engine(
        url,
        pool_size=1,
        max_overflow=0,
        pool_pre_ping=not sqlite,
        # The driver's own idea of when a transaction begins is not ours.
        connect_args={"isolation_level": None} if sqlite else {},
    )
    if sqlite:
        Path(str(url.database)).absolute().parent.mkdir(parents=True, exist_ok=True)

        def prepare(connection: Any, _: ConnectionPoolEntry) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # a commit survives a power cut
            connection.execute("PRAGMA foreign_keys=ON")

        event.listen(engine, "connect", prepare)

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(BEGIN_WRITING[connection.dialect.name])

    event.listen(engine, "begin", begin)
    return engine


@contextmanager
def _failures_explained(engine: Engine) -> Iterator[None]:
    """Turn a database that cannot be used right now into words; bugs stay what they are."""
    driver = engine.dialect.loaded_dbapi
    try:
        yield
    except (DBAPIError, driver.OperationalError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        # SQLite says DatabaseError itself, not one of its children, of a file that is damaged,
        # and OperationalError also of wrong SQL, which is a bug.
        unusable = isinstance(cause, driver.OperationalError) or type(cause) is driver.DatabaseError
        if not unusable or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            raise
        log.warning("the database failed: %s", cause)
        raise Unavailable(
            f"The database {engine.url.render_as_string()} cannot be used.",
            why=str(cause),
            fix="Check that it runs, has free disk space and is not locked by another program.",
        ) from error
