"""Runs on clusters that were attached: a fake cluster behind a real conductor and a real store."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import computes, engine_book, runs
from runyard.conductor.changes import Changes
from runyard.conductor.conductor import Conductor
from runyard.data.sealing import seal, unseal
from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.compute import (
    AttachSpec,
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    EngineRef,
    Machine,
    NodeResources,
    redact_compute,
)
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import (
    Conflict,
    Denied,
    EngineFailed,
    Invalid,
    NotFound,
    Unavailable,
    Unsupported,
)
from runyard.domain.files import Manifest, manifest_digest
from runyard.domain.runs import LauncherSpec, RunRecord, RunSpec, ScriptSpec, Submission
from runyard.domain.states import RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.stores.base import Store
from runyard.testing.fake_builder import FakeBuilder
from runyard.testing.fake_engine import FakeEngine
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
S = RunState
EMPTY: Manifest = ()
SECRET = b"secret"
WORKSPACE = WorkspaceRecord(id="w1", name="ws", created=NOW)
MACHINE = Machine(cores=8)
TOKEN = "a-token-of-the-cluster"
ABLE = Capabilities(multi_node=True, shared_folder=True, gpus=True)


class Yard:
    """A store, a machine, one cluster, and a conductor that can be started again."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(f"sqlite:///{folder / 'runyard.db'}", str(folder / "blobs"))
        self.store.records.insert(WORKSPACE)
        self.here = FakeEngine()
        self.cluster = FakeEngine(ABLE)
        self.cluster.name = "slurm"
        self.folder = folder
        self.conductor = self._begin()

    def _begin(self) -> Conductor:
        conductor = Conductor(
            self.store,
            Settings(home=self.folder, local_slots=4),
            SECRET,
            Changes(),
            lambda: "http://127.0.0.1:1",
            engine=self.here,
            engines={"slurm": self.cluster.open, "ray": self.cluster.open},
            builders=[FakeBuilder()],
            machine=MACHINE,
        )
        conductor.start()
        return conductor

    def restart(self) -> None:
        self.conductor.stop()
        self.conductor = self._begin()

    def attach(self, name: str = "big", **fields: object) -> ComputeRecord:
        spec = AttachSpec(**{"kind": "slurm", **fields})  # type: ignore[arg-type]
        record = computes.attach_compute(self.store, WORKSPACE, name, spec, SECRET, NOW)
        self.conductor.wake()
        return record

    def submit(self, target: str = "big", **fields: object) -> RunRecord:
        script = ScriptSpec(
            arguments=("train.py",),
            snapshot=manifest_digest(EMPTY),
            environment=EnvironmentSpec(name="ready"),
            target=target,
        )
        spec = RunSpec(
            workspace="ws",
            experiment="exp",
            script=msgspec.structs.replace(script, **fields),
        )
        can = self.conductor.capabilities_of
        run = runs.submit(self.store, Submission(spec=spec, manifest=EMPTY), NOW, can)
        self.conductor.wake(run.id)
        return run

    def now(self, run: RunRecord) -> RunRecord:
        found = self.store.records.get(RunRecord, run.id)
        return self.conductor.describe([found])[0]

    def until(self, run: RunRecord, state: RunState) -> RunRecord:
        wait(lambda: self.now(run).state is state)
        return self.now(run)

    def finish(self, run: RunRecord, attempt: int = 1) -> None:
        ended = (RankEnd(rank=0, exit_code=0),)
        for phase in (wire.STARTED, wire.FINISHED):
            report = AgentReport(attempt=attempt, phase=phase, ranks=ended)
            runs.report(self.store, run.id, report, NOW)
        self.cluster.end(job(run, attempt))
        self.conductor.wake(run.id)

    def target(self, name: str = "big") -> ComputeRecord:
        return computes.load_compute(self.store, WORKSPACE, name)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.conductor.stop()
    made.store.close()


def wait(check: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def job(run: RunRecord, attempt: int = 1) -> JobId:
    return JobId(f"{run.uid}-{attempt}")


# ---- where runs go ------------------------------------------------------------------------------


def test_a_run_goes_to_the_engine_of_its_target_and_a_local_one_stays(yard: Yard) -> None:
    yard.attach(options={"partition": "gpu"}, resources=NodeResources(cores=4, gpus=1))
    there, here = yard.submit(), yard.submit("local")
    wait(lambda: yard.cluster.starts == [job(there)])
    wait(lambda: yard.here.starts == [job(here)])
    group = yard.cluster.groups[job(there)]
    assert group.resources == NodeResources(cores=4, gpus=1)
    assert yard.here.groups[job(here)].resources is None
    assert yard.cluster.options == {"partition": "gpu"}
    plan = msgspec.json.decode(group.plan)
    assert plan["cores"] == [4]
    assert "gpus" not in plan, "which GPUs they are is for the cluster to say"
    wait(lambda: yard.now(there).job == job(there))
    yard.finish(there)
    yard.until(there, S.COMPLETED)
    wait(lambda: job(there) not in yard.cluster.groups)  # and nothing is kept of it
    assert job(here) in yard.here.groups


def test_an_engine_is_asked_about_all_its_jobs_at_once(yard: Yard) -> None:
    yard.attach()
    yard.attach("same")  # the same cluster under another name is the same engine
    found = [yard.submit(name) for name in ("big", "same", "big")]
    jobs = {job(run) for run in found}
    wait(lambda: set(yard.cluster.starts) == jobs)
    wait(lambda: any(set(asked) == jobs for asked in yard.cluster.polls))


def test_nodes_are_the_clusters_and_go_with_the_run(yard: Yard) -> None:
    yard.attach(max_nodes=3)
    run = yard.submit(launcher=LauncherSpec(kind="mpi", nodes=2))
    wait(lambda: job(run) in yard.cluster.groups)
    yard.cluster.run(job(run), "n17", "n18")
    wait(lambda: [node.host for node in yard.target().nodes] == ["n17", "n18"])
    assert [node.run for node in yard.target().nodes] == [run.id, run.id]
    yard.finish(run)
    yard.until(run, S.COMPLETED)
    wait(lambda: yard.target().nodes == ())


def test_max_nodes_bounds_what_runs_take_and_keeps_the_order(yard: Yard) -> None:
    yard.attach(max_nodes=2)
    first = yard.submit()
    wide = yard.submit(launcher=LauncherSpec(kind="mpi", nodes=2))
    last = yard.submit()
    yard.until(wide, S.QUEUED)
    yard.until(last, S.QUEUED)
    wait(lambda: yard.cluster.starts == [job(first)])
    assert "1 of 2 in use, place 1 of 2" in yard.now(wide).waiting
    yard.finish(first)
    wait(lambda: yard.cluster.starts == [job(first), job(wide)])
    yard.finish(wide)
    wait(lambda: yard.cluster.starts == [job(first), job(wide), job(last)])


def test_without_a_bound_the_cluster_queues_and_says_why(yard: Yard) -> None:
    yard.attach()
    yard.cluster.is_full = True
    found = [yard.submit() for _ in range(5)]
    wait(lambda: len(yard.cluster.starts) == 5)
    words = "waits in the line of Slurm: (Resources)"
    wait(lambda: all(yard.now(run).waiting == words for run in found))
    assert {yard.now(run).state for run in found} == {S.STARTING}


# ---- a cluster that is away -----------------------------------------------------------------


def test_a_cluster_that_is_away_fails_nobody_and_holds_up_nobody(yard: Yard) -> None:
    yard.attach()
    working = yard.submit()
    wait(lambda: yard.now(working).job == job(working))
    yard.cluster.away = Unavailable("Nobody answers at head:8265.")
    waiting = yard.submit()
    wait(lambda: "Nobody answers at head:8265." in yard.now(waiting).waiting)
    local = yard.submit("local")
    wait(lambda: yard.here.starts == [job(local)])
    assert yard.now(waiting).state in (S.QUEUED, S.STARTING)
    assert yard.now(working).state is S.STARTING
    yard.cluster.away = None
    wait(lambda: job(waiting) in yard.cluster.starts)
    yard.finish(working)
    yard.finish(waiting)
    assert yard.until(working, S.COMPLETED).takeovers == 0
    yard.until(waiting, S.COMPLETED)


def test_a_run_that_never_reached_its_cluster_is_canceled_without_it(yard: Yard) -> None:
    yard.attach()
    yard.cluster.away = Unavailable("Nobody answers.")
    run = yard.submit()
    wait(lambda: "cannot be reached" in yard.now(run).waiting)
    runs.cancel(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    yard.until(run, S.CANCELED)
    computes.delete_compute(yard.store, WORKSPACE, "big")  # also where it never comes back
    # What it may have of the run after all is ended as soon as it can be reached.
    yard.cluster.statuses[job(run)] = JobStatus(phase=JobPhase.ACTIVE)
    yard.cluster.groups[job(run)] = NodeGroup(key=job(run), plan=b"{}")
    yard.cluster.away = None
    wait(lambda: job(run) in yard.cluster.stopped)


def test_a_cancel_reaches_a_cluster_that_was_away(yard: Yard) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.away = Denied("The token is not valid any more.")
    runs.cancel(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    local = yard.submit("local")
    wait(lambda: yard.here.starts == [job(local)])
    assert yard.cluster.stopped == []
    yard.cluster.away = None
    wait(lambda: job(run) in yard.cluster.stopped)


def test_a_run_on_a_cluster_that_is_dead_can_be_given_up(yard: Yard) -> None:
    yard.attach(max_nodes=1)
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.away = Unavailable("Nobody answers at head:8265.")
    wait(lambda: "cannot be reached now: Nobody answers" in yard.now(run).waiting)
    runs.cancel(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    told = yard.now(run).waiting
    assert "cannot be reached: Nobody answers at head:8265; it is ended as soon as" in told
    assert f"runyard cancel --force {run.id}" in told
    with pytest.raises(Conflict, match="runyard compute rm --force big"):
        computes.delete_compute(yard.store, WORKSPACE, "big")
    runs.give_up(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    ended = yard.until(run, S.CANCELED)
    assert ended.error is not None
    assert ended.error.code == "GivenUp"
    wait(lambda: yard.target().nodes == ())  # another run may have them
    assert yard.cluster.stopped == []
    yard.cluster.away = None
    wait(lambda: job(run) in yard.cluster.stopped)


def test_a_job_that_was_given_up_is_ended_by_a_later_server_without_the_target(
    yard: Yard,
) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.away = Unavailable("Nobody answers.")
    runs.give_up(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    yard.until(run, S.CANCELED)
    computes.delete_compute(yard.store, WORKSPACE, "big")
    yard.restart()
    local = yard.submit("local")
    wait(lambda: yard.here.starts == [job(local)])
    assert yard.cluster.stopped == []
    yard.cluster.away = None
    wait(lambda: job(run) in yard.cluster.stopped)
    yard.cluster.end(job(run))
    wait(lambda: not list((yard.folder / "engines").glob("*.json")))  # and it is asked no more


def test_a_run_that_is_given_up_while_it_is_handed_over_is_ended_there(yard: Yard) -> None:
    yard.attach()
    yard.cluster.may_start.clear()
    run = yard.submit()
    yard.until(run, S.STARTING)
    runs.give_up(yard.store, run.id, NOW)
    yard.conductor.wake(run.id)
    yard.until(run, S.CANCELED)
    yard.cluster.may_start.set()
    wait(lambda: job(run) in yard.cluster.stopped)
    yard.cluster.end(job(run))
    wait(lambda: job(run) not in yard.cluster.groups)


def test_a_run_of_this_machine_is_not_given_up_but_canceled(yard: Yard) -> None:
    run = yard.submit("local")
    wait(lambda: yard.here.starts == [job(run)])
    assert runs.give_up(yard.store, run.id, NOW).state is S.CANCEL_REQUESTED


def test_a_cluster_without_jobs_that_goes_away_is_noticed(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_book, "QUIET_SECONDS", 0.0)
    engine = yard.attach().engine
    assert engine is not None
    yard.cluster.closed = EngineFailed("The partition is down.")  # that is no reason not to try
    wait(lambda: yard.cluster.checks > 1)
    assert yard.conductor.trouble_of(engine) == ""
    yard.cluster.away = Unavailable("Nobody answers.")
    wait(lambda: yard.conductor.trouble_of(engine) == "Nobody answers.")
    yard.cluster.away = yard.cluster.closed = None
    wait(lambda: yard.conductor.trouble_of(engine) == "")


def test_a_run_keeps_where_it_worked_and_what_its_cluster_called_it(yard: Yard) -> None:
    yard.attach()
    run = yard.submit(launcher=LauncherSpec(kind="mpi", nodes=2), max_restarts=1)
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.statuses[job(run)] = JobStatus(
        phase=JobPhase.ACTIVE, hosts=("n17", "n18"), name="4711"
    )
    wait(lambda: yard.now(run).cluster_job == "4711")
    assert [node.host for node in yard.now(run).nodes] == ["n17", "n18"]
    yard.cluster.lose(job(run), node="n17")
    wait(lambda: yard.now(run).attempt == 2)
    first = yard.now(run).attempts[0]
    assert (first.cluster_job, [node.host for node in first.nodes]) == ("4711", ["n17", "n18"])
    wait(lambda: yard.now(run).job == job(run, 2))
    assert yard.now(run).cluster_job == ""
    yard.finish(run, attempt=2)
    yard.until(run, S.COMPLETED)


def test_a_stop_that_fails_keeps_nobody_else_from_being_heard_of_or_stopped(yard: Yard) -> None:
    yard.attach()
    stuck, other, third = yard.submit(), yard.submit(), yard.submit()
    wait(lambda: all(yard.now(run).job == job(run) for run in (stuck, other, third)))
    yard.cluster.unstoppable.add(job(stuck))
    for run in (stuck, other):
        runs.cancel(yard.store, run.id, NOW)
        yard.conductor.wake(run.id)
    wait(lambda: job(other) in yard.cluster.stopped)
    yard.finish(third)
    yard.until(third, S.COMPLETED)
    assert job(stuck) not in yard.cluster.stopped
    yard.cluster.unstoppable.clear()
    wait(lambda: job(stuck) in yard.cluster.stopped)


def test_jobs_are_heard_of_though_the_cluster_takes_no_new_ones(yard: Yard) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.away = Unavailable("Nobody answers.")
    waiting = yard.submit()
    wait(lambda: "Nobody answers." in yard.now(waiting).waiting)
    runs.cancel(yard.store, waiting.id, NOW)
    yard.cluster.closed = EngineFailed("The partition is down.")
    yard.cluster.away = None
    yard.cluster.lose(job(run), node="n7")
    error = yard.until(run, S.FAILED).error
    assert error is not None
    assert "n7" in error.message


def test_ending_what_is_left_of_a_job_holds_up_nothing_else(yard: Yard) -> None:
    yard.attach()
    ended, run = yard.submit(), yard.submit()
    wait(lambda: all(yard.now(one).job == job(one) for one in (ended, run)))
    yard.cluster.may_kill.clear()
    yard.finish(ended)
    yard.until(ended, S.COMPLETED)
    yard.finish(run)
    yard.until(run, S.COMPLETED)
    last = yard.submit()
    wait(lambda: yard.now(last).job == job(last))
    yard.finish(last)
    yard.until(last, S.COMPLETED)
    assert set(yard.cluster.groups) == {job(ended), job(run), job(last)}, "none is forgotten yet"
    yard.cluster.may_kill.set()
    wait(lambda: not yard.cluster.groups)


def test_what_a_cluster_refuses_fails_the_run_in_its_words(yard: Yard) -> None:
    yard.attach()
    yard.cluster.refuse = Invalid("No node has 99 cores.")
    run = yard.submit()
    error = yard.until(run, S.FAILED).error
    assert error is not None
    assert "99 cores" in error.message


def test_a_restart_of_the_server_goes_on_with_the_jobs_of_clusters(yard: Yard) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.conductor.stop()
    stray = JobId("stray-1")
    yard.cluster.groups[stray] = yard.cluster.groups[job(run)]
    yard.cluster.run(stray)
    yard.restart()
    wait(lambda: stray in yard.cluster.stopped)
    assert job(run) not in yard.cluster.stopped
    yard.finish(run)
    yard.until(run, S.COMPLETED)
    assert yard.cluster.starts == [job(run)]


def test_a_restart_while_the_cluster_is_away_waits_for_it(yard: Yard) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.away = Unavailable("Nobody answers.")
    yard.restart()
    local = yard.submit("local")
    wait(lambda: yard.here.starts == [job(local)])
    assert yard.now(run).state is S.STARTING
    yard.cluster.away = None
    yard.cluster.lose(job(run))
    wait(lambda: yard.cluster.starts == [job(run), job(run)])
    assert yard.now(run).takeovers == 1


# ---- lost nodes ------------------------------------------------------------------------------


def test_a_lost_agent_is_replaced_but_a_lost_node_ends_the_attempt(yard: Yard) -> None:
    yard.attach()
    run = yard.submit()
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.lose(job(run))
    wait(lambda: yard.cluster.starts == [job(run), job(run)])
    wait(lambda: yard.now(run).takeovers == 1)
    yard.cluster.lose(job(run), node="n17")
    error = yard.until(run, S.FAILED).error
    assert error is not None
    assert error.code == "NodeLost"
    assert "node n17 does not answer" in error.message


def test_after_a_lost_node_another_attempt_starts_when_nothing_is_left(yard: Yard) -> None:
    yard.attach()
    run = yard.submit(max_restarts=1)
    wait(lambda: yard.now(run).job == job(run))
    yard.cluster.lose(job(run), node="n17")
    wait(lambda: yard.cluster.starts == [job(run), job(run, 2)])
    assert job(run) not in yard.cluster.groups
    first = yard.now(run).attempts[0]
    assert first.error.code == "NodeLost"
    yard.finish(run, attempt=2)
    yard.until(run, S.COMPLETED)


def test_a_restart_between_two_attempts_sees_the_first_one_out(yard: Yard) -> None:
    yard.attach()
    run = yard.submit(max_restarts=1)
    wait(lambda: yard.now(run).job == job(run))
    yard.conductor.stop()
    failed = (RankEnd(rank=0, exit_code=3),)
    runs.report(yard.store, run.id, AgentReport(attempt=1, phase=wire.STARTED), NOW)
    runs.report(yard.store, run.id, AgentReport(attempt=1, phase=wire.FINISHED, ranks=failed), NOW)
    yard.cluster.away = Unavailable("Nobody answers.")  # is anything left? nobody can say
    yard.restart()
    local = yard.submit("local")
    wait(lambda: yard.here.starts == [job(local)])
    assert yard.cluster.starts == [job(run)]
    yard.cluster.end(job(run))
    yard.cluster.away = None
    wait(lambda: yard.cluster.starts == [job(run), job(run, 2)])


# ---- attaching -------------------------------------------------------------------------------


def test_secrets_are_sealed_and_never_shown(yard: Yard) -> None:
    record = yard.attach(kind="ray", options={"address": "http://h"}, secrets={"token": TOKEN})
    assert record.engine is not None
    assert TOKEN not in msgspec.json.encode(record).decode()
    assert unseal(record.engine.secret, SECRET, of="it") == {"token": TOKEN}
    shown = redact_compute(record).engine
    assert shown == EngineRef(kind="ray", options={"address": "http://h"})
    yard.cluster.away = Denied(f"{TOKEN} is not the token.")
    with pytest.raises(EngineFailed, match=r"\*\*\* is not the token") as told:
        yard.conductor.check_engine(record.engine)
    assert TOKEN not in str(told.value)
    assert yard.cluster.secrets == {"token": TOKEN}


def test_another_token_is_used_from_then_on(yard: Yard) -> None:
    yard.attach(kind="ray", secrets={"token": "old-token"})
    first = yard.submit()
    wait(lambda: job(first) in yard.cluster.starts)
    yard.attach(kind="ray", secrets={"token": "new-token"})
    second = yard.submit()
    wait(lambda: job(second) in yard.cluster.starts)
    assert yard.cluster.secrets == {"token": "new-token"}
    yard.finish(first)
    yard.until(first, S.COMPLETED)


def test_an_unknown_engine_is_refused(yard: Yard) -> None:
    with pytest.raises(Unsupported, match="no engine 'pbs'"):
        yard.conductor.check_engine(EngineRef(kind="pbs"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_nodes": -1}, "leaves no node"),
        ({"max_nodes": 0}, "leaves no node"),
        ({"resources": NodeResources(cores=0)}, "cores=0"),
        ({"resources": NodeResources(gpus=-1)}, "gpus=-1"),
    ],
)
def test_senseless_attachments_are_refused(
    yard: Yard, fields: dict[str, object], words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        yard.attach("big", **fields)


def test_attaching_again_changes_the_use_but_not_the_cluster_under_a_run(yard: Yard) -> None:
    yard.attach(options={"partition": "a"}, max_nodes=2)
    run = yard.submit()
    wait(lambda: job(run) in yard.cluster.starts)
    assert yard.attach(options={"partition": "a"}, max_nodes=5).max_nodes == 5
    with pytest.raises(Conflict, match="in use"):
        yard.attach(options={"partition": "b"})
    with pytest.raises(Conflict, match="something else"):
        yard.attach(kind="ray")
    with pytest.raises(Conflict, match="in use"):
        computes.delete_compute(yard.store, WORKSPACE, "big")
    yard.finish(run)
    yard.until(run, S.COMPLETED)
    assert yard.attach(options={"partition": "b"}).max_nodes is None
    computes.delete_compute(yard.store, WORKSPACE, "big")
    with pytest.raises(NotFound):
        yard.target()


def test_a_cluster_made_here_and_an_attached_one_are_not_mixed_up(yard: Yard) -> None:
    yard.attach()
    with pytest.raises(Conflict, match="attached"):
        computes.create_compute(
            yard.store, WORKSPACE, "big", ComputeSpec(max_nodes=2), MACHINE, NOW
        )
    computes.create_compute(yard.store, WORKSPACE, "small", ComputeSpec(max_nodes=2), MACHINE, NOW)
    with pytest.raises(Conflict, match="STANDARD_NC6"):
        yard.attach("small")


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (ComputePatch(min_nodes=1), "only max_nodes can be changed"),
        (ComputePatch(idle_seconds=1), "only max_nodes can be changed"),
        (ComputePatch(max_nodes=0), "leaves no node"),
    ],
)
def test_an_attached_cluster_keeps_its_nodes_by_itself(
    yard: Yard, patch: ComputePatch, words: str
) -> None:
    yard.attach()
    with pytest.raises(Invalid, match=words):
        computes.update_compute(yard.store, WORKSPACE, "big", patch, MACHINE, NOW)
    few = ComputePatch(max_nodes=2)
    assert computes.update_compute(yard.store, WORKSPACE, "big", few, MACHINE, NOW).max_nodes == 2


def test_plain_clusters_come_from_the_engine_that_the_server_is_told(yard: Yard) -> None:
    computes.create_compute(
        yard.store,
        WORKSPACE,
        "gpu-cluster",
        ComputeSpec(vm_size="STANDARD_NC12", max_nodes=64),
        MACHINE,
        NOW,
        EngineRef(kind="slurm"),
    )
    yard.conductor.wake()
    record = yard.target("gpu-cluster")
    assert record.warnings == ()
    assert record.node_cores == 12, "no share of this machine, which is smaller"
    run = yard.submit("gpu-cluster")
    wait(lambda: job(run) in yard.cluster.starts)
    asked = yard.cluster.groups[job(run)].resources
    assert asked == NodeResources(cores=12, memory_gb=112, gpus=2)
    patch = ComputePatch(max_nodes=128)
    changed = computes.update_compute(yard.store, WORKSPACE, "gpu-cluster", patch, MACHINE, NOW)
    assert (changed.max_nodes, changed.node_cores) == (128, 12)


def test_making_such_a_cluster_again_takes_the_new_token_but_moves_it_nowhere(yard: Yard) -> None:
    def create(address: str, token: str) -> ComputeRecord:
        ref = EngineRef(
            kind="ray", options={"address": address}, secret=seal({"token": token}, SECRET)
        )
        spec = ComputeSpec(max_nodes=2, min_nodes=1)
        return computes.create_compute(
            yard.store, WORKSPACE, "aml", spec, MACHINE, NOW, ref, ("loopback",)
        )

    warnings = create("http://a", "old").warnings
    assert warnings[-1] == "loopback"
    assert "min_nodes and idle_seconds are kept, but mean nothing" in warnings[0]
    again = create("http://a", "new").engine
    assert again is not None
    assert unseal(again.secret, SECRET, of="it") == {"token": "new"}
    moved = create("http://b", "other").engine
    assert moved == again
    patch = ComputePatch(max_nodes=3)
    changed = computes.update_compute(yard.store, WORKSPACE, "aml", patch, MACHINE, NOW)
    assert changed.warnings == warnings


# ---- what an engine cannot do is told at submit ----------------------------------------------


@pytest.mark.parametrize(
    ("can", "attached", "fields", "words"),
    [
        (
            Capabilities(shared_folder=True),
            {},
            {"launcher": LauncherSpec(kind="mpi", nodes=2)},
            "2 nodes on 'big'",
        ),
        (
            Capabilities(shared_folder=True),
            {"resources": NodeResources(gpus=1)},
            {},
            "cannot give its nodes 1 GPU",
        ),
        (
            Capabilities(shared_folder=True),
            {},
            {"environment": EnvironmentSpec(name="e", docker=True, base_image="x:1")},
            "container of an image",
        ),
        (
            Capabilities(),
            {},
            {"environment": EnvironmentSpec(name="e", base_image="x:1")},
            "container of an image",
        ),
        (
            Capabilities(),
            {},
            {"environment": EnvironmentSpec(name="e", pip=("horovod==0.28.1",))},
            "Horovod has to be compiled",
        ),
    ],
)
def test_what_the_engine_cannot_do_is_refused_at_submit(
    yard: Yard,
    can: Capabilities,
    attached: dict[str, object],
    fields: dict[str, object],
    words: str,
) -> None:
    yard.cluster.capabilities = can
    yard.attach("big", **attached)
    with pytest.raises(Unsupported, match=words):
        yard.submit("big", **fields)


def test_more_nodes_than_allowed_are_refused_at_submit(yard: Yard) -> None:
    yard.attach(max_nodes=2)
    with pytest.raises(Invalid, match="max_nodes is 2"):
        yard.submit(launcher=LauncherSpec(kind="mpi", nodes=3))
