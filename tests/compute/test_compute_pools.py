"""Clusters under the conductor: a real store, a fake engine, and a clock that tests move."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import computes, runs
from runyard.conductor.changes import Changes
from runyard.conductor.conductor import Conductor
from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.compute import (
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    Machine,
    NodeRecord,
    NodeState,
)
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Conflict, Invalid, NotFound
from runyard.domain.files import Manifest, encode_manifest, manifest_digest
from runyard.domain.runs import LauncherSpec, RunRecord, RunSpec, ScriptSpec, Submission
from runyard.domain.states import TERMINAL, RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import Capabilities, JobId
from runyard.settings import Settings
from runyard.stores import open_store
from runyard.stores.base import Store
from runyard.testing.fake_builder import FakeBuilder
from runyard.testing.fake_engine import FakeEngine
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EMPTY: Manifest = ()
WORKSPACE = WorkspaceRecord(id="w1", name="ws", created=NOW)


class Yard:
    """A conductor that can be started anew, its store, its engine and its clock."""

    def __init__(self, home: Path, machine: Machine) -> None:
        self.store: Store = open_store(f"sqlite:///{home / 'runyard.db'}", str(home / "blobs"))
        self.store.records.insert(WORKSPACE)
        self.store.blobs.put(manifest_digest(EMPTY), [encode_manifest(EMPTY)])
        self.engine = FakeEngine()
        self.builder = FakeBuilder("slow")
        self.machine = machine
        self.now = NOW
        self.home = home
        self.conductor = self._begin()

    def _begin(self) -> Conductor:
        conductor = Conductor(
            self.store,
            Settings(home=self.home, local_slots=2),
            b"secret",
            Changes(),
            lambda: "http://127.0.0.1:1",
            engine=self.engine,
            builders=[self.builder],
            machine=self.machine,
            now=lambda: self.now,
        )
        conductor.start()
        return conductor

    def restart(self) -> None:
        """What a new server does."""
        self.conductor.stop()
        self.conductor = self._begin()

    def close(self) -> None:
        self.builder.finish.set()
        self.conductor.stop()
        self.store.close()

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.conductor.wake()

    def make(self, name: str = "cluster", size: str = "STANDARD_D2_V2", **scale: int) -> None:
        spec = ComputeSpec(vm_size=size, **{"max_nodes": 4, **scale})  # type: ignore[arg-type]
        computes.create_compute(self.store, WORKSPACE, name, spec, self.machine, self.now)
        self.conductor.wake()

    def cluster(self, name: str = "cluster") -> ComputeRecord:
        return computes.load_compute(self.store, WORKSPACE, name)

    def nodes(self, name: str = "cluster") -> tuple[NodeRecord, ...]:
        return self.cluster(name).nodes

    def states(self, name: str = "cluster") -> list[str]:
        return [str(node.state) for node in self.nodes(name)]

    def submit(self, target: str = "cluster", nodes: int = 1, environment: str = "e") -> RunRecord:
        script = ScriptSpec(
            arguments=("train.py",),
            snapshot=manifest_digest(EMPTY),
            environment=EnvironmentSpec(name=environment),
            target=target,
            launcher=LauncherSpec(nodes=nodes),
        )
        spec = RunSpec(workspace="ws", experiment="exp", script=script)
        # Not through `submit`, so that gangs can be tried before there are launchers for them.
        run = self.store.records.insert(runs.new_run(spec, self.now))
        self.conductor.wake(run.id)
        return run

    def run(self, run: RunRecord) -> RunRecord:
        return self.conductor.describe([self.store.records.get(RunRecord, run.id)])[0]

    def has_started(self, run: RunRecord) -> bool:
        return JobId(f"{run.uid}-1") in self.engine.starts

    def finish(self, run: RunRecord) -> None:
        ended = (RankEnd(rank=0, exit_code=0),)
        for phase in (wire.STARTED, wire.FINISHED):
            report = AgentReport(attempt=1, phase=phase, ranks=ended)
            runs.report(self.store, run.id, report, self.now)
        self.conductor.wake(run.id)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path, Machine(cores=8, gpus=("0", "1")))
    yield made
    made.close()


def until(check: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_node_comes_up_for_a_run_and_goes_when_it_has_idled(yard: Yard) -> None:
    yard.make(idle_seconds=60)
    assert yard.nodes() == ()
    run = yard.submit()
    until(lambda: yard.states() == ["running"])
    assert yard.nodes()[0].run == run.id
    assert [use.id for use in yard.run(run).nodes] == ["cluster-1"]
    yard.finish(run)
    until(lambda: yard.states() == ["idle"])
    yard.pass_time(59)
    again = yard.submit()
    until(lambda: yard.has_started(again))
    assert [use.id for use in yard.run(again).nodes] == ["cluster-1"], "it was still there"
    yard.finish(again)
    until(lambda: yard.states() == ["idle"])
    yard.pass_time(61)
    until(lambda: yard.states() in (["leaving"], []))
    yard.pass_time(1)
    until(lambda: yard.states() == [])


def test_the_nodes_that_are_always_kept_are_there_without_runs(yard: Yard) -> None:
    yard.make(min_nodes=2)
    until(lambda: yard.states() == ["idle", "idle"])
    yard.pass_time(100_000)
    run = yard.submit()
    until(lambda: yard.has_started(run))
    assert len(yard.nodes()) == 2


@pytest.mark.parametrize("sizes", [[1] * 40, [1, 2, 3, 4] * 10], ids=["single nodes", "gangs"])
def test_a_burst_of_forty_on_four_nodes_keeps_its_order_and_leaves_nothing(
    yard: Yard, sizes: list[int]
) -> None:
    yard.make(idle_seconds=60)
    burst = [yard.submit(nodes=size) for size in sizes]
    by_job = {JobId(f"{run.uid}-1"): run for run in burst}
    done: set[str] = set()

    def working() -> list[RunRecord]:
        return [run for run in burst if yard.has_started(run) and run.id not in done]

    while len(done) < len(burst):
        until(working)
        nodes = yard.nodes()
        assert len(nodes) <= 4
        assert sum(node.state is NodeState.RUNNING for node in nodes) <= 4
        taken = [use.id for run in working() for use in yard.run(run).nodes]
        assert len(taken) == len(set(taken)) <= 4, "no node works for two runs"
        first = working()[0]
        done.add(first.id)
        yard.finish(first)
    assert [by_job[job].id for job in yard.engine.starts] == [run.id for run in burst]
    assert all(yard.run(run).state is RunState.COMPLETED for run in burst)
    until(lambda: set(yard.states()) == {"idle"})
    yard.pass_time(61)
    yard.pass_time(1)
    until(lambda: yard.states() == [])


def test_a_queued_run_says_what_it_waits_for_and_its_place(yard: Yard) -> None:
    yard.make(max_nodes=2)
    one, two, three = (yard.submit(nodes=size) for size in (2, 2, 1))
    until(lambda: yard.run(three).state is RunState.QUEUED)
    assert yard.has_started(one)
    assert yard.run(two).waiting == (
        "waits for 2 nodes of 'cluster': 2 of 2 in use, place 1 of 2 in line"
    )
    assert yard.run(three).waiting == (
        "waits for 1 node of 'cluster': 2 of 2 in use, place 2 of 2 in line"
    )
    yard.finish(one)
    until(lambda: yard.has_started(two))
    assert not yard.has_started(three)


def test_each_node_has_its_cores_and_gpus_and_the_plan_says_so(yard: Yard) -> None:
    yard.make(size="STANDARD_NC6", max_nodes=2)
    first, second = yard.submit(), yard.submit()
    until(lambda: yard.has_started(first) and yard.has_started(second))
    plans = [msgspec.json.decode(group.plan) for group in yard.engine.groups.values()]
    assert [plan["cores"] for plan in plans] == [[4], [4]]
    assert [plan["gpus"] for plan in plans] == [[["0"]], [["1"]]]
    assert [plan["node_ids"] for plan in plans] == [["cluster-1"], ["cluster-2"]]
    until(lambda: [node.gpus for node in yard.nodes()] == [("0",), ("1",)])


def test_two_clusters_never_share_a_gpu(yard: Yard) -> None:
    yard.make("one", "STANDARD_NC6")
    yard.make("two", "STANDARD_NC6")
    working = [yard.submit("one"), yard.submit("two")]
    waiting = yard.submit("two")
    until(lambda: all(yard.has_started(run) for run in working))
    until(lambda: "GPU" in yard.run(waiting).waiting)
    held = [gpu for run in working for use in yard.run(run).nodes for gpu in use.gpus or ()]
    assert sorted(held) == ["0", "1"]
    yard.finish(working[0])
    until(lambda: yard.has_started(waiting))
    assert yard.run(waiting).nodes[0].gpus == ("0",)


def test_local_runs_are_not_kept_to_a_share(yard: Yard) -> None:
    run = yard.submit("local")
    until(lambda: yard.has_started(run))
    plan = msgspec.json.decode(yard.engine.groups[JobId(f"{run.uid}-1")].plan)
    assert not {"cores", "gpus"} & set(plan)


def test_a_small_machine_says_so_in_the_build_log_of_every_run(yard: Yard) -> None:
    yard.make(size="STANDARD_NC24")
    (words,) = yard.cluster().warnings
    ready, built = yard.submit(), yard.submit(environment="slow")
    until(lambda: yard.run(built).state is RunState.PREPARING)
    yard.builder.finish.set()

    def log(run: RunRecord) -> str:
        end = yard.store.streams.end(run.id, wire.BUILD_LOG)
        return yard.store.streams.read_log(run.id, wire.BUILD_LOG, 0, end).decode() if end else ""

    until(lambda: words in log(ready) and words in log(built))
    assert log(built) == f"building slow\nbuilt\n{words}\n"


def test_a_new_server_finds_nodes_runs_and_lines_as_they_were(yard: Yard) -> None:
    yard.make(max_nodes=2, size="STANDARD_NC6", idle_seconds=60)
    working = [yard.submit(), yard.submit()]
    until(lambda: all(yard.has_started(run) for run in working))
    waiting = [yard.submit(), yard.submit()]
    until(lambda: all(yard.run(run).state is RunState.QUEUED for run in waiting))
    before = yard.nodes()
    yard.restart()
    late = yard.submit()
    until(lambda: yard.run(late).state is RunState.QUEUED)
    assert len(yard.engine.starts) == 2, "the nodes are still taken"
    assert yard.nodes() == before
    yard.finish(working[1])
    until(lambda: yard.has_started(waiting[0]))
    assert yard.run(waiting[0]).nodes == yard.run(working[1]).nodes, "the freed node, its GPU"
    assert not yard.has_started(waiting[1])


def test_idle_time_goes_on_while_there_is_no_server(yard: Yard) -> None:
    yard.make(idle_seconds=60)
    run = yard.submit()
    until(lambda: yard.has_started(run))
    yard.finish(run)
    until(lambda: yard.states() == ["idle"])
    yard.conductor.stop()
    yard.now += timedelta(seconds=61)
    yard.restart()
    until(lambda: yard.states() in (["leaving"], []))


def test_a_crash_before_nodes_were_stored_is_mended_from_the_runs(yard: Yard) -> None:
    yard.make(max_nodes=2)
    run = yard.submit()
    until(lambda: yard.states() == ["running"])
    yard.conductor.stop()
    # As if the server had died after it stored the run and before it stored the cluster.
    computes.change(
        yard.store,
        yard.cluster().id,
        lambda record: msgspec.structs.replace(record, nodes=(), nodes_made=0),
    )
    yard.restart()
    other = yard.submit()
    until(lambda: yard.has_started(other))
    ids = [use.id for one in (run, other) for use in yard.run(one).nodes]
    assert len(set(ids)) == 2
    until(lambda: [node.run for node in yard.nodes()] == [run.id, other.id])


def test_nodes_whose_run_ended_without_a_server_are_free(yard: Yard) -> None:
    yard.make(max_nodes=1)
    run = yard.submit()
    until(lambda: yard.has_started(run))
    yard.conductor.stop()
    yard.finish(run)
    yard.restart()
    other = yard.submit()
    until(lambda: yard.has_started(other))
    assert yard.run(other).nodes[0].id == "cluster-1"


def test_a_canceled_run_gives_its_place_in_line_away(yard: Yard) -> None:
    yard.make(max_nodes=1)
    working, second, third = yard.submit(), yard.submit(), yard.submit()
    until(lambda: yard.run(third).state is RunState.QUEUED)
    runs.cancel(yard.store, second.id, yard.now)
    yard.conductor.wake(second.id)
    until(lambda: "place 1 of 1" in yard.run(third).waiting)
    yard.finish(working)
    until(lambda: yard.has_started(third))


def test_a_larger_limit_helps_those_who_wait(yard: Yard) -> None:
    yard.make(max_nodes=1)
    first, gang = yard.submit(), yard.submit(nodes=2)
    until(lambda: "cannot start" in yard.run(gang).waiting)
    computes.update_compute(
        yard.store, WORKSPACE, "cluster", ComputePatch(max_nodes=3), yard.machine, yard.now
    )
    yard.conductor.wake()
    until(lambda: yard.has_started(gang))
    assert yard.has_started(first)
    until(lambda: yard.states() == ["running"] * 3)


def test_a_cluster_in_use_is_not_deleted(yard: Yard) -> None:
    yard.make()
    run = yard.submit()
    until(lambda: yard.has_started(run))
    with pytest.raises(Conflict, match=f"is in use.*\n.*1 unfinished run.*{run.id}"):
        computes.delete_compute(yard.store, WORKSPACE, "cluster")
    yard.finish(run)
    computes.delete_compute(yard.store, WORKSPACE, "cluster")
    with pytest.raises(NotFound, match="It has: local"):
        yard.cluster()


def test_a_run_whose_target_is_gone_fails_in_words(yard: Yard) -> None:
    run = yard.submit("nowhere")
    until(lambda: yard.run(run).state in TERMINAL)
    error = yard.run(run).error
    assert error is not None
    assert "'nowhere' was deleted" in error.message


@pytest.mark.parametrize(
    ("target", "nodes", "error", "words"),
    [
        ("nowhere", 1, NotFound, "It has: local, cluster"),
        ("cluster", 5, Invalid, "max_nodes is 4"),
    ],
)
def test_a_submission_is_checked_against_its_target(
    yard: Yard, target: str, nodes: int, error: type[Exception], words: str
) -> None:
    yard.make()
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=manifest_digest(EMPTY),
        environment=EnvironmentSpec(name="e"),
        target=target,
        launcher=LauncherSpec(nodes=nodes),
    )
    with pytest.raises(error, match=words):
        computes.check_target(yard.store, WORKSPACE, script, lambda engine: Capabilities())
    if nodes == 1:
        spec = RunSpec(workspace="ws", experiment="exp", script=script)
        with pytest.raises(error, match=words):
            runs.submit(yard.store, Submission(spec=spec, manifest=EMPTY), yard.now)


def test_making_it_again_changes_the_scale_but_not_the_size(yard: Yard) -> None:
    yard.make(max_nodes=2)
    yard.make(max_nodes=3)
    assert yard.cluster().max_nodes == 3
    with pytest.raises(Conflict, match="another size"):
        yard.make(size="STANDARD_NC6")
