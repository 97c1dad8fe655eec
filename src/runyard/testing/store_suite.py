"""What every store promises of records and metrics. Subclass it and give it a `reopen` fixture:

class TestMyStore(StoreSuite):
    @pytest.fixture
    def reopen(self) -> Iterator[Callable[[], Store]]:
        ...  # a function that opens the same, at first empty store, each time it is called
"""

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest

from runyard.domain.data import (
    DatasetRecord,
    DatasetSpec,
    DatastoreKind,
    DatastoreRecord,
    Step,
    StoreSource,
)
from runyard.domain.errors import Conflict, Invalid, NotFound, Stale
from runyard.domain.files import FileEntry
from runyard.domain.metrics import MetricKind, Point
from runyard.domain.models import ModelDataset, ModelRecord
from runyard.domain.runs import RunKind, RunRecord, RunSpec
from runyard.domain.states import ACTIVE, RunState
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord
from runyard.stores.base import Store, Where

NOW = datetime(2026, 11, 15, 10, 30, tzinfo=UTC)
ODD_NAMES = [
    "loss/val/top-5",
    "x" * 10_000,
    "Größe – 損失 🏃",
    "with 'quotes' \"and\" \\ and %s and ;--",
    "line\nbreak\ttab",
    "NUL\0inside",
    "undecodable \udcff byte",
    "",
    " ",
]

# Of the runs in `test_filters_narrow_the_search`, newest first.
SEARCHES: list[tuple[Where, str]] = [
    (Where(), "gfedcba"),
    (Where(workspace="ws"), "fedcba"),
    (Where(workspace="ws", experiment="exp"), "fecba"),
    (Where(experiment="exp2"), "gd"),
    (Where(parent="a"), "cb"),
    (Where(parent="a", workspace="elsewhere"), ""),
    (Where(workspace="ws", top_level=True), "feda"),
    (Where(workspace="ws", experiment="exp", top_level=True), "fea"),
    (Where(states=frozenset({RunState.RUNNING})), "ea"),
    (Where(states=frozenset({RunState.RUNNING, RunState.QUEUED})), "fea"),
    (Where(states=ACTIVE, workspace="ws", experiment="exp2"), "d"),
    (Where(states=ACTIVE, parent="a"), "b"),
    (Where(kind=RunKind.INTERACTIVE), "g"),
    (Where(tags={"best": None}), "db"),
    (Where(tags={"best": "yes"}), "b"),
    (Where(tags={"best": "yes", "size": "1"}), "b"),
    (Where(tags={"best": "yes", "size": "2"}), ""),
    (Where(tags={"best": None}, workspace="ws", experiment="exp2"), "d"),
    (Where(tags={"best": None}, states=frozenset({RunState.RUNNING})), ""),
    (Where(properties={"best": None}), "f"),
    (Where(properties={"best": "yes"}, tags={"size": None}), "f"),
    (Where(tags={"損" * 3000: None}), "e"),
    (Where(name="nobody"), ""),
]


def new_run(
    id: str = "run",
    *,
    workspace: str = "ws",
    experiment: str = "exp",
    parent: str | None = None,
    kind: RunKind = RunKind.SCRIPT,
    state: RunState = RunState.NOT_STARTED,
    tags: dict[str, str | None] | None = None,
    properties: dict[str, str] | None = None,
) -> RunRecord:
    """A run as the server would make it."""
    spec = RunSpec(workspace=workspace, experiment=experiment, parent=parent, kind=kind)
    return RunRecord(
        id=id,
        uid=id,
        spec=spec,
        state=state,
        created=NOW,
        tags=tags or {},
        properties=properties or {},
    )


def scalars(*values: object, name: str = "loss") -> list[Point]:
    """Points of one series."""
    return [Point(name=name, value=value, time=1.5) for value in values]


def values(store: Store, run_id: str = "run", name: str = "loss") -> list[object]:
    """The values of a series that is the only one of its name."""
    found = store.metrics.series(run_id, name)
    assert len(found) <= 1
    return found[0].values if found else []


def ids(records: Sequence[RunRecord]) -> list[str]:
    """The ids of runs, in order."""
    return [record.id for record in records]


class StoreSuite:
    """The promises of `stores.base.Records` and `stores.base.Metrics`."""

    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Store:
        """An empty store."""
        return reopen()

    # Records

    def test_a_record_comes_back_as_it_was(self, store: Store) -> None:
        workspace = WorkspaceRecord(id="w", name="ws", created=NOW, tags={"a": None})
        run = new_run(tags={"Größe": "損失 🏃", "none": None}, properties={"nul": "\0"})
        assert store.records.insert(workspace) == msgspec.structs.replace(workspace, version=1)
        assert store.records.insert(run) == msgspec.structs.replace(run, version=1, number=1)
        assert store.records.get(WorkspaceRecord, "w").tags == {"a": None}
        assert store.records.get(RunRecord, "run") == msgspec.structs.replace(
            run, version=1, number=1
        )

    def test_models_are_numbered_by_name_and_found_by_what_they_come_from(
        self, store: Store
    ) -> None:
        def keep(id: str, name: str = "m", workspace: str = "ws", **more: object) -> ModelRecord:
            files = (FileEntry("model.pkl", "0" * 64, 3),)
            model = ModelRecord(
                id=id, workspace=workspace, name=name, manifest=files, size=3, created=NOW
            )
            return store.records.insert(msgspec.structs.replace(model, **more))

        def found(**where: object) -> list[str]:
            page, _ = store.records.find(ModelRecord, msgspec.convert(where, Where))
            return [model.id for model in page]

        use = ModelDataset(purpose="Größe", dataset="d1")
        first = keep("a", run="r1", framework="Onnx", tags={"stage": None})
        second = keep("b", run="r2", datasets=(use,), properties={"p": "1"})
        assert [first.number, second.number] == [1, 2]
        assert keep("c", name="n").number == keep("d", workspace="elsewhere").number == 1
        assert found(workspace="ws", name="m") == ["b", "a"]
        assert found(parent="r1") == found(tags={"stage": None}) == ["a"]
        assert found(properties={"runyard.framework": "Onnx"}) == ["a"]
        assert found(properties={"runyard.dataset.d1": None, "p": "1"}) == ["b"]
        # The number of one that is gone is not given again: somebody may have written it down.
        store.records.delete(second)
        assert keep("e").number == 3
        # And runs are counted for themselves.
        assert store.records.insert(new_run(experiment="m")).number == 1

    def test_a_models_contents_outlive_the_run_that_made_them(self, store: Store) -> None:
        data = b"weights"
        digest = hashlib.sha256(data).hexdigest()
        store.blobs.put(digest, [data])
        run = store.records.insert(new_run())
        entry = FileEntry("outputs/model.pkl", digest, len(data))
        store.artifacts.put(run.id, [entry])
        model = ModelRecord(
            id="m", workspace="ws", name="m", manifest=(entry,), size=7, created=NOW, run=run.id
        )
        store.records.insert(model)
        store.records.delete(run)
        kept = store.records.get(ModelRecord, "m")
        assert (kept.run, kept.manifest) == (run.id, (entry,))
        assert b"".join(store.blobs.open(kept.manifest[0].digest)) == data

    def test_datastores_and_datasets_are_found_as_everything_is(self, store: Store) -> None:
        remote = DatastoreKind.REMOTE
        place = DatastoreRecord(id="d", workspace="ws", name="pool", kind=remote, created=NOW)
        spec = DatasetSpec(
            sources=(StoreSource(datastore="pool", path="a/**"),),
            steps=(Step(op="take", arguments={"count": 3}),),
        )
        recipe = DatasetRecord(
            id="d", workspace="ws", name="digits", number=2, spec=spec, created=NOW, tags={"a": "b"}
        )
        place, recipe = store.records.insert(place), store.records.insert(recipe)
        assert store.records.get(DatasetRecord, "d") == recipe
        by_name = Where(workspace="ws", name="pool")
        assert store.records.find(DatastoreRecord, by_name) == ((place,), None)
        assert store.records.find(DatasetRecord, Where(tags={"a": "b"})) == ((recipe,), None)
        assert store.records.find(DatasetRecord, Where(workspace="other")) == ((), None)
        store.records.delete(place)
        assert store.records.find(DatastoreRecord, by_name) == ((), None)

    def test_an_id_is_taken_once_per_kind(self, store: Store) -> None:
        store.records.insert(new_run("same"))
        with pytest.raises(Conflict, match="same"):
            store.records.insert(new_run("same", experiment="other"))
        store.records.insert(ExperimentRecord(id="same", workspace="ws", name="exp", created=NOW))

    @pytest.mark.parametrize("id", ["ghost", "", "nul\0", "損失", "' OR 1=1 --"])
    def test_what_is_not_there_is_not_found(self, store: Store, id: str) -> None:
        with pytest.raises(NotFound):
            store.records.get(RunRecord, id)
        assert store.metrics.series(id) == []
        assert store.streams.end(id, "log") == 0
        assert store.streams.logs(id) == []
        assert store.artifacts.list(id) == []
        with pytest.raises(NotFound):
            store.artifacts.get(id, "a")
        with pytest.raises(NotFound):
            store.streams.read_log(id, "log", 0, 10)
        with pytest.raises(NotFound):
            store.metrics.append(id, scalars(1))
        with pytest.raises(NotFound):
            store.streams.append_log(id, "log", 0, b"x")

    def test_runs_are_numbered_within_their_experiment(self, store: Store) -> None:
        numbers = [
            store.records.insert(new_run(f"{experiment}{i}", experiment=experiment)).number
            for i in range(2)
            for experiment in ("a", "b")
        ]
        assert numbers == [1, 1, 2, 2]

    def test_a_number_is_not_spent_on_a_refused_run(self, store: Store) -> None:
        store.records.insert(new_run("a"))
        with pytest.raises(Conflict):
            store.records.insert(new_run("a"))
        assert store.records.insert(new_run("b")).number == 2

    def test_replacing_needs_the_present_version(self, store: Store) -> None:
        first = store.records.insert(new_run())
        second = store.records.replace(msgspec.structs.replace(first, waiting="for nodes"))
        assert second.version == 2
        with pytest.raises(Stale):
            store.records.replace(msgspec.structs.replace(first, waiting="in vain"))
        assert store.records.get(RunRecord, "run").waiting == "for nodes"
        with pytest.raises(NotFound):
            store.records.replace(new_run("ghost"))

    def test_replacing_without_waiting_keeps_the_order_and_the_rules(self, store: Store) -> None:
        first = store.records.insert(new_run())
        soon = store.records.replace_soon(msgspec.structs.replace(first, waiting="for nodes"))
        late = store.records.replace_soon(msgspec.structs.replace(first, waiting="in vain"))
        assert soon.result().version == 2
        with pytest.raises(Stale):
            late.result()
        assert store.records.get(RunRecord, "run").waiting == "for nodes"

    def test_one_of_many_racing_writers_wins(self, reopen: Callable[[], Store]) -> None:
        # Two servers on one database must not both move a run on.
        one, other = reopen(), reopen()
        run = one.records.insert(new_run())

        def change(number: int) -> bool:
            store = one if number % 2 else other
            try:
                store.records.replace(msgspec.structs.replace(run, waiting=str(number)))
            except Stale:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(change, range(16))) == 1
        assert one.records.get(RunRecord, "run").version == 2

    def test_two_stores_number_runs_together(self, reopen: Callable[[], Store]) -> None:
        both = reopen(), reopen()
        with ThreadPoolExecutor(4) as pool:
            runs = pool.map(lambda i: both[i % 2].records.insert(new_run(f"r{i}")), range(20))
            assert sorted(run.number for run in runs) == list(range(1, 21))

    def test_deleting_a_run_leaves_nothing_of_it(self, store: Store) -> None:
        run = store.records.insert(new_run(tags={"a": "b"}))
        store.metrics.append("run", scalars(*range(1000)))
        store.streams.append_log("run", "log", 0, b"text")
        store.artifacts.put("run", [FileEntry("a", "0" * 64, 1)])
        with pytest.raises(Stale):
            store.records.delete(msgspec.structs.replace(run, version=7))
        store.records.delete(run)
        with pytest.raises(NotFound):
            store.records.delete(run)
        again = store.records.insert(new_run())
        assert again.number == 2  # numbers are not given out twice
        assert store.metrics.series("run") == []
        assert store.streams.logs("run") == []
        assert store.artifacts.list("run") == []
        assert store.records.find(RunRecord, Where(tags={"a": None})) == ((), None)

    # Finding

    def test_newest_come_first_page_by_page(self, store: Store) -> None:
        for i in range(7):
            store.records.insert(new_run(f"r{i}"))
        seen: list[str] = []
        after = None
        for expected in (3, 3, 1):
            page, after = store.records.find(RunRecord, Where(), limit=3, after=after)
            assert len(page) == expected
            seen += ids(page)
        assert after is None
        assert seen == [f"r{i}" for i in reversed(range(7))]

    def test_a_full_last_page_says_that_it_is_the_last(self, store: Store) -> None:
        for i in range(4):
            store.records.insert(new_run(f"r{i}"))
        _, after = store.records.find(RunRecord, Where(), limit=2)
        page, after = store.records.find(RunRecord, Where(), limit=2, after=after)
        assert (ids(page), after) == (["r1", "r0"], None)

    def test_pages_neither_repeat_nor_skip_while_runs_come_and_go(self, store: Store) -> None:
        for i in range(10):
            store.records.insert(new_run(f"r{i}"))
        page, after = store.records.find(RunRecord, Where(), limit=4)
        store.records.insert(new_run("later"))
        store.records.delete(store.records.get(RunRecord, "r6"))  # the last one that was seen
        rest, _ = store.records.find(RunRecord, Where(), limit=100, after=after)
        assert ids(page) + ids(rest) == [f"r{i}" for i in reversed(range(10))]

    @pytest.mark.parametrize("after", ["", "x", "-1", "1; DROP TABLE records", "9" * 40])
    def test_a_made_up_cursor_is_invalid(self, store: Store, after: str) -> None:
        with pytest.raises(Invalid):
            store.records.find(RunRecord, Where(), after=after)

    def test_filters_narrow_the_search(self, store: Store) -> None:
        running, queued = RunState.RUNNING, RunState.QUEUED
        for run in (
            new_run("a", state=running),
            new_run("b", parent="a", tags={"best": "yes", "size": "1"}),
            new_run("c", parent="a", state=RunState.COMPLETED),
            new_run("d", experiment="exp2", tags={"best": None}),
            new_run("e", state=running, tags={"損" * 3000: "\0" * 3000}),
            new_run("f", state=queued, properties={"best": "yes"}, tags={"size": "2"}),
            new_run("g", workspace="ws2", experiment="exp2", kind=RunKind.INTERACTIVE),
        ):
            store.records.insert(run)
        for where, expected in SEARCHES:
            found, after = store.records.find(RunRecord, where)
            assert "".join(ids(found)) == expected, where
            assert after is None
            assert sum(store.records.count(where).values()) == len(expected), where
            # The same, one at a time: the cursor holds for every kind of search.
            one_by_one: list[str] = []
            while True:
                page, after = store.records.find(RunRecord, where, limit=1, after=after)
                one_by_one += ids(page)
                if after is None:
                    break
            assert "".join(one_by_one) == expected, where

    def test_a_search_follows_changes_of_state_and_tags(self, store: Store) -> None:
        run = store.records.insert(new_run(tags={"old": "1", "kept": "1"}))
        store.records.replace(
            msgspec.structs.replace(
                run, state=RunState.RUNNING, tags={"kept": "1", "new": "1"}, display_name="Bob"
            )
        )
        for where, there in (
            (Where(states=frozenset({RunState.NOT_STARTED})), False),
            (Where(states=frozenset({RunState.RUNNING})), True),
            (Where(tags={"old": None}), False),
            (Where(tags={"kept": "1"}), True),
            (Where(tags={"new": "1"}), True),
            (Where(name="Bob"), True),
        ):
            assert bool(store.records.find(RunRecord, where)[0]) is there, where

    def test_workspaces_and_experiments_are_found_by_name(self, store: Store) -> None:
        store.records.insert(WorkspaceRecord(id="w1", name="ws", created=NOW))
        store.records.insert(WorkspaceRecord(id="w2", name="other", created=NOW))
        for workspace in ("ws", "other"):
            store.records.insert(
                ExperimentRecord(id=f"{workspace}/e", workspace=workspace, name="e", created=NOW)
            )
        workspaces, _ = store.records.find(WorkspaceRecord, Where(name="ws"))
        experiments, _ = store.records.find(ExperimentRecord, Where(workspace="ws", name="e"))
        assert [found.id for found in workspaces] == ["w1"]
        assert [found.id for found in experiments] == ["ws/e"]
        assert store.records.find(RunRecord, Where(workspace="ws")) == ((), None)

    def test_runs_are_counted_by_state(self, store: Store) -> None:
        for i, state in enumerate([RunState.RUNNING, RunState.RUNNING, RunState.FAILED]):
            store.records.insert(new_run(f"r{i}", state=state))
        assert store.records.count(Where()) == {RunState.RUNNING: 2, RunState.FAILED: 1}
        assert store.records.count(Where(workspace="other")) == {}

    # Metrics

    def test_odd_values_come_back_as_they_were(self, store: Store) -> None:
        store.records.insert(new_run())
        logged: list[object] = [
            0.1,
            math.inf,
            -math.inf,
            -0.0,
            5e-324,
            7,
            2**63,
            2**64,
            -(10**400),
            True,
            None,
            "text",
            "NUL\0 損失 🏃",
            "undecodable \udcff",
            [1, [2.5, None], {"a": [math.inf]}],
            {"k": {"deep": 2**70}, "ключ": "\udcff"},
            [],
            {},
            "x" * 100_000,
        ]
        store.metrics.append("run", scalars(*logged, math.nan))
        *found, last = values(store)
        assert found == logged
        assert [type(value) for value in found] == [type(value) for value in logged]
        assert isinstance(last, float)
        assert math.isnan(last)

    def test_any_name_is_a_name(self, store: Store) -> None:
        store.records.insert(new_run())
        store.metrics.append("run", [Point(name=name, value=1) for name in ODD_NAMES])
        store.metrics.append("run", [Point(name=name, value=2) for name in ODD_NAMES])
        assert [series.name for series in store.metrics.series("run")] == ODD_NAMES
        for name in ODD_NAMES:
            assert values(store, name=name) == [1, 2]

    def test_series_keep_the_order_they_appeared_in(self, store: Store) -> None:
        store.records.insert(new_run())
        names = ["z", "a", "m", "b"]
        for name in names:
            store.metrics.append("run", [Point(name=name, value=1), Point(name="z", value=2)])
        assert [series.name for series in store.metrics.series("run")] == names

    def test_the_same_name_in_two_kinds_is_two_series(self, store: Store) -> None:
        store.records.insert(new_run())
        store.metrics.append("run", [Point(name="x", value=1)])
        store.metrics.append("run", [Point(name="x", value=[1, 2], kind=MetricKind.LIST)])
        found = store.metrics.series("run", "x")
        assert [(one.kind, one.values) for one in found] == [
            (MetricKind.SCALAR, [1]),
            (MetricKind.LIST, [[1, 2]]),
        ]

    def test_steps_and_times_stay_with_their_values(self, store: Store) -> None:
        store.records.insert(new_run())
        steps = [None, 5, None, 2**70, -1]
        for step in steps[:3]:
            store.metrics.append("run", [Point(name="x", value=0, step=step, time=0.25)])
        store.metrics.append("run", [Point(name="x", value=0, step=step) for step in steps[3:]])
        (found,) = store.metrics.series("run")
        assert found.steps == steps
        assert found.times == [0.25, 0.25, 0.25, 0.0, 0.0]

    @pytest.mark.parametrize(
        "sizes",
        [[1] * 300, [1, 5000, 1, 1], [300, 1, 300], [70] * 9],
        ids=["one by one", "a big one between", "a small one between", "all alike"],
    )
    def test_points_keep_their_order_however_they_come(
        self, store: Store, sizes: list[int]
    ) -> None:
        store.records.insert(new_run())
        total = 0
        for size in sizes:
            store.metrics.append("run", scalars(*range(total, total + size)))
            total += size
        assert values(store) == list(range(total))

    def test_many_writers_at_once_lose_nothing(self, store: Store) -> None:
        store.records.insert(new_run())

        def write(writer: int) -> None:
            for i in range(20):
                store.metrics.append("run", scalars([writer, i]))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))
        found = values(store)
        assert len(found) == 160
        for writer in range(8):
            mine = [value for value in found if isinstance(value, list) and value[0] == writer]
            assert mine == [[writer, i] for i in range(20)]

    def test_reading_while_writing_sees_no_holes(self, store: Store) -> None:
        store.records.insert(new_run())
        done = threading.Event()

        def write() -> None:
            for i in range(0, 300, 3):
                store.metrics.append("run", scalars(i, i + 1, i + 2))
            done.set()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(write)
            while not done.is_set():
                found = values(store)
                assert found == list(range(len(found)))
        assert len(values(store)) == 300

    def test_a_point_that_cannot_be_kept_spoils_nothing(self, store: Store) -> None:
        store.records.insert(new_run())
        with pytest.raises(TypeError):
            store.metrics.append("run", [*scalars(1), *scalars(object())])
        store.metrics.append("run", scalars(2))
        assert values(store) == [2]
