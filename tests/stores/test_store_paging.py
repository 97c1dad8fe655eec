"""A page of runs costs what it costs however many runs there are: counted, not timed."""

import json
from typing import Any

from sqlalchemy import Connection, text

from runyard.domain.runs import RunRecord
from runyard.domain.states import ACTIVE, TERMINAL, RunState
from runyard.stores import SqlStore
from runyard.stores.base import Where
from runyard.stores.records import insert_record
from runyard.stores.searches import plan_page
from runyard.testing.store_suite import new_run

PAGE = 20
FEW, MANY = 100, 1000

# Those that say `rare` match only the oldest runs: the worst case for reading newest first.
SEARCHES = {
    "all": Where(),
    "workspace": Where(workspace="ws"),
    "rare workspace": Where(workspace="rare"),
    "experiment": Where(workspace="ws", experiment="exp"),
    "rare experiment": Where(workspace="ws", experiment="rare"),
    "rare top level": Where(workspace="ws", top_level=True),
    "rare top level of experiment": Where(workspace="ws", experiment="exp", top_level=True),
    "parent": Where(workspace="ws", experiment="exp", parent="top"),
    "rare parent": Where(workspace="ws", experiment="exp", parent="rare"),
    "terminal": Where(states=TERMINAL),
    "rare states": Where(states=ACTIVE),
    "rare states of workspace": Where(workspace="ws", states=ACTIVE),
    "rare states of experiment": Where(
        workspace="ws", experiment="exp", states=frozenset({RunState.RUNNING})
    ),
    "tag": Where(workspace="ws", tags={"common": "1"}),
    "rare tag": Where(workspace="ws", experiment="exp", tags={"rare": None}),
    "rare name": Where(workspace="ws", name="rare"),
}


def fill(store: SqlStore, first: int, last: int) -> None:
    """Runs `first` to `last`; the rare ones are among the first."""

    def insert_all(connection: Connection) -> None:
        for i in range(first, last):
            insert_record(connection, some_run(i))

    store.database.write(insert_all)
    if store.database.url.get_backend_name() == "postgresql":
        store.database.write(lambda connection: connection.execute(text("ANALYZE")))


def some_run(i: int) -> RunRecord:
    """Run number `i`."""
    state = RunState.RUNNING if i < 6 else RunState.COMPLETED
    parent = "rare" if i < 3 else "top"
    match i:
        case 10 | 11:
            return new_run(f"r{i}", workspace="rare", parent="top", state=state)
        case 12 | 13:
            return new_run(f"r{i}", experiment="rare", parent="top", state=state)
        case 14 | 15:
            return new_run(f"r{i}", state=state)
        case 16 | 17:
            return new_run(f"r{i}", state=state, parent="top", tags={"rare": "1"})
        case _:
            return new_run(f"r{i}", state=state, parent=parent, tags={"common": "1"})


def cost(connection: Connection, where: Where) -> int:
    """How much the database does for a page."""
    statement = plan_page("run", where, limit=PAGE, before=None)
    if connection.dialect.name == "sqlite":
        return steps(connection, statement)
    return rows_visited(connection, statement)


def steps(connection: Connection, statement: Any) -> int:
    """The steps of SQLite's virtual machine."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(tick, 1)
    connection.execute(statement).all()
    driver.set_progress_handler(None, 1)
    return count


def rows_visited(connection: Connection, statement: Any) -> int:
    """The rows and index entries that PostgreSQL touches."""
    # A table of a thousand rows is scanned whole because it is so small; that is not the question.
    connection.execute(text("SET enable_seqscan = off"))
    sql = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
    (plan,) = connection.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")).one()
    return visited((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


def visited(node: dict[str, Any]) -> int:
    """The rows of a plan's scans."""
    below = sum(visited(child) for child in node.get("Plans", []))
    if "Scan" not in node["Node Type"]:
        return below
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return below + int((node["Actual Rows"] + removed) * node["Actual Loops"])


def test_a_page_out_of_many_costs_the_same_as_out_of_few(store: SqlStore) -> None:
    fill(store, 0, FEW)
    with store.database.read() as connection:
        before = {name: cost(connection, where) for name, where in SEARCHES.items()}
    fill(store, FEW, MANY)
    with store.database.read() as connection:
        after = {name: cost(connection, where) for name, where in SEARCHES.items()}
    grown = {
        name: (before[name], after[name])
        for name in SEARCHES
        if after[name] > 1.5 * max(before[name], PAGE)
    }
    assert not grown, "these searches walk over runs that do not match"


def test_the_cost_of_a_search_without_an_index_would_be_seen(store: SqlStore) -> None:
    # The measure itself: a filter that nothing serves has to show up as growing.
    where = Where(kind="no such kind")
    fill(store, 0, FEW)
    with store.database.read() as connection:
        before = cost(connection, where)
    fill(store, FEW, MANY)
    with store.database.read() as connection:
        assert cost(connection, where) > 3 * before
