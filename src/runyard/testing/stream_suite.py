"""What every store promises of streams and artifacts. Subclass it with a `reopen` fixture, as
`runyard.testing.store_suite` shows."""

import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from runyard.domain.data import DatastoreKind, DatastoreRecord
from runyard.domain.errors import Conflict, NotFound
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.runs import RunRecord
from runyard.domain.states import RunState
from runyard.stores.base import EventEffects, Store, Where
from runyard.testing.store_suite import NOW, ODD_NAMES, new_run, scalars, values

MEGABYTE = 1024 * 1024
EVENTS = "events/0.jsonl"


def read_all(store: Store, name: str, *, limit: int = 1000) -> bytes:
    """A whole log, as a reader with a small buffer gets it."""
    parts: list[bytes] = []
    offset = 0
    while part := store.streams.read_log("run", name, offset, limit):
        assert len(part) <= limit
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


class StreamSuite:
    """The promises of `stores.base.Streams`, `Artifacts` and `Notes`."""

    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Store:
        """A store with one run, named `run`."""
        store = reopen()
        store.records.insert(new_run())
        return store

    # Logs

    def test_a_log_grows_at_its_end(self, store: Store) -> None:
        assert store.streams.append_log("run", "log", 0, b"one ") == 4
        assert store.streams.append_log("run", "log", 4, b"two") == 7
        assert store.streams.end("run", "log") == 7
        assert read_all(store, "log", limit=2) == b"one two"
        assert store.streams.read_log("run", "log", 7, 100) == b""
        assert store.streams.read_log("run", "log", 1000, 100) == b""

    def test_an_empty_log_is_there(self, store: Store) -> None:
        assert store.streams.append_log("run", "log", 0, b"") == 0
        assert store.streams.logs("run") == [FileInfo(path="log", size=0)]
        assert store.streams.read_log("run", "log", 0, 10) == b""
        store.streams.seal_logs("run")
        assert store.streams.read_log("run", "log", 0, 10) == b""

    def test_what_is_known_already_is_skipped(self, store: Store) -> None:
        # The agent sends again when the answer was lost, perhaps with more behind it.
        store.streams.append_log("run", "log", 0, b"abcdef")
        assert store.streams.append_log("run", "log", 0, b"abcdef") == 6
        assert store.streams.append_log("run", "log", 2, b"cd") == 6
        assert store.streams.append_log("run", "log", 4, b"efgh") == 8
        assert read_all(store, "log") == b"abcdefgh"

    def test_a_gap_is_refused_with_where_to_go_on(self, store: Store) -> None:
        store.streams.append_log("run", "log", 0, b"abc")
        with pytest.raises(Conflict, match="3"):
            store.streams.append_log("run", "log", 4, b"e")
        with pytest.raises(Conflict):
            store.streams.append_log("run", "new", 1, b"b")
        assert read_all(store, "log") == b"abc"

    def test_a_long_log_in_odd_pieces_reads_as_one(self, store: Store) -> None:
        dice = random.Random(0)
        content = dice.randbytes(9 * MEGABYTE)
        end = 0
        while end < len(content):
            size = dice.choice([1, 100, 8192, 70_000, 3 * MEGABYTE])
            back = min(end, dice.choice([0, 0, 10, 100_000]))
            end = store.streams.append_log(
                "run", "log", end - back, content[end - back : end + size]
            )
        assert read_all(store, "log", limit=700_000) == content
        for _ in range(20):
            start = dice.randrange(len(content))
            limit = dice.choice([1, 5000, 5 * MEGABYTE])
            found = store.streams.read_log("run", "log", start, limit)
            assert found == content[start : start + limit]
        store.streams.seal_logs("run")
        store.streams.seal_logs("run")
        assert read_all(store, "log", limit=MEGABYTE) == content
        (info,) = store.streams.logs("run")
        assert info.size == len(content)

    def test_a_sealed_short_log_is_one_blob(self, store: Store) -> None:
        store.streams.append_log("run", "log", 0, b"text")
        assert store.streams.logs("run")[0].digest is None
        store.streams.seal_logs("run")
        digest = hashlib.sha256(b"text").hexdigest()
        assert store.streams.logs("run") == [FileInfo(path="log", size=4, digest=digest)]
        assert b"".join(store.blobs.open(digest)) == b"text"
        assert read_all(store, "log") == b"text"

    def test_a_sealed_log_that_grows_after_all_loses_nothing(self, store: Store) -> None:
        store.streams.append_log("run", "log", 0, b"text")
        store.streams.seal_logs("run")
        store.streams.append_log("run", "log", 4, b" and more")
        assert read_all(store, "log") == b"text and more"
        assert store.streams.logs("run") == [FileInfo(path="log", size=13)]
        store.streams.seal_logs("run")
        assert read_all(store, "log") == b"text and more"

    def test_logs_are_listed_by_name_whatever_the_name(self, store: Store) -> None:
        for name in ODD_NAMES:
            store.streams.append_log("run", name, 0, name.encode(errors="replace"))
        assert [info.path for info in store.streams.logs("run")] == sorted(ODD_NAMES)
        for name in ODD_NAMES:
            assert read_all(store, name, limit=20_000) == name.encode(errors="replace")

    def test_appending_sealing_and_reading_at_once_fit_together(self, store: Store) -> None:
        content = random.Random(1).randbytes(300_000)
        over = threading.Event()

        def append() -> None:
            end, dice = 0, random.Random(2)
            while end < len(content):
                size = dice.choice([500, 5000, 20_000])  # below and above what a tail holds
                end = store.streams.append_log("run", "log", end, content[end : end + size])

        def seal() -> None:
            while not over.is_set():
                store.streams.seal_logs("run")

        store.streams.append_log("run", "log", 0, b"")
        with ThreadPoolExecutor(2) as pool:
            writing, sealing = pool.submit(append), pool.submit(seal)
            try:
                while not writing.done():
                    found = store.streams.read_log("run", "log", 0, len(content))
                    assert found == content[: len(found)]
            finally:
                over.set()
            writing.result()
            sealing.result()
        assert read_all(store, "log", limit=MEGABYTE) == content

    # Events

    def test_events_are_applied_with_their_end(self, store: Store) -> None:
        effects = EventEffects(points={"run": scalars(1, 2)}, set_tags={"run": {"a": "b"}})
        assert store.streams.append_events("run", EVENTS, 0, 100, effects) == 100
        assert store.streams.end("run", EVENTS) == 100
        assert values(store) == [1, 2]
        run = store.records.get(RunRecord, "run")
        assert (run.tags, run.version) == ({"a": "b"}, 2)
        assert store.records.find(RunRecord, Where(tags={"a": "b"}))[0] == (run,)
        assert store.streams.logs("run") == []  # an event file is not a log

    def test_events_are_applied_once(self, store: Store) -> None:
        effects = EventEffects(points={"run": scalars(1)}, set_tags={"run": {"a": "b"}})
        for _ in range(3):
            assert store.streams.append_events("run", EVENTS, 0, 10, effects) == 10
        assert store.streams.append_events("run", EVENTS, 0, 5, effects) == 10
        assert values(store) == [1]
        assert store.records.get(RunRecord, "run").version == 2

    def test_events_that_overlap_or_leave_a_gap_are_refused_whole(self, store: Store) -> None:
        # Unlike bytes, points cannot be cut in two: the sender has to start at the end.
        store.streams.append_events("run", EVENTS, 0, 10, EventEffects())
        for offset in (0, 5, 11):
            with pytest.raises(Conflict):
                store.streams.append_events(
                    "run",
                    EVENTS,
                    offset,
                    20,
                    EventEffects(points={"run": scalars(1)}, set_tags={"run": {"a": "b"}}),
                )
        assert store.streams.end("run", EVENTS) == 10
        assert values(store) == []
        assert store.records.get(RunRecord, "run").version == 1

    def test_racing_agents_apply_each_chunk_once(self, reopen: Callable[[], Store]) -> None:
        # Server and agent may both have restarted; two senders then repeat the same chunks.
        both = reopen(), reopen()
        both[0].records.insert(new_run())

        def send(sender: int) -> None:
            for i in range(20):
                effects = EventEffects(points={"run": scalars(i)})
                both[sender % 2].streams.append_events("run", EVENTS, i, i + 1, effects)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(send, range(4)))
        assert values(both[0]) == list(range(20))

    def test_events_of_children_reach_them_and_those_of_nobody_are_dropped(
        self, store: Store
    ) -> None:
        store.records.insert(new_run("child", parent="run"))
        effects = EventEffects(
            points={"child": scalars(1), "ghost": scalars(2), "run": scalars(3)},
            set_tags={"child": {"a": None}, "ghost": {"a": "b"}},
            remove_tags={"ghost": ["a"]},
        )
        assert store.streams.append_events("run", EVENTS, 0, 7, effects) == 7
        assert values(store, "child") == [1]
        assert values(store) == [3]
        assert store.records.get(RunRecord, "child").tags == {"a": None}

    def test_tags_of_a_finished_run_may_change(self, store: Store) -> None:
        run = store.records.get(RunRecord, "run")
        run = store.records.replace(
            msgspec.structs.replace(run, state=RunState.COMPLETED, tags={"a": "1", "b": "2"})
        )
        effects = EventEffects(set_tags={"run": {"c": "\udcff"}}, remove_tags={"run": ["a", "x"]})
        store.streams.append_events("run", EVENTS, 0, 9, effects)
        changed = store.records.get(RunRecord, "run")
        assert changed.tags == {"b": "2", "c": "?"}  # what is not Unicode does not block the rest
        assert changed.version == run.version + 1

    def test_a_name_is_a_log_or_an_event_file(self, store: Store) -> None:
        store.streams.append_log("run", "log", 0, b"text")
        with pytest.raises(Conflict):
            store.streams.append_events("run", "log", 4, 5, EventEffects())
        store.streams.append_events("run", EVENTS, 0, 5, EventEffects())
        with pytest.raises(Conflict):
            store.streams.append_log("run", EVENTS, 5, b"text")
        with pytest.raises(NotFound):
            store.streams.read_log("run", EVENTS, 0, 10)

    # Artifacts

    def test_artifacts_are_listed_by_path(self, store: Store) -> None:
        paths = ["outputs/model/a.bin", "outputs/b", "logs/z", "outputs/модель", "%", "a_c"]
        entries = [FileEntry(path, "0" * 64, size) for size, path in enumerate(paths)]
        store.artifacts.put("run", entries)
        assert [info.path for info in store.artifacts.list("run")] == sorted(paths)
        assert [info.path for info in store.artifacts.list("run", "outputs/m")] == [
            "outputs/model/a.bin"
        ]
        assert store.artifacts.list("run", "a%") == []
        assert store.artifacts.list("run", "abc") == []
        assert store.artifacts.get("run", "outputs/модель").size == 3
        with pytest.raises(NotFound):
            store.artifacts.get("run", "outputs")

    def test_a_path_gets_its_new_content(self, store: Store) -> None:
        store.artifacts.put("run", [FileEntry("a", "0" * 64, 1), FileEntry("b", "0" * 64, 1)])
        store.artifacts.put("run", [FileEntry("a", "1" * 64, 2), FileEntry("a", "2" * 64, 3)])
        assert store.artifacts.list("run") == [
            FileInfo(path="a", size=3, digest="2" * 64),
            FileInfo(path="b", size=1, digest="0" * 64),
        ]
        store.artifacts.put("run", [])

    def test_any_path_is_a_path_and_many_are_fine(self, store: Store) -> None:
        entries = [FileEntry(name, "0" * 64, 1) for name in ODD_NAMES]
        entries += [FileEntry(f"outputs/{i}", "0" * 64, 1) for i in range(3000)]
        store.artifacts.put("run", entries)
        assert len(store.artifacts.list("run")) == len(entries)
        for name in ODD_NAMES:
            assert store.artifacts.get("run", name).path == name
            assert name in [info.path for info in store.artifacts.list("run", name)]

    def test_a_datastore_keeps_files_apart_from_a_run_of_the_same_id(self, store: Store) -> None:
        kind = DatastoreKind.MANAGED
        record = DatastoreRecord(id="run", workspace="ws", name="d", kind=kind, created=NOW)
        kept = store.records.insert(record)
        store.artifacts.put("run", [FileEntry("a", "0" * 64, 1)])
        store.artifacts.put("run", [FileEntry("b", "1" * 64, 2)], of=DatastoreRecord)
        assert [info.path for info in store.artifacts.list("run")] == ["a"]
        assert [info.path for info in store.artifacts.list("run", of=DatastoreRecord)] == ["b"]
        with pytest.raises(NotFound):
            store.artifacts.get("run", "a", of=DatastoreRecord)
        store.records.delete(kept)
        assert store.artifacts.list("run", of=DatastoreRecord) == []
        assert [info.path for info in store.artifacts.list("run")] == ["a"]

    def test_artifacts_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.artifacts.put("ghost", [FileEntry("a", "0" * 64, 1)])

    # Notes

    def test_notes_keep_their_order_and_attempts_are_apart(self, store: Store) -> None:
        assert store.notes.add("run", 1, b'{"a": 1}') == 1
        assert store.notes.add("run", 1, b'{"a": 1}') == 2
        assert store.notes.add("run", 2, b"other") == 1
        assert store.notes.add("run", 1, b"\0\xff") == 3
        assert list(store.notes.read("run", 1)) == [b'{"a": 1}', b'{"a": 1}', b"\0\xff"]
        assert list(store.notes.read("run", 1, 2)) == [b"\0\xff"]
        assert list(store.notes.read("run", 1, 3)) == []
        assert list(store.notes.read("run", 2)) == [b"other"]
        assert list(store.notes.read("run", 3)) == []

    def test_notes_of_an_unknown_run_are_refused(self, store: Store) -> None:
        with pytest.raises(NotFound):
            store.notes.add("ghost", 1, b"x")
        assert list(store.notes.read("ghost", 1)) == []

    def test_agents_that_post_at_once_get_places_of_their_own(
        self, reopen: Callable[[], Store]
    ) -> None:
        stores = [reopen(), reopen()]
        stores[0].records.insert(new_run())
        with ThreadPoolExecutor(4) as pool:
            posts = [pool.submit(stores[n % 2].notes.add, "run", 1, b"%d" % n) for n in range(40)]
            places = [post.result() for post in posts]
        assert sorted(places) == list(range(1, 41))
        found = stores[1].notes.read("run", 1)
        assert [found[place - 1] for place in places] == [b"%d" % n for n in range(40)]

    def test_notes_are_gone_with_their_run(self, store: Store) -> None:
        store.notes.add("run", 1, b"x")
        store.records.delete(store.records.get(RunRecord, "run"))
        store.records.insert(new_run())
        assert list(store.notes.read("run", 1)) == []
