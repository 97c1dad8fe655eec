"""One conductor a database: two would both take up its unfinished runs and start them twice."""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from runyard.domain.errors import Conflict, Unavailable
from runyard.stores.database import parse_url

log = logging.getLogger(__name__)

WAIT_SECONDS = 3.0  # a server that was killed lets go a moment after it is gone
STEP_SECONDS = 0.05
WATCH_SECONDS = 5.0
_LOCK = 7310876492  # an arbitrary name for the lock, next to the writers' own
# A connection whose other end has vanished is given up after about half a minute, on both sides.
_ALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
}


@contextmanager
def sole_conductor(
    database_url: str,
    *,
    lost: Callable[[], None],
    wait_seconds: float = WAIT_SECONDS,
    watch_seconds: float = WATCH_SECONDS,
) -> Iterator[None]:
    """Be the only one who conducts the runs of this database; `Conflict` if somebody else does.

    A dead process holds nothing. `lost` is called, from another thread, if the lock goes away
    meanwhile (a file's cannot, PostgreSQL's goes with its connection); stop then.
    """
    url = parse_url(database_url)
    with ExitStack() as stack:
        if url.get_backend_name() == "sqlite":
            take = stack.enter_context(_file_lock(url))
        else:
            connection = stack.enter_context(_lock_connection(url))
            take = _advisory_lock(connection)
        deadline = time.monotonic() + wait_seconds
        while not take():
            if time.monotonic() > deadline:
                raise Conflict(
                    f"Another server works on the database {url.render_as_string()}.",
                    why="Two of them would start its runs twice.",
                    fix="Use that server (set RUNYARD_URL and RUNYARD_TOKEN), stop it first, "
                    "or set RUNYARD_DATABASE to a database of this server's own.",
                )
            time.sleep(STEP_SECONDS)
        if url.get_backend_name() != "sqlite":
            stack.enter_context(_watched(connection, lost, watch_seconds))
        yield


@contextmanager
def _file_lock(url: URL) -> Iterator[Callable[[], bool]]:
    """A way to try for the lock on a file beside the database; it is let go at the end."""
    file = Path(str(url.database)).resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(file.with_name(f"{file.name}.lock"), flags, 0o600)

    def take() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        yield take
    finally:
        os.close(descriptor)


@contextmanager
def _lock_connection(url: URL) -> Iterator[Connection]:
    more = {name: value for name, value in _ALIVE.items() if name not in url.query}
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool, connect_args=more)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise Unavailable(
            f"The database {url.render_as_string()} cannot be used.",
            why=str(error.orig),
            fix="Check that it runs and that the address is right.",
        ) from error
    try:
        yield connection
    finally:
        connection.invalidate()  # the lock goes with it; it may be broken, so nothing is said
        connection.close()


def _advisory_lock(connection: Connection) -> Callable[[], bool]:
    return lambda: bool(connection.scalar(text(f"SELECT pg_try_advisory_lock({_LOCK})")))


@contextmanager
def _watched(
    connection: Connection, lost: Callable[[], None], every_seconds: float
) -> Iterator[None]:
    """Ask the connection that holds the lock whether it lives, from time to time."""
    over, why = threading.Event(), ""

    def watch() -> None:
        nonlocal why
        while not over.wait(every_seconds):
            try:
                connection.scalar(text("SELECT 1"))
            except DBAPIError as error:
                why = str(error.orig).strip() or type(error.orig).__name__
                log.error("the server's lock on the database is lost, so it stops: %s", why)
                lost()
                return

    thread = threading.Thread(target=watch, name="store-lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if why:
        raise Unavailable(
            "The server stopped because it lost its lock on the database.",
            why=why,
            fix="Start it again when the database runs: runyard up --detach   Jobs go on.",
        )
