"""The Slurm engine on a real cluster: the promises of every engine, and what is its own."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import EngineFailed, Invalid, Unavailable
from runyard.engines import ENGINES
from runyard.engines.base import JobId, JobPhase, JobStatus, NodeGroup, NodeResources
from runyard.engines.slurm import SlurmEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    Engines,
    EngineSuite,
    agent_pid,
    ended,
    gang_group,
    job_group,
    lives,
    log_of,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.interpreters import interpreters
from runyard.testing.slurm_cluster import SlurmCluster, slurm_of_session

__all__ = ["slurm_of_session"]

JOB = JobId("job")


@pytest.fixture
def cluster(slurm_of_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whose nodes are free again after the test."""
    yield slurm_of_session
    slurm_of_session.clear()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def options_of(cluster: SlurmCluster, **more: str) -> dict[str, str]:
    return {"conf": str(cluster.conf), "one_machine": "true", **more}


def apart(cluster: SlurmCluster, folder: Path) -> dict[str, str]:
    """The options of a cluster whose nodes share nothing with the server."""
    return options_of(cluster, shared="false", folder=str(folder), python=sys.executable)


@pytest.fixture
def engine(cluster: SlurmCluster, tmp_path: Path) -> SlurmEngine:
    return SlurmEngine(tmp_path / "jobs", options_of(cluster))


class TestSlurmEngine(EngineSuite):
    @pytest.fixture
    def engines(self, cluster: SlurmCluster, tmp_path: Path) -> Engines:
        return lambda: SlurmEngine(tmp_path / "jobs", options_of(cluster))


class TestSlurmEngineWithoutSharedFolder(EngineSuite):
    @pytest.fixture
    def engines(self, cluster: SlurmCluster, tmp_path: Path) -> Engines:
        return lambda: SlurmEngine(tmp_path / "jobs", apart(cluster, tmp_path / "node"))


def status_of(engine: SlurmEngine) -> JobStatus:
    return engine.poll([JOB])[JOB]


def wants(server: FakeServer, **resources: float) -> NodeGroup:
    group = job_group(server, FOREVER)
    return msgspec.structs.replace(
        group, resources=msgspec.convert(resources, NodeResources, strict=False)
    )


def test_the_table_opens_it_with_its_options(cluster: SlurmCluster, tmp_path: Path) -> None:
    engine = ENGINES["slurm"](tmp_path, options_of(cluster, shared="false"), {})
    assert engine.name == "slurm"
    assert engine.capabilities.shared_folder is False
    engine.check()


# ---- what Slurm refuses ------------------------------------------------------------------------


def test_a_partition_that_does_not_exist_is_refused_in_words(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    engine = SlurmEngine(tmp_path, options_of(cluster, partition="nowhere"))
    with pytest.raises(Invalid, match=r"(?s)does not have that partition.*nowhere.*sinfo"):
        engine.check()
    with pytest.raises(Invalid, match="does not have that partition"):
        engine.start(job_group(server, ""))
    assert list(engine.jobs()) == []


@pytest.mark.parametrize("resources", [{"memory_gb": 900.0}, {"gpus": 1.0}], ids=["memory", "gpus"])
def test_a_size_that_no_node_has_is_refused(
    engine: SlurmEngine, server: FakeServer, resources: Mapping[str, float]
) -> None:
    with pytest.raises(Invalid, match="No node of the cluster has what the job asks for"):
        engine.start(wants(server, **resources))
    assert list(engine.jobs()) == []


def test_what_slurm_takes_but_never_runs_is_gone_with_the_reason(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer
) -> None:
    engine.start(gang_group(engine, server, FOREVER, nodes=5))
    wait_until(lambda: status_of(engine).phase is JobPhase.GONE)
    assert status_of(engine).node_lost
    assert "it asks for more nodes" in status_of(engine).detail
    assert "PENDING" not in cluster.ask("squeue", "--noheader", "--format=%T")


def test_a_job_that_waits_says_why_and_can_be_stopped(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    engine = SlurmEngine(tmp_path, options_of(cluster, partition="closed"))
    engine.start(job_group(server, FOREVER))
    wait_until(lambda: "its partition is down (PartitionDown)" in status_of(engine).detail)
    assert status_of(engine).phase is JobPhase.PENDING
    engine.stop(JOB)
    assert ended(engine, JOB).exit_code == -signal.SIGTERM
    assert server.phases() == []


def test_a_server_without_slurms_programs_says_so(tmp_path: Path, server: FakeServer) -> None:
    engine = SlurmEngine(tmp_path, {}, environ={"PATH": str(tmp_path)})
    with pytest.raises(EngineFailed, match=r"'sbatch' is not on the server's PATH"):
        engine.check()


def test_a_controller_that_is_away_changes_nothing_for_its_jobs(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer
) -> None:
    engine.start(job_group(server, FOREVER))
    says(server, "running")
    cluster.stop_controller()
    with pytest.raises(Unavailable, match="controller does not answer"):
        engine.poll([JOB])
    cluster.start_controller()
    wait_until(cluster.answers)
    assert status_of(engine).phase is JobPhase.ACTIVE
    engine.stop(JOB)
    ended(engine, JOB)
    assert server.report("finished")["stopped"] is True


# ---- what Slurm ends ---------------------------------------------------------------------------


def test_a_lost_node_is_noticed_and_named(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer, tmp_path: Path
) -> None:
    code = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n"
    group = gang_group(engine, server, code + FOREVER)
    engine.start(group)
    pids = [pid for rank in range(2) for pid in printed_pids(server, log_of(rank))]
    pids += [agent_pid(tmp_path / "jobs" / "job", node) for node in range(2)]
    second = status_of(engine).hosts[1]
    cluster.lose_node(second)
    wait_until(lambda: status_of(engine).phase is JobPhase.GONE)
    assert status_of(engine).node_lost
    assert status_of(engine).detail.endswith(f"a node of it failed: {second}")
    with pytest.raises(EngineFailed, match="a node of it failed"):
        engine.start(group)
    engine.kill(JOB)
    assert not any(lives(pid) for pid in pids)


def test_who_cancels_a_job_in_slurm_loses_no_outputs(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer
) -> None:
    # A time limit and a preemption send the same signal to the same processes.
    code = "import os\nopen('outputs/' + os.environ['RANK'], 'w').write('x')\n"
    engine.start(gang_group(engine, server, code + FOREVER))
    says(server, "running", log_of(0))
    says(server, "running", log_of(1))
    cluster.ask("scancel", "--user=root")
    # Slurm may signal the ranks as well, so they may end before their agents end them.
    assert ended(engine, JOB).exit_code == -signal.SIGTERM
    assert server.phases() == ["started", "ended", "finished"]
    assert sorted(server.files) == ["outputs/0", "outputs/1"]


def test_a_drained_node_lets_its_job_end(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        "import os, time\n"
        "print('running', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    engine.start(job_group(server, code))
    says(server, "running")
    node = status_of(engine).hosts[0]
    cluster.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        assert status_of(engine).phase is JobPhase.ACTIVE
        gate.touch()
        assert ended(engine, JOB).exit_code == 0
    finally:
        cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")


def test_an_interpreter_that_is_not_there_is_told(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    engine = SlurmEngine(tmp_path, options_of(cluster, python="/nowhere/python"))
    engine.start(job_group(server, ""))
    status = ended(engine, JOB)
    assert status.exit_code == 127
    assert "/nowhere/python" in status.detail


# ---- what is ours ------------------------------------------------------------------------------


def test_a_job_whose_id_was_not_noted_is_found_by_its_name(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer, tmp_path: Path
) -> None:
    group = job_group(server, FOREVER)
    engine.start(group)
    says(server, "running")
    (tmp_path / "jobs" / "job" / "slurm.json").unlink()  # the server died before it wrote that
    another = SlurmEngine(tmp_path / "jobs", options_of(cluster))
    another.start(group)
    assert len(cluster.ask("squeue", "--noheader").splitlines()) == 1
    another.kill(JOB)


def test_two_servers_with_the_same_key_have_two_jobs(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer, tmp_path: Path
) -> None:
    other = SlurmEngine(tmp_path / "other", options_of(cluster))
    engine.start(job_group(server, FOREVER))
    assert other.poll([JOB])[JOB].phase is JobPhase.GONE
    other.kill(JOB)
    wait_until(lambda: status_of(engine).phase is JobPhase.ACTIVE)


def test_ranks_do_not_take_slurms_account_for_theirs(
    engine: SlurmEngine, server: FakeServer
) -> None:
    code = (
        "import os\n"
        "foreign = ('SLURM', 'PMI', 'SBATCH')\n"
        "print(sorted(name for name in os.environ if name.startswith(foreign)))\n"
    )
    engine.start(gang_group(engine, server, code))
    ended(engine, JOB)
    assert server.log(log_of(0)) == "['SLURM_CONF']\n"


def test_an_exit_code_is_known_after_slurm_has_forgotten_the_job(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    options = apart(cluster, tmp_path / "node")
    engine = SlurmEngine(tmp_path / "jobs", options)
    engine.start(job_group(server, "raise SystemExit(70)"))
    assert ended(engine, JOB).exit_code == 70
    cluster.stop_controller()  # so that it cannot be asked
    assert SlurmEngine(tmp_path / "jobs", options).poll([JOB])[JOB].exit_code == 70


@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda path: Path(path).parts[-3])
@pytest.mark.parametrize("shared", ["true", "false"], ids=["shared", "apart"])
def test_nodes_may_have_another_python(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path, interpreter: str, shared: str
) -> None:
    options = {**apart(cluster, tmp_path / "node"), "shared": shared, "python": interpreter}
    engine = SlurmEngine(tmp_path / "jobs", options)
    engine.start(gang_group(engine, server, "import sys; sys.exit(4)"))
    assert ended(engine, JOB).exit_code == 4


def test_a_node_that_cannot_reach_the_server_says_so(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    engine = SlurmEngine(tmp_path / "jobs", apart(cluster, tmp_path / "node"))
    group = job_group(server, "")
    server.refuse = ("/plan", 403)
    engine.start(group)
    wait_until(lambda: status_of(engine).phase is JobPhase.GONE, 60.0)
    assert "the server refused the node" in status_of(engine).detail


def test_an_agent_that_is_killed_again_and_again_leaves_nothing(
    engine: SlurmEngine, server: FakeServer
) -> None:
    code = "import os; print('pids', os.getpid(), flush=True)\n"
    code += "print('folder', os.environ['RUNYARD_JOB_DIR'], flush=True)\n"
    engine.start(job_group(server, code + FOREVER))
    pids = printed_pids(server)
    says(server, "running")
    folder = Path(server.log(DRIVER_LOG).split("folder ")[1].split()[0])

    def is_gone() -> bool:
        pid = agent_pid(folder)
        if lives(pid):
            os.kill(pid, signal.SIGKILL)
        return status_of(engine).phase is JobPhase.GONE

    wait_until(is_gone, 60.0)
    assert "its agents were lost" in status_of(engine).detail
    assert not any(lives(pid) for pid in pids)
