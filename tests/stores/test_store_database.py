"""The writer: groups, failures, closing; and migrations."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError

from runyard.domain.errors import Conflict, Invalid, NotFound, Stale, Unavailable
from runyard.domain.runs import RunRecord
from runyard.stores import SqlStore, open_store
from runyard.stores.database import Database
from runyard.stores.migrations import alembic_config
from runyard.stores.records import insert_record
from runyard.stores.schema import HEAD, metadata
from runyard.stores.streams import TAIL_BYTES
from runyard.testing.store_suite import new_run, scalars, values


def held(store: SqlStore) -> threading.Event:
    """Keep the writer busy until the event is set, so that writes gather behind it."""
    release, busy = threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        busy.set()
        release.wait(30)

    store.database.submit(hold)
    assert busy.wait(30)
    return release


def test_waiting_writes_are_one_transaction(store: SqlStore) -> None:
    release = held(store)
    writes = [store.database.submit(lambda c: c.get_transaction()) for _ in range(50)]
    release.set()
    assert len({write.result(30) for write in writes}) == 1


def test_a_lonely_write_is_committed_at_once(store: SqlStore) -> None:
    # Nothing waits for company: the two are two transactions.
    first = store.database.write(lambda c: c.get_transaction())
    assert store.database.write(lambda c: c.get_transaction()) is not first


def test_a_failing_write_does_not_spoil_the_others(store: SqlStore) -> None:
    release = held(store)

    def half_done(connection: Connection) -> None:
        insert_record(connection, new_run("half"))
        raise Stale("too late")

    def broken(connection: Connection) -> None:
        connection.execute(text("SELECT * FROM no_such_table"))

    first = store.database.submit(lambda c: insert_record(c, new_run("first")))
    bad = [store.database.submit(half_done), store.database.submit(broken)]
    last = store.database.submit(lambda c: insert_record(c, new_run("last")))
    release.set()
    assert first.result(30).number == 1
    assert last.result(30).number == 2
    assert isinstance(bad[0].exception(30), Stale)
    assert isinstance(bad[1].exception(30), DBAPIError)  # a bug stays one
    with pytest.raises(NotFound):
        store.records.get(RunRecord, "half")
    assert store.records.get(RunRecord, "last").number == 2


def test_a_write_that_nobody_waits_for_any_more_is_not_done(store: SqlStore) -> None:
    release = held(store)
    gone = store.database.submit(lambda c: insert_record(c, new_run("gone")))
    assert gone.cancel()
    release.set()
    store.records.insert(new_run("next"))
    with pytest.raises(NotFound):
        store.records.get(RunRecord, "gone")


def test_reading_does_not_wait_for_the_writer(store: SqlStore) -> None:
    store.records.insert(new_run())
    release = held(store)
    assert store.records.get(RunRecord, "run").id == "run"
    release.set()


def test_closing_finishes_what_was_handed_in(reopen: Callable[[], SqlStore]) -> None:
    store = reopen()
    release = held(store)
    writes = [
        store.database.submit(lambda c, i=i: insert_record(c, new_run(f"r{i}")))  # type: ignore[misc]
        for i in range(20)
    ]
    release.set()
    store.close()
    store.close()
    assert [write.result(0).number for write in writes] == list(range(1, 21))
    with pytest.raises(Unavailable):
        store.records.insert(new_run("late"))
    assert reopen().records.get(RunRecord, "r19").number == 20


def test_a_lost_connection_is_made_again(postgres_url: str, tmp_path: Path) -> None:
    def cut_all_others(connection: Connection) -> None:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        )

    stores = [open_store(postgres_url, str(tmp_path)) for _ in range(2)]
    stores[0].records.insert(new_run("before"))
    stores[1].database.write(cut_all_others)
    assert stores[0].records.insert(new_run("after")).number == 2
    assert stores[0].records.get(RunRecord, "after").number == 2
    for store in stores:
        store.close()


def test_migrations_make_exactly_the_tables_of_the_schema(store: SqlStore) -> None:
    engine = create_engine(store.database.url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_migrations_and_schema_are_the_same_to_the_letter_on_sqlite(tmp_path: Path) -> None:
    def definitions(url: str) -> set[str]:
        engine = create_engine(url)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))
            texts = {" ".join(str(sql).split()) for sql in found.scalars()}
        engine.dispose()
        return {sql for sql in texts if "alembic_version" not in sql}

    migrated, made = f"sqlite:///{tmp_path}/migrated.db", f"sqlite:///{tmp_path}/made.db"
    open_store(migrated, str(tmp_path)).close()
    engine = create_engine(made)
    metadata.create_all(engine)
    engine.dispose()
    assert definitions(migrated) == definitions(made)


def test_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == HEAD


def test_a_store_of_a_newer_version_is_left_alone(reopen: Callable[[], SqlStore]) -> None:
    store = reopen()
    store.database.write(
        lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    )
    with pytest.raises(Conflict, match="newer") as caught:
        reopen()
    assert "9999" in caught.value.why
    assert "pip install" in caught.value.fix


OPEN = """
import sys
from runyard.stores import open_store
sys.stdin.readline()
store = open_store(*sys.argv[1:])
store.close()
"""


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_processes_that_open_a_new_store_at_once_all_succeed(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'a.db'}"
    if backend == "postgresql":
        url = request.getfixturevalue("postgres_url")
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, url, str(tmp_path / "blobs")],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    errors = [opener.communicate(timeout=60)[1] for opener in openers]
    assert [opener.returncode for opener in openers] == [0] * 4, errors
    engine = create_engine(url)
    assert set(metadata.tables) < set(inspect(engine).get_table_names())
    engine.dispose()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "mysql://host/db", "sqlite:///:memory:"]
)
def test_a_database_that_cannot_serve_is_refused_in_words(url: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        open_store(url, str(tmp_path))
    assert "RUNYARD_DATABASE" in caught.value.fix


def test_an_unreachable_database_is_unavailable_without_its_password(tmp_path: Path) -> None:
    url = f"postgresql://me:geheim@/nothing?host={tmp_path}"
    with pytest.raises(Unavailable) as caught:
        open_store(url, str(tmp_path / "blobs"))
    assert "geheim" not in str(caught.value)


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_bytes(b"this is not a database, it is a long enough text" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        open_store(f"sqlite:///{file}", str(tmp_path / "blobs"))
    assert file.read_bytes().startswith(b"this is not")


def test_a_full_disk_is_said_and_the_store_goes_on_after_it(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db", str(tmp_path / "blobs"))
    store.records.insert(new_run())

    def limit(pages: int) -> Callable[[Connection], None]:
        return lambda connection: connection.execute(text(f"PRAGMA max_page_count={pages}")).close()

    store.database.write(limit(1))  # SQLite takes the present size if that is more
    release = held(store)
    big = scalars("x" * 1_000_000)
    writes = [store.metrics.append_soon("run", points) for points in (scalars(1), big, scalars(2))]
    release.set()
    failed = [write.exception(30) for write in writes]
    assert isinstance(failed[1], Unavailable)
    assert "full" in failed[1].why
    store.database.write(limit(1_000_000))
    store.metrics.append("run", scalars(3))
    kept = [value for value, error in zip((1, None, 2), failed, strict=True) if error is None]
    assert values(store) == [*kept, 3]
    store.close()


def test_an_open_database_does_not_keep_a_program_alive(tmp_path: Path) -> None:
    # A program that forgets to close its store must still end.
    code = f"from runyard.stores import open_store; open_store('sqlite:///{tmp_path}/a.db', 'b')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    Database(f"sqlite:///{tmp_path}/a.db").close()


def test_a_log_that_is_sealed_while_it_is_read_is_read_once(store: SqlStore) -> None:
    # Between the two statements of a read, rows and tail become one blob.
    content = b"a row".ljust(TAIL_BYTES + 1, b".") + b"and a tail"
    store.records.insert(new_run())
    store.streams.append_log("run", "log", 0, content[: TAIL_BYTES + 1])
    store.streams.append_log("run", "log", TAIL_BYTES + 1, content[TAIL_BYTES + 1 :])
    sealed = threading.Event()

    def seal_before_the_rows_are_read(*statement: object) -> None:
        if "FROM segments" in str(statement[2]) and not sealed.is_set():
            sealed.set()
            thread = threading.Thread(target=store.streams.seal_logs, args=["run"])
            thread.start()
            thread.join()

    with store.database.read() as connection:
        reader = connection.engine
    event.listen(reader, "before_cursor_execute", seal_before_the_rows_are_read)
    assert store.streams.read_log("run", "log", 0, 2 * len(content)) == content
    assert sealed.is_set()
