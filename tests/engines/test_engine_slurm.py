"""The Slurm engine on a real cluster: the promises of every engine, and what is its own."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import EngineFailed, Invalid, Unavailable
from runyard.engines import ENGINES
from runyard.engines.base import JobId, JobPhase, JobStatus, NodeGroup, NodeResources
from runyard.engines.slurm import SlurmEngine
from runyard.engines.slurm_script import job_name
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    Engines,
    EngineSuite,
    LoseNode,
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
from runyard.testing.slurm_cluster import SlurmCluster
from runyard_runtime import processes

JOB = JobId("job")


@pytest.fixture
def cluster(slurm_of_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whose nodes are free again after the test, with nothing on them."""
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


@pytest.fixture
def lose_one(cluster: SlurmCluster) -> LoseNode:
    """Has the second of a job's nodes vanish: its daemon and all that it started."""

    def lose(hosts: Sequence[str]) -> str:
        cluster.lose_node(hosts[1])
        return hosts[1]

    return lose


@pytest.fixture
def lose_one_unsaid(cluster: SlurmCluster) -> LoseNode:
    """The same, and Slurm is to notice by itself."""

    def lose(hosts: Sequence[str]) -> str:
        cluster.lose_node(hosts[1], is_told=False)
        return hosts[1]

    return lose


class TestSlurmEngine(EngineSuite):
    @pytest.fixture
    def engines(self, cluster: SlurmCluster, tmp_path: Path) -> Engines:
        return lambda: SlurmEngine(tmp_path / "jobs", options_of(cluster))

    @pytest.fixture
    def lose_node(self, lose_one_unsaid: LoseNode) -> LoseNode:
        return lose_one_unsaid


class TestSlurmEngineWithoutSharedFolder(EngineSuite):
    @pytest.fixture
    def engines(self, cluster: SlurmCluster, tmp_path: Path) -> Engines:
        return lambda: SlurmEngine(tmp_path / "jobs", apart(cluster, tmp_path / "node"))

    @pytest.fixture
    def lose_node(self, lose_one: LoseNode) -> LoseNode:
        return lose_one


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


@pytest.mark.parametrize("resources", [{"memory_gb": 900.0}, {"gpus": 3.0}], ids=["memory", "gpus"])
def test_a_size_that_no_node_has_is_refused(
    engine: SlurmEngine, server: FakeServer, resources: Mapping[str, float]
) -> None:
    with pytest.raises(Invalid, match="No node of the cluster has what the job asks for"):
        engine.start(wants(server, **resources))
    assert list(engine.jobs()) == []


def test_what_slurm_takes_but_never_runs_is_gone_with_the_reason(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer
) -> None:
    group = gang_group(engine, server, FOREVER, nodes=5)
    engine.start(group)
    wait_until(lambda: status_of(engine).phase is JobPhase.GONE)
    assert status_of(engine).node_lost
    with pytest.raises(EngineFailed, match="it asks for more nodes"):
        engine.start(group)
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


def test_what_slurm_refuses_only_for_now_is_tried_again_and_fails_nobody(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path
) -> None:
    said, program = tmp_path / "said", tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    real = shutil.which("sbatch")
    refuse = f"if [ -e {said} ]; then cat {said} >&2; exit 1; fi"
    program.write_text(f'#!/bin/sh\n{refuse}\nexec {real} "$@"\n')
    program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    engine = SlurmEngine(tmp_path / "jobs", options_of(cluster), environ=environ)
    munge = "sbatch: error: Munge encode failed: Failed to access munge.socket.2\n"
    said.write_text(munge)
    with pytest.raises(EngineFailed, match="cannot be used from the server's machine"):
        engine.check()
    said.unlink()
    engine.check()
    group = job_group(server, FOREVER)
    for words in (munge, "sbatch: error: AssocMaxSubmitJobLimit\n"):
        said.write_text(words)
        with pytest.raises(Unavailable):
            engine.start(group)
    said.unlink()
    engine.start(group)
    says(server, "running")
    assert len(cluster.ask("squeue", "--noheader").splitlines()) == 1
    engine.kill(JOB)


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


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
def test_of_two_jobs_that_a_slow_sbatch_has_made_the_oldest_is_kept(
    cluster: SlurmCluster,
    engine: SlurmEngine,
    server: FakeServer,
    tmp_path: Path,
    is_noted: bool,
) -> None:
    group = job_group(server, FOREVER)
    # What the first call handed over, as Slurm has it when it works that off in the end.
    name = job_name("r", processes.job_marker(str(tmp_path / "jobs" / "job")))
    late = cluster.ask(
        "sbatch", "--parsable", f"--job-name={name}", "--partition=closed", "--wrap=true"
    ).strip()
    engine.start(group)
    if not is_noted:
        (tmp_path / "jobs" / "job" / "slurm.json").unlink()
        engine.start(group)
    assert status_of(engine).name == late
    states = dict(
        line.split() for line in cluster.ask("squeue", "-ht", "all", "-o", "%A %T").splitlines()
    )
    ours = [number for number in states if states[number] in ("PENDING", "RUNNING")]
    assert ours == [late], states
    engine.kill(JOB)
    assert cluster.ask("squeue", "--noheader") == ""


def test_a_kill_ends_all_jobs_of_its_key(
    cluster: SlurmCluster, engine: SlurmEngine, server: FakeServer, tmp_path: Path
) -> None:
    engine.start(job_group(server, FOREVER))
    name = job_name("r", processes.job_marker(str(tmp_path / "jobs" / "job")))
    cluster.ask("sbatch", f"--job-name={name}", "--partition=closed", "--wrap=true")
    engine.kill(JOB)
    assert cluster.ask("squeue", "--noheader") == ""


@pytest.mark.parametrize("folder", ["50%j of 'ours'", "50%j\\x"])
def test_squeue_shows_the_run_and_signs_in_a_folders_name_mean_nothing(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path, folder: str
) -> None:
    engine = SlurmEngine(tmp_path / folder, options_of(cluster))
    group = job_group(server, FOREVER)
    engine.start(group)
    says(server, "running")
    assert msgspec.json.decode(group.plan)["run_id"] == "fake run/1"
    shown = cluster.ask("squeue", "--noheader", "--format=%j|%k").strip()
    assert shown.startswith("fake_run_1:job-")
    assert shown.endswith("|Runyard run fake run/1")
    assert (tmp_path / folder / "job" / "slurm.log").exists()
    engine.kill(JOB)


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


# The oldest and the newest: ours is that of all other tests.
@pytest.mark.parametrize(
    ("interpreter", "shared"),
    [(interpreters()[0], "true"), (interpreters()[0], "false"), (interpreters()[-1], "false")],
    ids=["oldest-shared", "oldest-apart", "newest-apart"],
)
def test_nodes_may_have_another_python(
    cluster: SlurmCluster, server: FakeServer, tmp_path: Path, interpreter: str, shared: str
) -> None:
    options = {**apart(cluster, tmp_path / "node"), "shared": shared, "python": interpreter}
    engine = SlurmEngine(tmp_path / "jobs", options)
    engine.start(gang_group(engine, server, "import sys; sys.exit(4)"))
    assert ended(engine, JOB).exit_code == 4


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
