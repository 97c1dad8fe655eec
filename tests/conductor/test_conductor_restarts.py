"""Runs that are tried again, over a real store, with a fake engine behind its seam."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import conductor as conducting
from runyard.conductor import leaving, runs
from runyard.conductor.changes import Changes
from runyard.conductor.conductor import Conductor
from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import EngineFailed, Invalid, Unsupported
from runyard.domain.files import Manifest, manifest_digest
from runyard.domain.runs import LauncherSpec, RunRecord, RunSpec, ScriptSpec, Submission
from runyard.domain.states import RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import Capabilities, JobId, NodeGroup
from runyard.planning import lifecycle
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.stores.base import Store
from runyard.testing.fake_builder import FakeBuilder
from runyard.testing.fake_engine import FakeEngine
from runyard.testing.fake_server import wait_until
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
S = RunState
EMPTY: Manifest = ()
MANY = Capabilities(multi_node=True, shared_folder=True)
Start = Callable[[], Conductor]


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
def start(
    tmp_path: Path, store: Store, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Starts a conductor; calling it again stops the one before, as a new server would find it."""
    monkeypatch.setattr(conducting, "POLL_SECONDS", 0.05)
    running: list[Conductor] = []

    def begin() -> Conductor:
        while running:
            running.pop().stop()
        settings = Settings(home=tmp_path, local_slots=1, grace_seconds=0)
        conductor = Conductor(
            store,
            settings,
            b"secret",
            Changes(),
            lambda: "http://127.0.0.1:1",
            engine=engine,
            builders=[FakeBuilder()],
        )
        conductor.start()
        running.append(conductor)
        return conductor

    yield begin
    for conductor in running:
        conductor.stop()


def submission(**fields: object) -> Submission:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=manifest_digest(EMPTY),
        environment=EnvironmentSpec(name="ready"),
        max_restarts=2,
    )
    script = msgspec.structs.replace(script, **fields)
    return Submission(spec=RunSpec(workspace="ws", experiment="exp", script=script), manifest=EMPTY)


def submit(store: Store, conductor: Conductor, **fields: object) -> RunRecord:
    run = runs.submit(store, submission(**fields), NOW, lambda engine: MANY)
    conductor.wake(run.id)
    return run


def job(run: RunRecord, attempt: int) -> JobId:
    return JobId(f"{run.uid}-{attempt}")


def now(store: Store, run: RunRecord) -> RunRecord:
    return store.records.get(RunRecord, run.id)


def report(store: Store, run: RunRecord, attempt: int, exit_code: int, node: int = 0) -> bool:
    """What an agent says when its ranks are over; whether it is told to stop."""
    ranks = (RankEnd(rank=0, exit_code=exit_code),)
    for phase in (wire.STARTED, wire.FINISHED):
        said = AgentReport(attempt=attempt, phase=phase, ranks=ranks, node=node)
        orders = runs.report(store, run.id, said, NOW)
    return orders.stop


def test_a_failed_run_starts_anew_when_nothing_is_left_of_the_old_job(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor, launcher=LauncherSpec(kind="mpi", nodes=2))
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    conductor.wake(run.id)
    wait_until(lambda: job(run, 1) in engine.stopped)
    waiting = conductor.describe([now(store, run)])[0]
    assert (waiting.state, waiting.attempt) == (S.QUEUED, 2)
    assert waiting.waiting == "attempt 1 failed; the next one begins when nothing is left of it"
    assert engine.starts == [job(run, 1)], "the old gang still runs"
    engine.end(job(run, 1))
    wait_until(lambda: engine.starts == [job(run, 1), job(run, 2)])
    assert engine.jobs() == [job(run, 2)], "what the engine kept of the first is gone"
    plan = msgspec.json.decode(engine.groups[job(run, 2)].plan)
    assert (plan["attempt"], plan["restore"], plan["nodes"]) == (2, True, 2)
    report(store, run, 2, exit_code=0)
    conductor.wake(run.id)
    wait_until(lambda: now(store, run).state is S.COMPLETED)
    engine.end(job(run, 2))
    wait_until(lambda: not engine.jobs())


def test_a_next_attempt_waits_until_the_old_job_could_be_killed(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    tries: list[list[JobId]] = []

    def fail_twice(job: JobId) -> None:
        tries.append(list(engine.starts))
        if len(tries) < 3:
            raise OSError("the cluster does not answer")

    engine.kill = fail_twice  # type: ignore[method-assign]
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    engine.end(job(run, 1))
    conductor.wake(run.id)
    wait_until(lambda: engine.starts == [job(run, 1), job(run, 2)])
    assert tries == [[job(run, 1)]] * 3


def test_after_the_last_attempt_the_run_has_failed(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    for attempt in (1, 2, 3):
        wanted = job(run, attempt)
        wait_until(lambda wanted=wanted: engine.starts[-1:] == [wanted])  # type: ignore[misc]
        report(store, run, attempt, exit_code=attempt)
        engine.end(job(run, attempt))
        conductor.wake(run.id)
    after = now(store, run)
    assert (after.state, after.attempt) == (S.FAILED, 3)
    assert [one.attempt for one in after.attempts] == [1, 2]
    assert after.error is not None
    assert "rank 0 with 3" in after.error.message
    wait_until(lambda: not engine.jobs())


def test_while_it_waits_for_its_next_attempt_others_may_have_the_slot(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    other = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    engine.end(job(run, 1))
    conductor.wake(run.id)
    wait_until(lambda: engine.starts == [job(run, 1), job(other, 1)])
    wait_until(lambda: "place 1 of 1" in conductor.describe([now(store, run)])[0].waiting)
    report(store, other, 1, exit_code=0)
    conductor.wake(other.id)
    wait_until(lambda: engine.starts[-1] == job(run, 2))


def test_an_agent_that_will_not_go_is_killed(
    store: Store, engine: FakeEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LEAVING_SECONDS", 0.0)
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    conductor.wake(run.id)
    wait_until(lambda: engine.starts == [job(run, 1), job(run, 2)])
    assert engine.stopped == [job(run, 1), job(run, 1)], "asked first, then killed"


def test_an_engine_that_refuses_once_is_asked_again(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    engine.refuse = OSError("no space left on device")
    run = submit(store, start())
    wait_until(lambda: engine.starts == [job(run, 2)])
    (failed,) = now(store, run).attempts
    assert (failed.error.code, failed.started) == ("EngineFailed", None)
    assert "no space left" in failed.error.message


def test_a_run_whose_agents_are_lost_too_often_is_tried_anew(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    runs.change(
        store,
        run.id,
        lambda run: msgspec.structs.replace(run, takeovers=99, taken_over=datetime.now(UTC)),
    )
    engine.lose(job(run, 1))
    wait_until(lambda: engine.starts[-1] == job(run, 2))
    assert now(store, run).attempts[0].error.code == "NodeLost"
    assert now(store, run).takeovers == 0


def test_canceling_between_two_attempts_ends_the_run(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    conductor.wake(run.id)
    wait_until(lambda: engine.stopped)
    assert runs.cancel(store, run.id, NOW).state is S.CANCELED
    conductor.wake(run.id)
    engine.end(job(run, 1))
    wait_until(lambda: not engine.jobs())
    assert engine.starts == [job(run, 1)]


def test_children_of_a_failed_attempt_failed_with_it(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    spec = RunSpec(workspace="ws", experiment="exp", parent=run.id)
    child = runs.submit(store, Submission(spec=spec), NOW)
    report(store, run, 1, exit_code=1)
    conductor.wake(run.id)
    wait_until(lambda: now(store, child).state is S.FAILED)
    assert now(store, child).error == now(store, run).attempts[0].error


def test_a_start_that_failed_but_was_stored_by_nobody_gives_up_no_job(
    store: Store, engine: FakeEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LEAVING_SECONDS", 0.0)
    began, tries = engine.start, []

    def fail_once(group: NodeGroup) -> JobId:
        tries.append(group.key)
        if len(tries) == 1:  # and somebody writes to the run meanwhile
            runs.change(store, run.id, lambda run: msgspec.structs.replace(run, tags={"a": "b"}))
            raise OSError("no more processes")
        return began(group)

    engine.start = fail_once  # type: ignore[method-assign]
    conductor = start()
    run = runs.submit(store, submission(), NOW)
    conductor.wake(run.id)
    wait_until(lambda: now(store, run).job == job(run, 1))
    polls = len(engine.polls)
    wait_until(lambda: len(engine.polls) >= polls + 5)
    assert engine.stopped == []
    assert engine.jobs() == [job(run, 1)]
    assert (now(store, run).attempt, now(store, run).tags) == (1, {"a": "b"})


@pytest.mark.parametrize("max_restarts", [0, 1])
@pytest.mark.parametrize("how", ["lost", "not started"])
def test_nodes_are_held_until_nothing_is_left_of_a_job_that_was_given_up(
    store: Store, engine: FakeEngine, start: Start, max_restarts: int, how: str
) -> None:
    kill, hangs = engine.kill, threading.Event()

    def fail_while_it_hangs(job: JobId) -> None:
        if not hangs.is_set():
            raise EngineFailed("its processes hang")
        kill(job)

    engine.kill = fail_while_it_hangs  # type: ignore[method-assign]
    engine.refuse = OSError("half of it was started") if how == "not started" else None
    conductor = start()
    run = submit(store, conductor, max_restarts=max_restarts)
    if how == "lost":
        wait_until(lambda: now(store, run).job == job(run, 1))
        engine.lose(job(run, 1), node="n1")
    wait_until(lambda: now(store, run).state in (S.FAILED, S.QUEUED))
    other = submit(store, conductor)
    wait_until(lambda: now(store, other).state is S.QUEUED)
    polls = len(engine.polls)
    wait_until(lambda: len(engine.polls) >= polls + 5)
    assert job(other, 1) not in engine.starts, "the only slot is not free yet"
    hangs.set()
    wait_until(lambda: job(other, 1) in engine.starts)


def test_a_run_that_is_canceled_between_attempts_holds_its_nodes_until_the_job_is_gone(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    conductor.wake(run.id)
    wait_until(lambda: engine.stopped)
    runs.cancel(store, run.id, NOW)
    other = submit(store, conductor)
    conductor.wake(run.id)
    wait_until(lambda: now(store, other).state is S.QUEUED)
    polls = len(engine.polls)
    wait_until(lambda: len(engine.polls) >= polls + 3)
    assert engine.starts == [job(run, 1)]
    engine.end(job(run, 1))
    wait_until(lambda: engine.starts == [job(run, 1), job(other, 1)])


# ---- a new server in the middle --------------------------------------------------------------


def test_a_new_server_waits_for_the_old_job_to_go(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    conductor.stop()  # dies, and the agent reports to the next server before it looks
    report(store, run, 1, exit_code=1)
    conductor = start()
    wait_until(lambda: job(run, 1) in engine.stopped)
    conductor.wake(run.id)
    other = submit(store, conductor)
    wait_until(lambda: engine.starts[-1] == job(other, 1))  # so it had a chance to start
    assert job(run, 2) not in engine.starts
    report(store, other, 1, exit_code=0)
    conductor.wake(other.id)
    engine.end(job(run, 1))
    wait_until(lambda: engine.starts[-1] == job(run, 2))


def test_a_new_server_starts_the_next_attempt_of_a_run_whose_old_job_is_gone(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    conductor.stop()
    report(store, run, 1, exit_code=1)
    engine.forget(job(run, 1))
    start()
    wait_until(lambda: engine.starts == [job(run, 1), job(run, 2)])


def test_a_new_server_takes_up_the_second_attempt_where_it_is(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    report(store, run, 1, exit_code=1)
    engine.end(job(run, 1))
    conductor.wake(run.id)
    wait_until(lambda: now(store, run).job == job(run, 2))
    conductor = start()
    assert report(store, run, 1, exit_code=0), "an agent of the first attempt is told to stop"
    assert not now(store, run).ended
    report(store, run, 2, exit_code=0)
    conductor.wake(run.id)
    assert now(store, run).state is S.COMPLETED
    assert engine.starts == [job(run, 1), job(run, 2)]


def test_a_new_server_starts_a_second_attempt_that_was_only_announced(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    conductor = start()
    run = submit(store, conductor)
    wait_until(lambda: engine.starts == [job(run, 1)])
    conductor.stop()
    report(store, run, 1, exit_code=1)
    engine.forget(job(run, 1))
    # It died between storing that the attempt starts and starting it.
    runs.change(store, run.id, lambda run: lifecycle.move(run, S.STARTING, now=NOW))
    conductor = start()
    wait_until(lambda: engine.starts == [job(run, 1), job(run, 2)])
    report(store, run, 2, exit_code=0)
    conductor.wake(run.id)
    assert now(store, run).state is S.COMPLETED


def test_a_job_that_is_stored_late_is_not_taken_for_the_next_attempts(
    store: Store, engine: FakeEngine, start: Start
) -> None:
    began = engine.start

    def fail_before_the_answer(group: object) -> JobId:
        started = began(group)  # type: ignore[arg-type]
        if started == job(run, 1):
            report(store, run, 1, exit_code=1)
            engine.end(started)
        return started

    engine.start = fail_before_the_answer  # type: ignore[method-assign]
    conductor = start()
    run = runs.submit(store, submission(), NOW)
    conductor.wake(run.id)
    wait_until(lambda: now(store, run).attempt == 2)
    conductor.wake(run.id)
    wait_until(lambda: now(store, run).job == job(run, 2))
    assert engine.starts == [job(run, 1), job(run, 2)]


# ---- several nodes ----------------------------------------------------------------------------


def test_members_get_orders_but_do_not_move_the_run(store: Store) -> None:
    run = runs.submit(
        store, submission(launcher=LauncherSpec(kind="mpi", nodes=2)), NOW, lambda engine: MANY
    )
    assert not report(store, run, 1, exit_code=3, node=1)
    assert now(store, run).state is S.NOT_STARTED
    runs.cancel(store, run.id, NOW)
    assert report(store, run, 1, exit_code=0, node=1), "a member of a canceled run is to stop"


@pytest.mark.parametrize(
    ("fields", "can", "error", "words"),
    [
        ({"launcher": LauncherSpec(kind="mpi", nodes=2)}, Capabilities(), Unsupported, "one node"),
        ({"launcher": LauncherSpec(kind="smoke")}, MANY, Unsupported, "no launcher 'smoke'"),
        ({"launcher": LauncherSpec(nodes=0)}, MANY, Invalid, "not 0"),
        ({"launcher": LauncherSpec(processes_per_node=0)}, MANY, Invalid, "1 processes_per_node"),
        ({"launcher": LauncherSpec(workers=-1)}, MANY, Invalid, "1 workers, not -1"),
        ({"launcher": LauncherSpec(parameter_servers=-1)}, MANY, Invalid, "0 parameter_servers"),
        ({"launcher": LauncherSpec(processes_per_node=10**6)}, MANY, Invalid, "at most 100000"),
        ({"launcher": LauncherSpec(workers=10**9)}, MANY, Invalid, "at most 100000"),
        ({"max_restarts": -1}, MANY, Invalid, "max_restarts=-1"),
        ({"max_restarts": 10**6}, MANY, Invalid, "from 0 to"),
    ],
)
def test_what_cannot_run_is_refused_in_words(
    store: Store,
    fields: dict[str, object],
    can: Capabilities,
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        runs.submit(store, submission(**fields), NOW, lambda engine: can)
