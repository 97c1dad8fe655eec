"""The conductor over a real store, with a fake engine and a fake builder behind their seams."""

import hashlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.conductor.conductor import SAVES_AT_ONCE, Conductor
from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import (
    BlobsMissing,
    Conflict,
    EngineFailed,
    Invalid,
    NotFound,
    Unavailable,
    Unsupported,
)
from runyard.domain.files import FileEntry, Manifest, manifest_digest
from runyard.domain.runs import (
    LauncherSpec,
    RunError,
    RunPatch,
    RunRecord,
    RunSpec,
    ScriptSpec,
    Submission,
)
from runyard.domain.states import TERMINAL, RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import JobId
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.stores.base import Records, Store
from runyard.testing.fake_builder import FakeBuilder
from runyard.testing.fake_engine import FakeEngine
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
S = RunState
EMPTY: Manifest = ()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    opened.records.insert(WorkspaceRecord(id="w1", name="ws", created=NOW))
    yield opened
    opened.close()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def builder() -> FakeBuilder:
    return FakeBuilder("slow", "broken")


Start = Callable[[], Conductor]


@pytest.fixture
def start(
    tmp_path: Path, store: Store, engine: FakeEngine, builder: FakeBuilder
) -> Iterator[Start]:
    """Starts a conductor; calling it again stops the one before, as a new server would find it."""
    running: list[Conductor] = []

    def begin() -> Conductor:
        while running:
            running.pop().stop()
        conductor = Conductor(
            store,
            Settings(home=tmp_path, local_slots=2),
            b"secret",
            Changes(),
            lambda: "http://127.0.0.1:1",
            engine=engine,
            builders=[builder],
        )
        conductor.start()
        running.append(conductor)
        return conductor

    yield begin
    builder.finish.set()
    for conductor in running:
        conductor.stop()


def submission(environment: str = "ready", **fields: object) -> Submission:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=manifest_digest(EMPTY),
        environment=EnvironmentSpec(name=environment),
    )
    script = msgspec.structs.replace(script, **fields)
    return Submission(spec=RunSpec(workspace="ws", experiment="exp", script=script), manifest=EMPTY)


def until(check: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def state_of(store: Store, run: RunRecord) -> RunState:
    return store.records.get(RunRecord, run.id).state


def job_of(run: RunRecord) -> JobId:
    return JobId(f"{run.uid}-1")


def finish(store: Store, conductor: Conductor, run: RunRecord, exit_code: int = 0) -> None:
    """What an agent says when the script is over."""
    ended = (RankEnd(rank=0, exit_code=exit_code),)
    runs.report(store, run.id, AgentReport(attempt=1, phase=wire.STARTED), NOW)
    runs.report(store, run.id, AgentReport(attempt=1, phase=wire.FINISHED, ranks=ended), NOW)
    conductor.wake(run.id)


def submit(store: Store, conductor: Conductor, wanted: Submission) -> RunRecord:
    run = runs.submit(store, wanted, NOW)
    conductor.wake(run.id)
    return run


def test_a_ready_run_starts_and_ends(store: Store, engine: FakeEngine, start: Start) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts == [job_of(run)])
    finish(store, conductor, run)
    assert state_of(store, run) is S.COMPLETED
    engine.end(job_of(run))
    until(lambda: not engine.jobs())  # nothing of it is kept


def test_only_as_many_run_as_there_are_slots_in_the_order_they_came(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    all_runs = [submit(store, conductor, submission()) for _ in range(5)]
    until(lambda: len(engine.starts) == 2)
    until(lambda: state_of(store, all_runs[4]) is S.QUEUED)
    waiting = conductor.describe([store.records.get(RunRecord, all_runs[3].id)])[0].waiting
    assert waiting == "waits for a free slot on 'local': 2 of 2 in use, place 2 of 3 in line"
    for count, run in enumerate(all_runs[:3], start=3):
        finish(store, conductor, run)
        until(lambda count=count: len(engine.starts) == count)  # type: ignore[misc]
    assert engine.starts == [job_of(run) for run in all_runs]


def test_one_build_serves_all_who_wait_and_each_has_the_log(
    store: Store, builder: FakeBuilder, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    all_runs = [submit(store, conductor, submission("slow")) for _ in range(20)]
    until(lambda: all(state_of(store, run) is S.PREPARING for run in all_runs))
    builder.finish.set()
    until(lambda: len(engine.starts) == 2)
    assert builder.builds == 1
    for run in all_runs:
        assert store.streams.read_log(run.id, wire.BUILD_LOG, 0, 99) == b"building slow\nbuilt\n"


def test_who_finds_the_environment_built_does_not_overtake_those_who_waited_for_it(
    store: Store, builder: FakeBuilder, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    all_runs = [submit(store, conductor, submission("slow")) for _ in range(3)]
    until(lambda: all(state_of(store, run) is S.PREPARING for run in all_runs))
    builder.slow.clear()  # it is built, and nobody has been told so yet
    all_runs.append(submit(store, conductor, submission("slow")))
    until(lambda: state_of(store, all_runs[3]) is S.QUEUED)
    builder.finish.set()
    for count, run in enumerate(all_runs[:2], start=3):
        finish(store, conductor, run)
        until(lambda count=count: len(engine.starts) == count)  # type: ignore[misc]
    assert engine.starts == [job_of(run) for run in all_runs]
    log = b"building slow\nbuilt\n"
    for run in all_runs[:3]:
        until(lambda run=run: store.streams.read_log(run.id, wire.BUILD_LOG, 0, 99) == log)  # type: ignore[misc]


def test_a_failed_build_ends_the_run_with_the_reason(
    store: Store, builder: FakeBuilder, start: Start
) -> None:
    builder.error = EngineFailed("No such package 'nonsense'.", fix="Mind the spelling.")
    builder.finish.set()
    run = submit(store, start(), submission("broken"))
    until(lambda: state_of(store, run) is S.FAILED)
    error = store.records.get(RunRecord, run.id).error
    assert error is not None
    assert error.code == "EnvironmentFailed"
    assert "nonsense" in error.message


def test_a_run_canceled_while_its_environment_is_built_never_starts(
    store: Store, builder: FakeBuilder, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission("slow"))
    until(lambda: builder.builds == 1)
    assert runs.cancel(store, run.id, NOW).state is S.CANCELED
    builder.finish.set()
    other = submit(store, conductor, submission())
    until(lambda: engine.starts)
    assert engine.starts == [job_of(other)]


def test_canceling_stops_the_job_and_waits_for_its_agent(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    runs.cancel(store, run.id, NOW)
    conductor.wake(run.id)
    until(lambda: engine.stopped)
    assert state_of(store, run) is S.CANCEL_REQUESTED
    finish(store, conductor, run, exit_code=-15)
    assert state_of(store, run) is S.CANCELED


def test_a_lost_agent_is_replaced_and_the_run_goes_on(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    engine.lose(job_of(run))
    until(lambda: len(engine.starts) == 2)
    finish(store, conductor, run)
    after = store.records.get(RunRecord, run.id)
    assert (after.state, after.takeovers) == (S.COMPLETED, 1)


def test_an_engine_that_refuses_fails_the_run(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    engine.refuse = OSError("no space left on device")
    run = submit(store, start(), submission())
    until(lambda: state_of(store, run) is S.FAILED)
    error = store.records.get(RunRecord, run.id).error
    assert error is not None
    assert "no space left" in error.message


def test_a_new_server_takes_up_what_the_old_one_left(
    store: Store, engine: FakeEngine, builder: FakeBuilder, start: Start
) -> None:
    conductor = start()
    working = [submit(store, conductor, submission()) for _ in range(2)]
    until(lambda: len(engine.starts) == 2)
    queued = submit(store, conductor, submission())
    until(lambda: state_of(store, queued) is S.QUEUED)
    preparing = submit(store, conductor, submission("slow"))
    until(lambda: state_of(store, preparing) is S.PREPARING)
    conductor.stop()
    unseen = runs.submit(store, submission(), NOW)  # stored, but nobody was woken for it
    conductor = start()
    builder.finish.set()
    until(lambda: state_of(store, unseen) is S.QUEUED)
    assert len(engine.starts) == 2, "the slots are still taken"
    everyone = [*working, queued, unseen, preparing]

    def finish_those_that_started() -> bool:
        for run in everyone:
            if job_of(run) in engine.starts and state_of(store, run) not in TERMINAL:
                finish(store, conductor, run)
        return all(state_of(store, run) in TERMINAL for run in everyone)

    until(finish_those_that_started)
    assert sorted(engine.starts) == sorted(job_of(run) for run in everyone), "each once"


def test_jobs_of_runs_that_are_over_are_cleaned_up_after_a_crash(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    conductor.stop()  # dies before it can clean up
    finish(store, conductor, run)
    engine.end(job_of(run))
    start()
    until(lambda: not engine.jobs())


def test_children_of_an_ended_run_end_with_it(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    child = runs.submit(store, child_of(run), NOW)
    grandchild = runs.submit(store, child_of(child), NOW)
    assert child.state is S.RUNNING
    finish(store, conductor, run, exit_code=1)
    until(lambda: state_of(store, child) is S.FAILED)
    until(lambda: state_of(store, grandchild) is S.FAILED)


def test_a_bug_in_starting_a_run_does_not_hold_its_slot(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    engine.refuse = ZeroDivisionError("a bug")
    conductor = start()
    broken = submit(store, conductor, submission())
    until(lambda: state_of(store, broken) is S.FAILED)
    others = [submit(store, conductor, submission()) for _ in range(2)]
    until(lambda: engine.starts == [job_of(run) for run in others])


class Hiccup:
    """Stands before the records of a store and fails as often as `failing` says."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.failing = 0

    def __getattr__(self, name: str) -> Any:
        if self.failing > 0:
            self.failing -= 1
            raise Unavailable("the database is away")
        return getattr(self._records, name)


@pytest.fixture
def hiccup(store: Store) -> Hiccup:
    hiccup = Hiccup(store.records)
    store.records = hiccup
    return hiccup


def test_a_run_is_not_forgotten_because_the_database_was_away(
    store: Store, engine: FakeEngine, start: Start, hiccup: Hiccup
) -> None:
    conductor = start()
    run = runs.submit(store, submission(), NOW)
    hiccup.failing = 1
    conductor.wake(run.id)
    until(lambda: engine.starts == [job_of(run)])


class Meanwhile:
    """Stands before the records of a store and does something before a place in line is stored."""

    def __init__(self, records: Records, act: Callable[[], object]) -> None:
        self._records = records
        self._act = act

    def __getattr__(self, name: str) -> Any:
        if name == "replace_soon":
            self._act()
        return getattr(self._records, name)


def test_a_run_canceled_while_its_place_is_being_stored_leaves_the_line(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    for _ in range(2):
        submit(store, conductor, submission())
    until(lambda: len(engine.starts) == 2)
    run = runs.submit(store, submission(), NOW)
    store.records = Meanwhile(store.records, lambda: runs.cancel(store, run.id, NOW))
    conductor.wake(run.id)
    behind = submit(store, conductor, submission())
    until(lambda: state_of(store, behind) is S.QUEUED)
    found = [store.records.get(RunRecord, behind.id)]
    until(lambda: "place 1 of 1" in conductor.describe(found)[0].waiting)
    assert state_of(store, run) is S.CANCELED


def places(store: Store, conductor: Conductor, waiting: list[RunRecord]) -> list[str]:
    """What runs are told of their place, once all of them are stored and in line."""
    until(lambda: {state_of(store, run) for run in waiting} == {S.QUEUED})
    found = [store.records.get(RunRecord, run.id) for run in waiting]
    until(lambda: conductor.describe(found)[-1].waiting.endswith("in line"))
    return [run.waiting.partition("place ")[2] for run in conductor.describe(found)]


def test_a_burst_comes_into_line_as_it_came_and_stays_so_over_a_restart(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    burst = [runs.submit(store, submission(), NOW) for _ in range(2 * SAVES_AT_ONCE + 5)]
    for run in burst:
        conductor.wake(run.id)
    expected = [f"{place} of {len(burst) - 2} in line" for place in range(1, len(burst) - 1)]
    assert places(store, conductor, burst[2:]) == expected
    assert places(store, start(), burst[2:]) == expected
    assert engine.starts[:2] == [job_of(run) for run in burst[:2]]


def test_recovery_waits_for_the_database_and_leaves_running_jobs_alone(
    store: Store, engine: FakeEngine, start: Start, hiccup: Hiccup
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    conductor.stop()
    hiccup.failing = 1
    conductor = start()
    until(lambda: hiccup.failing == 0)
    other = submit(store, conductor, submission())
    until(lambda: len(engine.starts) == 2)
    assert engine.stopped == []
    finish(store, conductor, run)
    finish(store, conductor, other)
    assert state_of(store, run) is S.COMPLETED


def test_children_whose_parent_ended_unseen_end_at_the_next_start(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, submission())
    until(lambda: engine.starts)
    child = runs.submit(store, child_of(run), NOW)
    grandchild = runs.submit(store, child_of(child), NOW)
    mine = runs.submit(store, Submission(spec=RunSpec(workspace="ws", experiment="exp")), NOW)
    conductor.stop()
    finish(store, conductor, run)
    start()
    until(lambda: state_of(store, grandchild) is S.COMPLETED)
    until(lambda: state_of(store, child) is S.COMPLETED)
    assert state_of(store, mine) is S.RUNNING


def child_of(run: RunRecord) -> Submission:
    return Submission(spec=RunSpec(workspace="ws", experiment="exp", parent=run.id))


def test_a_blob_that_is_no_tree_is_not_taken_for_a_snapshot(store: Store) -> None:
    data = b"print('I am a script')"
    digest = hashlib.sha256(data).hexdigest()
    store.blobs.put(digest, [data])
    with pytest.raises(Invalid, match="no file tree"):
        runs.submit(store, msgspec.structs.replace(submission(snapshot=digest), manifest=None), NOW)


# ---- what users may do to a run --------------------------------------------------------------


def test_submitting_without_the_contents_names_them(store: Store) -> None:
    digest = "1" * 64
    manifest = (FileEntry("train.py", digest, 3),)
    wanted = submission(snapshot=manifest_digest(manifest))
    with pytest.raises(BlobsMissing) as caught:
        runs.submit(store, msgspec.structs.replace(wanted, manifest=manifest), NOW)
    assert caught.value.digests == (digest,)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../b", "", "a//b", "./a", "a/.", "a\x00b"]
)
def test_a_tree_cannot_leave_its_folder(store: Store, path: str) -> None:
    manifest = (FileEntry(path, "1" * 64, 3),)
    wanted = submission(snapshot=manifest_digest(manifest))
    with pytest.raises(Invalid):
        runs.submit(store, msgspec.structs.replace(wanted, manifest=manifest), NOW)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (submission(target="gpu-cluster"), NotFound),
        (submission(launcher=LauncherSpec(kind="mpi", nodes=2)), Unsupported),
        (submission(arguments=()), Invalid),
        (submission(snapshot="../../etc"), Invalid),
        (submission(snapshot="2" * 64), Invalid),
    ],
)
def test_bad_submissions_change_nothing(
    store: Store, wanted: Submission, error: type[Exception]
) -> None:
    with pytest.raises(error):
        runs.submit(store, wanted, NOW)


def test_an_unknown_workspace_says_which_there_are(store: Store) -> None:
    spec = RunSpec(workspace="nope", experiment="e")
    with pytest.raises(NotFound, match="This server has: ws"):
        runs.submit(store, Submission(spec=spec), NOW)


def test_an_id_is_taken_once(store: Store) -> None:
    spec = RunSpec(workspace="ws", experiment="e", id="mine")
    runs.submit(store, Submission(spec=spec), NOW)
    with pytest.raises(Conflict):
        runs.submit(store, Submission(spec=spec), NOW)


def test_properties_are_set_once_and_tags_as_often_as_you_like(store: Store) -> None:
    run = runs.submit(store, Submission(spec=RunSpec(workspace="ws", experiment="e")), NOW)
    runs.patch(store, run.id, RunPatch(set_tags={"a": "1", "b": None}, add_properties={"p": "1"}))
    runs.patch(store, run.id, RunPatch(add_properties={"p": "1"}))
    with pytest.raises(Conflict, match="property 'p'"):
        runs.patch(store, run.id, RunPatch(add_properties={"p": "2"}, set_tags={"a": "2"}))
    after = runs.patch(store, run.id, RunPatch(remove_tags=("b", "never")))
    assert (after.tags, after.properties) == ({"a": "1"}, {"p": "1"})


def test_an_interactive_run_is_ended_by_its_owner(store: Store) -> None:
    run = runs.submit(store, Submission(spec=RunSpec(workspace="ws", experiment="e")), NOW)
    error = RunError(code="UserError", message="because")
    assert runs.fail(store, run.id, error, NOW).error == error
    with pytest.raises(Conflict):
        runs.complete(store, run.id, NOW)


def test_an_agent_of_an_old_attempt_is_told_to_stop(store: Store) -> None:
    run = runs.submit(store, submission(), NOW)
    assert runs.report(store, run.id, AgentReport(attempt=7, phase="alive"), NOW).stop


def test_interactive_runs_are_left_to_their_owner(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    spec = RunSpec(workspace="ws", experiment="exp")
    mine = submit(store, conductor, Submission(spec=spec))
    other = submit(store, conductor, submission())
    until(lambda: engine.starts == [job_of(other)])
    assert state_of(store, mine) is S.RUNNING


def test_a_build_log_that_cannot_be_written_now_is_written_later(
    store: Store, builder: FakeBuilder, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    append, failures = store.streams.append_log, [Unavailable("the database is away")]

    def stumble_once(run_id: str, name: str, offset: int, data: bytes) -> int:
        if failures:
            raise failures.pop()
        return append(run_id, name, offset, data)

    store.streams.append_log = stumble_once  # type: ignore[method-assign]
    run = submit(store, conductor, submission("slow"))
    builder.finish.set()
    until(lambda: engine.starts == [job_of(run)])
    assert not failures
    assert store.streams.read_log(run.id, wire.BUILD_LOG, 0, 99) == b"building slow\nbuilt\n"


def test_a_builder_with_a_bug_fails_the_run(
    store: Store, builder: FakeBuilder, start: Start
) -> None:
    def buggy(spec: EnvironmentSpec) -> None:
        raise ZeroDivisionError(spec.name)

    builder.ready = buggy  # type: ignore[method-assign]
    run = submit(store, start(), submission())
    until(lambda: state_of(store, run) is S.FAILED)
