"""Ranks that are started by the job's own mpirun, over two nodes and without ssh."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobId, JobPhase
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import (
    agent_pid,
    ended,
    gang_group,
    lives,
    log_of,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard_runtime import job_folder, mpi_starter, processes, wire

# Says what MPI knows of the rank: its number and sum over all, and which ranks it calls local.
SUM = (
    "import os, socket\n"
    "from mpi4py import MPI\n"
    "world = MPI.COMM_WORLD\n"
    "local = world.Split_type(MPI.COMM_TYPE_SHARED)\n"
    "names = ('OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'RUNYARD_RANK')\n"
    "print(world.Get_rank(), world.allreduce(world.Get_rank() + 1), local.Get_rank(),\n"
    "      local.Get_size(), *[os.environ[name] for name in names], flush=True)\n"
)
WAIT = (
    "import os, signal, sys, time\n"
    "from mpi4py import MPI\n"
    "rank = MPI.COMM_WORLD.Get_rank()\n"
    "print('pids', os.getpid(), flush=True)\n"
    "MPI.COMM_WORLD.Barrier()\n"
)
FOREVER = "time.sleep(600)\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "address.json") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    # A blank in the path: mpirun is given it where it takes blanks for its own.
    engine = LocalEngine(tmp_path / "the jobs")
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def start(
    engine: LocalEngine, server: FakeServer, code: str, per_node: int = 1, **changes: object
) -> JobId:
    launcher = {"kind": "mpi", "nodes": 2, "processes_per_node": per_node}
    told = {"launcher": launcher, **changes}
    return engine.start(gang_group(engine, server, code, **told))  # type: ignore[arg-type]


def run(
    engine: LocalEngine, server: FakeServer, code: str, per_node: int = 1, **changes: object
) -> int | None:
    return ended(engine, start(engine, server, code, per_node, **changes)).exit_code


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "the jobs" / "job"


def daemon_pid(tmp_path: Path, node: int) -> int:
    """The process number of a node's mpirun or daemon."""
    known = job_folder.read_json(str(folder_of(tmp_path) / f"agent-{node}/mpi/rank-0.json"))
    return int(known["pid"])


def error_of(server: FakeServer) -> dict[str, object]:
    error = server.report("finished")["error"]
    assert isinstance(error, dict)
    return error


def own_program(tmp_path: Path, name: str, text: str) -> Path:
    """An environment whose Python is this one's, with a program of that text beside it."""
    folder = tmp_path / "env" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    (folder / name).write_text(text)
    (folder / name).chmod(stat.S_IRWXU)
    return folder / "python"


def test_mpi_joins_the_ranks_of_both_nodes_and_knows_its_neighbours(
    engine: LocalEngine, server: FakeServer
) -> None:
    assert run(engine, server, SUM, per_node=2) == 0
    # rank, sum, local rank and size as MPI has them, and as the variables say
    assert [server.log(log_of(rank)).split() for rank in range(4)] == [
        [str(rank), "10", str(rank % 2), "2", str(rank % 2), "2", str(rank)] for rank in range(4)
    ]
    assert "the mpirun of Open MPI 5 starts the ranks" in server.log(wire.CONTROL_LOG)


def test_nodes_without_names_of_their_own_are_one_host_to_mpi(
    engine: LocalEngine, server: FakeServer
) -> None:
    assert run(engine, server, SUM, hosts=["127.0.0.1", "127.0.0.1"]) == 0
    assert [server.log(log_of(rank)).split() for rank in range(2)] == [
        ["0", "3", "0", "2", "0", "1", "0"],
        ["1", "3", "1", "2", "0", "1", "1"],
    ]
    assert "warning: the nodes cannot be hosts of their own" in server.log(wire.CONTROL_LOG)


def test_a_node_has_one_container_with_mpirun_or_its_daemon_and_the_ranks(
    engine: LocalEngine, server: FakeServer
) -> None:
    path = f"PATH={Path(sys.executable).parent}:{os.defpath}"
    prefix = ["/usr/bin/env", "CONTAINER={name}", path]
    code = SUM + "print(os.environ['CONTAINER'])\n"
    assert run(engine, server, code, per_node=2, prefix=prefix) == 0
    said = [server.log(log_of(rank)).split() for rank in range(4)]
    assert [one[:4] for one in said] == [[str(rank), "10", str(rank % 2), "2"] for rank in range(4)]
    assert [one[-1].rpartition("-mpi-")[2] for one in said] == ["0", "0", "1", "1"]


def test_ranks_of_one_node_are_joined_too(engine: LocalEngine, server: FakeServer) -> None:
    launcher = {"kind": "mpi", "nodes": 1, "processes_per_node": 2}
    job = engine.start(gang_group(engine, server, SUM, nodes=1, launcher=launcher))
    assert ended(engine, job).exit_code == 0
    assert [server.log(log_of(rank)).split()[:4] for rank in range(2)] == [
        ["0", "3", "0", "2"],
        ["1", "3", "1", "2"],
    ]


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("os._exit(3)", 3, "Rank 1 (node 0) ended with exit code 3"),
        ("os.kill(os.getpid(), 9)", -9, "Rank 1 (node 0) ended by signal SIGKILL"),
        ("MPI.COMM_WORLD.Abort(5)", 5, "Rank 1 (node 0) ended with exit code 5"),
    ],
)
def test_a_rank_that_ends_early_ends_all_and_is_named(
    engine: LocalEngine, server: FakeServer, end: str, code: int, words: str
) -> None:
    script = WAIT + f"if rank == 1: {end}\n" + FOREVER
    assert run(engine, server, script, per_node=2) == code
    assert error_of(server)["rank"] == 1
    assert str(error_of(server)["message"]).startswith(words)
    assert not any(lives(printed_pids(server, log_of(rank))[0]) for rank in range(4))


@pytest.mark.parametrize("end", ["raise ValueError('no such class')", "sys.exit('bad data')"])
def test_an_exception_in_one_rank_ends_all_instead_of_waiting_for_them(
    engine: LocalEngine, server: FakeServer, end: str
) -> None:
    script = WAIT + f"import sys\nif rank == 1: {end}\nMPI.COMM_WORLD.Barrier()\n" + FOREVER
    assert run(engine, server, script) == 1
    assert error_of(server)["rank"] == 1
    assert "no such class" in str(error_of(server)) or "bad data" in str(error_of(server))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (0, "mpirun, which starts and joins the ranks, ended by signal SIGKILL"),
        (1, "The daemon of mpirun on node 1, which starts and joins the ranks, ended by signal"),
    ],
)
def test_an_mpirun_or_daemon_that_is_killed_fails_the_run_in_words(
    engine: LocalEngine, server: FakeServer, tmp_path: Path, node: int, words: str
) -> None:
    job = start(engine, server, WAIT + FOREVER)
    pids = [printed_pids(server, log_of(rank))[0] for rank in range(2)]
    os.kill(daemon_pid(tmp_path, node), signal.SIGKILL)
    ended(engine, job)
    assert error_of(server)["code"] == "MpirunFailed"
    assert str(error_of(server)["message"]).startswith(words)
    assert not any(lives(pid) for pid in pids)


def test_a_stop_lets_every_rank_save_its_work(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    job_dir = str(folder_of(tmp_path))
    save = (
        "import json\n"
        f"job = {job_dir!r}\n"
        "def save(*_):\n"
        "    if rank == 1:\n"
        f"        account = os.path.join(job, {wire.CONTROL_LOG!r})\n"
        "        while 'rank 0 ended' not in open(account).read(): time.sleep(0.02)\n"
        # What mpirun takes for rank 0 is still there, or mpirun would end this one.
        "        os.kill(json.load(open(job + '/agent-0/rank-0.json'))['keeper'], 0)\n"
        "    open('outputs/%d' % rank, 'w').write('saved')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('saves', flush=True)\n"
    )
    job = start(engine, server, WAIT + save + FOREVER)
    for rank in range(2):
        says(server, "saves", log_of(rank))
    os.kill(agent_pid(folder_of(tmp_path)), signal.SIGTERM)
    ended(engine, job)
    assert server.report("finished")["stopped"] is True
    assert [server.file(f"outputs/{rank}") for rank in range(2)] == [b"saved", b"saved"]


def test_agents_that_are_killed_are_replaced_and_mpi_goes_on(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = WAIT + (
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "print(MPI.COMM_WORLD.allreduce(rank + 1))\n"
    )
    launcher = {"kind": "mpi", "nodes": 2, "processes_per_node": 1}
    group = gang_group(engine, server, code, launcher=launcher)
    job = engine.start(group)
    for rank in range(2):
        printed_pids(server, log_of(rank))
    for node in range(2):
        os.kill(agent_pid(folder_of(tmp_path), node), signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    engine.start(group)
    gate.touch()
    assert ended(engine, job).exit_code == 0
    assert [server.log(log_of(rank)).split()[-1] for rank in range(2)] == ["3", "3"]
    assert "taking over mpirun" in server.log(wire.CONTROL_LOG)


def test_an_mpirun_that_cannot_start_ranks_fails_the_run_with_its_words(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    version = '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.1" && exit\n'
    python = own_program(
        tmp_path, "mpirun", version + "echo No daemon was reached. >&2\nexit 213\n"
    )
    run(engine, server, "", interpreter=str(python))
    assert error_of(server)["code"] == "MpirunFailed"
    assert error_of(server)["message"] == (
        "mpirun could not start the ranks (exit code 213). It says: No daemon was reached."
    )


def test_another_mpi_is_not_used_and_the_account_says_so(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    python = own_program(tmp_path, "mpirun", "#!/bin/sh\necho HYDRA build details:\n")
    code = "import os; print(os.environ['OMPI_COMM_WORLD_RANK'])"
    assert run(engine, server, code, interpreter=str(python)) == 0
    assert [server.log(log_of(rank)) for rank in range(2)] == ["0\n", "1\n"]
    assert "warning: the mpirun here is of MPICH" in server.log(wire.CONTROL_LOG)


@pytest.mark.parametrize("kills_all", [False, True])
def test_nothing_of_mpi_is_left_on_the_machine(
    engine: LocalEngine, server: FakeServer, tmp_path: Path, kills_all: bool
) -> None:
    job = start(engine, server, WAIT + FOREVER)
    pids = [printed_pids(server, log_of(rank))[0] for rank in range(2)]
    marker = processes.job_marker(str(folder_of(tmp_path)))
    places = [mpi_starter.places(marker, node)[0] for node in range(2)]
    assert all(os.path.isdir(place) for place in places)
    if kills_all:
        engine.kill(job)
    else:
        os.kill(pids[1], signal.SIGKILL)
        ended(engine, job)
    assert not any(os.path.exists(place) for place in places)
    wait_until(lambda: not processes.job_processes(marker))
