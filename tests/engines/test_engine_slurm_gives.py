"""What Slurm gives to ranks: GPUs by gres, and a start by `srun --mpi`."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import Invalid
from runyard.engines.base import JobId, JobStatus, NodeGroup, NodeResources
from runyard.engines.slurm import SlurmEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    ended,
    gang_group,
    job_group,
    lives,
    log_of,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.slurm_cluster import SlurmCluster, why_not_pmix

JOB = JobId("job")
SEES = "import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"
JOINED = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
told = [os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")]
print(world.rank, "of", world.size, "total", total, "told", *told, flush=True)
"""

Opened = Callable[..., SlurmEngine]


@pytest.fixture
def cluster(slurm_of_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whose nodes are free again after the test, with nothing on them."""
    yield slurm_of_session
    slurm_of_session.clear()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def opened(cluster: SlurmCluster, tmp_path: Path) -> Opened:
    """Opens an engine on the cluster, with further options."""

    def open_it(*, shared: bool = True, **more: str) -> SlurmEngine:
        options = {
            "conf": str(cluster.conf),
            "one_machine": "true",
            "shared": str(shared).lower(),
            "folder": str(tmp_path / "node"),
            "python": sys.executable,
        }
        return SlurmEngine(tmp_path / "jobs", {**options, **more})

    return open_it


def status_of(engine: SlurmEngine) -> JobStatus:
    return engine.poll([JOB])[JOB]


def with_gpus(group: NodeGroup, gpus: int) -> NodeGroup:
    return msgspec.structs.replace(group, resources=NodeResources(cores=1, gpus=gpus))


# ---- GPUs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_two_jobs_on_a_node_never_see_the_same_gpu(
    opened: Opened, server: FakeServer, shared: bool
) -> None:
    engine = opened(shared=shared, arguments="--nodelist=n1")
    seen = []
    for key in ("one", "two"):
        engine.start(with_gpus(job_group(server, SEES + FOREVER, key=key), 1))
        says(server, "running")
        seen.append(server.log(DRIVER_LOG).split()[1])
        server.streams.clear()
    assert sorted(seen) == ["0", "1"]
    third = JobId("three")
    engine.start(with_gpus(job_group(server, SEES, key=third), 1))
    wait_until(lambda: "no nodes are free" in engine.poll([third])[third].detail)
    engine.kill(JobId("one"))
    ended(engine, third)
    assert server.log(DRIVER_LOG) == f"sees {seen[0]}\n"


def test_all_ranks_of_a_node_see_what_slurm_gave_it(opened: Opened, server: FakeServer) -> None:
    engine = opened()
    engine.start(with_gpus(gang_group(engine, server, SEES, per_node=2), 2))
    assert ended(engine, JOB).exit_code == 0
    assert {server.log(log_of(rank)) for rank in range(4)} == {"sees 0,1\n"}


def test_the_gpus_of_the_server_are_not_taken_for_those_of_a_job(
    cluster: SlurmCluster,
    opened: Opened,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    engine = opened()
    engine.start(job_group(server, SEES))
    assert ended(engine, JOB).exit_code == 0
    assert server.log(DRIVER_LOG) == "sees None\n"


def test_more_gpus_than_a_node_has_are_refused_in_words(opened: Opened, server: FakeServer) -> None:
    with pytest.raises(Invalid, match="No node of the cluster has what the job asks for"):
        opened().start(with_gpus(job_group(server, SEES), 3))


# ---- MPI by srun ---------------------------------------------------------------------------------


@pytest.fixture
def by_srun(opened: Opened) -> SlurmEngine:
    if reason := why_not_pmix():
        pytest.skip(reason)
    return opened(mpi="pmix")


def mpi_group(engine: SlurmEngine, server: FakeServer, code: str) -> NodeGroup:
    launcher = {"kind": "mpi", "nodes": 2, "processes_per_node": 2}
    return gang_group(engine, server, code, launcher=launcher)


def test_srun_starts_the_ranks_and_mpi_joins_them(by_srun: SlurmEngine, server: FakeServer) -> None:
    fails = "world.barrier()\nif world.rank == 2: os._exit(3)\nimport time; time.sleep(600)"
    by_srun.start(mpi_group(by_srun, server, JOINED + fails))
    assert ended(by_srun, JOB).exit_code == 3
    for rank in range(4):
        expected = f"{rank} of 4 total 10 told {rank} {rank % 2}\n"
        assert expected in server.log(log_of(rank))
    assert "srun --mpi=pmix starts the ranks" in server.log("azureml-logs/55_azureml-execution.txt")
    error = server.report("finished")["error"]
    assert isinstance(error, dict)
    assert (error["rank"], error["exit_code"]) == (2, 3)


def test_a_rank_of_srun_that_aborts_is_told(by_srun: SlurmEngine, server: FakeServer) -> None:
    by_srun.start(mpi_group(by_srun, server, JOINED + "if world.rank == 2: world.Abort(7)"))
    assert ended(by_srun, JOB).exit_code != 0
    error = server.report("finished")["error"]
    assert isinstance(error, dict)
    assert error["rank"] is not None
    assert error["exit_code"] == 7 or "one of them calls MPI_Abort" in error["message"]


def test_ranks_of_srun_stop_with_their_grace(by_srun: SlurmEngine, server: FakeServer) -> None:
    code = (
        JOINED + "import signal, sys, time\n"
        "def leave(*_):\n"
        "    open('outputs/%d' % world.rank, 'w').write('x')\n"
        # Slurm kills the others at once when one ends without MPI_Finalize.
        "    while len(os.listdir('outputs')) < 4: time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('pids', os.getpid(), flush=True)\n"
    )
    by_srun.start(mpi_group(by_srun, server, code + FOREVER))
    pids = [pid for rank in range(4) for pid in printed_pids(server, log_of(rank))]
    for rank in range(4):
        says(server, "running", log_of(rank))
    by_srun.stop(JOB)
    ended(by_srun, JOB)
    assert server.report("finished")["stopped"] is True
    assert sorted(server.files) == [f"outputs/{rank}" for rank in range(4)]
    assert not any(lives(pid) for pid in pids)


def test_ranks_of_srun_are_killed_with_the_job(by_srun: SlurmEngine, server: FakeServer) -> None:
    code = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n"
    by_srun.start(mpi_group(by_srun, server, code + FOREVER))
    pids = [pid for rank in range(4) for pid in printed_pids(server, log_of(rank))]
    by_srun.kill(JOB)
    assert not any(lives(pid) for pid in pids)


def test_a_plugin_that_slurm_does_not_have_is_told(opened: Opened, server: FakeServer) -> None:
    engine = opened(mpi="nothing")
    engine.start(mpi_group(engine, server, JOINED))
    assert ended(engine, JOB).exit_code not in (0, -signal.SIGTERM)
    error = server.report("finished")["error"]
    assert isinstance(error, dict)
    assert error["code"] == "MpirunFailed"
    assert "srun could not start the ranks" in error["message"]
    assert "nothing" in error["message"]


def test_srun_needs_a_folder_that_all_nodes_share(opened: Opened) -> None:
    with pytest.raises(Invalid, match=r"(?s)needs a shared folder.*mpirun then starts"):
        opened(shared=False, mpi="pmix")
