"""Only one server at a time conducts the runs of a database."""

import subprocess
import sys
import threading

import pytest
from sqlalchemy import create_engine, text

from runyard.domain.errors import Conflict, Unavailable
from runyard.stores.conducting import sole_conductor


def never() -> None:
    raise AssertionError("the lock was lost")


def test_a_second_conductor_is_refused_until_the_first_is_done(database_url: str) -> None:
    with (
        sole_conductor(database_url, lost=never),
        pytest.raises(Conflict, match="Another server") as refused,
        sole_conductor(database_url, lost=never, wait_seconds=0),
    ):
        pass
    assert "RUNYARD_DATABASE" in refused.value.fix
    with sole_conductor(database_url, lost=never, wait_seconds=0):
        pass


def test_a_dead_conductor_holds_nothing(database_url: str) -> None:
    hold = (
        "import sys; from runyard.stores.conducting import sole_conductor\n"
        "with sole_conductor(sys.argv[1], lost=print):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, database_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(Conflict),
            sole_conductor(database_url, lost=never, wait_seconds=0),
        ):
            pass
        other.kill()
    with sole_conductor(database_url, lost=never):
        pass


def test_a_lock_whose_connection_breaks_is_noticed(postgres_url: str) -> None:
    lost = threading.Event()
    ends = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"

    def watch_while_it_breaks() -> None:
        with sole_conductor(postgres_url, lost=lost.set, watch_seconds=0.01):
            engine = create_engine(postgres_url)
            with engine.begin() as connection:
                connection.execute(text(ends))
            engine.dispose()
            assert lost.wait(30)

    with pytest.raises(Unavailable, match="lost its lock"):
        watch_while_it_breaks()
    with sole_conductor(postgres_url, lost=never):
        pass


def test_a_database_that_is_not_there_is_said(postgres_url: str) -> None:
    for url in (postgres_url + "/nowhere", "postgresql://127.0.0.1:1/nothing"):
        with pytest.raises(Unavailable, match="cannot be used"), sole_conductor(url, lost=never):
            pass
