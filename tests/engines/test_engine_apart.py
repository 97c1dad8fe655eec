"""Nodes that share nothing with the server: the promises of every engine, over HTTP alone."""

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from runyard.engines.base import JobId, JobPhase, NodeGroup
from runyard.testing.apart_engine import ApartEngine
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
from runyard.testing.fake_server import AGENT_TOKEN, FakeServer, wait_until
from runyard.testing.faulty_web import FaultyWeb
from runyard.testing.interpreters import interpreters
from runyard_runtime import boot, remote

ACCOUNT = "azureml-logs/55_azureml-execution.txt"
RUNTIME = ("GET", "/api/v1/runtime")
UV = ("GET", "/api/v1/uv")


class TestApartEngine(EngineSuite):
    counts_resources = False

    @pytest.fixture
    def engines(self, tmp_path: Path) -> Engines:
        return lambda: ApartEngine(tmp_path / "site")

    @pytest.fixture
    def lose_node(self, tmp_path: Path) -> LoseNode:
        def lose(hosts: Sequence[str]) -> str:
            ApartEngine(tmp_path / "site").lose_node(hosts[1])
            return hosts[1]

        return lose


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ApartEngine]:
    yield from made(ApartEngine(tmp_path / "site"))


def made(engine: ApartEngine) -> Iterator[ApartEngine]:
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def with_plan(group: NodeGroup, **changes: object) -> NodeGroup:
    """The group as an engine gets it that was told something else."""
    plan = json.dumps({**json.loads(group.plan), **changes}).encode()
    return NodeGroup(key=group.key, nodes=group.nodes, plan=plan)


def status(engine: ApartEngine, job: JobId) -> int:
    """The exit status of the agent's process."""
    wait_until(lambda: engine.status_of(job) is not None)
    found = engine.status_of(job)
    assert found is not None
    return found


# ---- what a node keeps -------------------------------------------------------------------------


def test_a_node_fetches_the_runtime_once_and_keeps_nothing_of_a_job_that_is_over(
    engine: ApartEngine, server: FakeServer
) -> None:
    for key in ("one", "two"):
        ended(engine, engine.start(job_group(server, "print(1)", key=key)))
    assert server.requests.count(RUNTIME) == 1
    assert not engine.place(JobId("one")).exists()
    names = sorted(os.listdir(engine.node(0) / "jobs"))
    assert names == ["one.0.over", "two.0.over"]
    assert len(os.listdir(engine.node(0) / "runtime")) == 2, "the package, and a lock"


def test_agents_that_share_a_node_fetch_once_and_do_not_meet_in_one_folder(
    server: FakeServer, tmp_path: Path
) -> None:
    for engine in made(
        ApartEngine(tmp_path / "site", RUNYARD_NODE_FOLDER=str(tmp_path / "home of all"))
    ):
        code = "import os; print(os.getcwd()); open('outputs/' + os.environ['RANK'], 'w')"
        assert ended(engine, engine.start(gang_group(engine, server, code, nodes=3))).exit_code == 0
        assert server.requests.count(RUNTIME) == 1
        assert len({server.log(log_of(rank)) for rank in range(3)}) == 3
        assert sorted(server.files) == ["outputs/0", "outputs/1", "outputs/2"]


def test_what_the_server_did_not_take_stays_on_the_node(
    engine: ApartEngine, server: FakeServer
) -> None:
    server.refuse = ("/reports", 410)
    job = engine.start(job_group(server, "print(1)"))
    assert ended(engine, job).exit_code == 0
    assert (engine.place(job) / "azureml-logs" / "70_driver_log.txt").read_text() == "1\n"


@pytest.mark.parametrize("refusal", [401, 403])
def test_a_server_that_takes_no_token_for_a_while_ends_nothing(
    engine: ApartEngine, server: FakeServer, tmp_path: Path, refusal: int
) -> None:
    code = (
        "import os, time; print('running', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        "print('done')"
    )
    job = engine.start(job_group(server, code, denied_seconds=0))
    says(server, "running")

    def reports() -> int:
        return sum(path.endswith("/reports") for _, path in list(server.requests))

    server.refuse, before = ("/api/v1/", refusal), reports()
    wait_until(lambda: reports() > before)
    (tmp_path / "go").touch()
    server.refuse = None
    assert ended(engine, job).exit_code == 0
    assert server.log(DRIVER_LOG) == "running\ndone\n"


def test_an_engine_that_cleans_up_itself_finds_the_folder(
    engine: ApartEngine, server: FakeServer
) -> None:
    job = engine.start(job_group(server, "print(1)", keep_folder=True))
    ended(engine, job)
    assert remote.find_exit(str(engine.place(job)), 0) == 0
    assert engine.place(job).exists()


def test_ranks_see_nothing_of_what_the_engine_told_the_agent(
    engine: ApartEngine, server: FakeServer
) -> None:
    code = "import os; print(sorted(os.environ), list(os.environ.values()))"
    ended(engine, engine.start(job_group(server, code)))
    text = server.log(DRIVER_LOG)
    assert "PATH" in text
    for hidden in ("RUNYARD_NODE", "KEPT", "/nowhere", AGENT_TOKEN):
        assert hidden not in text


def test_a_node_removes_old_folders_but_none_that_another_machine_works_in(
    engine: ApartEngine, server: FakeServer
) -> None:
    jobs = engine.node(0) / "jobs"
    for name in ("over.0", "works.0"):
        (jobs / name / "agent-0").mkdir(parents=True)
        (jobs / name / "agent-0" / "lock").touch()
        for one in (jobs / name / "agent-0", jobs / name):
            os.utime(one, (1e9, 1e9))
    with (jobs / "works.0" / "agent-0" / "lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # its agent's, on a machine with the same home
        ended(engine, engine.start(job_group(server, "")))
    assert sorted(os.listdir(jobs)) == ["job.0.over", "works.0"]


def test_an_agent_of_the_oldest_python_works_too(server: FakeServer, tmp_path: Path) -> None:
    oldest = interpreters()[0]
    for engine in made(ApartEngine(tmp_path / "site", interpreter=str(oldest))):
        job = engine.start(gang_group(engine, server, "print('here')"))
        assert ended(engine, job).exit_code == 0
        assert [server.log(log_of(rank)) for rank in range(2)] == ["here\n"] * 2


def test_all_of_a_job_on_a_node_can_be_ended_from_there(
    engine: ApartEngine, server: FakeServer
) -> None:
    code = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n" + FOREVER
    group = job_group(server, code)
    job = engine.start(group)
    pids = [*printed_pids(server), agent_pid(engine.place(job))]
    told = {**remote.variables(job, json.loads(group.plan)), "RUNYARD_NODE_INDEX": "0"}
    told |= {"RUNYARD_NODE_ACTION": "end", "RUNYARD_NODE_FOLDER": str(engine.node(0))}
    program = [sys.executable, "-S", "-E", "-c", remote.boot_text()]
    subprocess.run(program, env=told, check=True)
    assert not any(lives(pid) for pid in pids)
    assert not engine.place(job).exists()


# ---- trouble -----------------------------------------------------------------------------------


def test_who_ends_a_job_keeps_its_own_children(engine: ApartEngine, server: FakeServer) -> None:
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        engine.kill(job)
        assert child.poll() is None
        child.communicate(b"\n")
    assert child.returncode == 0


def test_a_wrong_token_is_refused_at_once(engine: ApartEngine, server: FakeServer) -> None:
    job = engine.start(with_plan(job_group(server, ""), agent_token="another"))
    assert status(engine, job) == boot.REFUSED
    assert "the token is not valid there" in engine.words(job)
    assert "wrong token" in engine.words(job)
    assert len(server.requests) == 1


def test_a_job_that_the_server_does_not_have_is_refused_in_words(
    engine: ApartEngine, server: FakeServer
) -> None:
    job = engine.start(with_plan(job_group(server, ""), attempt=7))
    assert status(engine, job) == boot.REFUSED
    assert "that attempt is not going on" in engine.words(job)


def test_a_server_that_nobody_answers_for_is_given_up_after_a_while(
    server: FakeServer, tmp_path: Path
) -> None:
    group = job_group(server, "")
    server.go_down()
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_PATIENCE="0.3")):
        job = engine.start(group)
        assert status(engine, job) == boot.UNREACHABLE
        assert f"the server {server.url} cannot be reached from this node" in engine.words(job)
        assert engine.poll([job])[job].phase is JobPhase.GONE


def test_a_server_that_comes_back_is_waited_for_before_and_during_the_job(
    engine: ApartEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        f"import os, time\nprint('begins', flush=True)\nwhile not os.path.exists({str(gate)!r}): "
    )
    code += "time.sleep(0.02)\nprint('ends')\nopen('outputs/x', 'w').write('x')\n"
    group = gang_group(engine, server, code)
    server.go_down()
    job = engine.start(group)
    wait_until(lambda: "trying again" in engine.words(job))
    server.come_back(same_port=True)
    for rank in range(2):
        says(server, "begins", log_of(rank))
    server.go_down()
    gate.touch()
    wait_until(lambda: (engine.place(job, 1) / "work" / "outputs" / "x").exists())
    server.come_back(same_port=True)
    assert ended(engine, job).exit_code == 0
    assert [server.log(log_of(rank)) for rank in range(2)] == ["begins\nends\n"] * 2
    assert server.file("outputs/x") == b"x"


def test_a_folder_that_cannot_be_written_is_named(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "below")
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_FOLDER=place)):
        job = engine.start(job_group(server, ""))
        assert status(engine, job) == boot.NO_ROOM
        assert f"{place} cannot be written: Not a directory" in engine.words(job)


def test_a_full_disk_is_said_in_words() -> None:
    stop = boot.no_room(OSError(errno.ENOSPC, "No space left on device"), "/there")
    assert stop.args[0] == boot.NO_ROOM
    assert "the disk of this node is full" in stop.args[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Gives a disk of so many kB."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def make(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root mounts a disk")
        return disk

    yield make
    if os.path.ismount(disk):
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_without_room_for_the_runtime_is_told_by_the_engine(
    server: FakeServer, tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(100)
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_FOLDER=str(disk))):
        job = engine.start(job_group(server, ""))
        assert status(engine, job) == boot.NO_ROOM
        told = engine.poll([job])[job]
        assert (told.phase, told.code) == (JobPhase.GONE, "NodeFull")
        assert "the disk of this node is full" in told.detail
        assert os.listdir(disk / "runtime") == ["lock"], "nothing is left half made"


@pytest.mark.parametrize("what", ["snapshot", "environment"])
def test_a_disk_without_room_for_the_job_ends_the_run_with_its_own_code(
    server: FakeServer,
    tmp_path: Path,
    small_disk: Callable[[int], Path],
    wheels: Path,
    what: str,
) -> None:
    disk = small_disk(8000)
    asked: dict[str, object] = {"files": {"script.py": "", "large": "x" * 10_000_000}}
    if what == "environment":
        asked = {"files": {"script.py": ""}, "environment": environment(wheels)}
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_FOLDER=str(disk))):
        first = engine.start(job_group(server, "", key="first"))  # the runtime has room
        assert ended(engine, first).exit_code == 0
        if what == "environment":
            filler = disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as stream:
                stream.write(bytes(8_000_000))
            os.truncate(filler, filler.stat().st_size - 200_000)
        plan = server.publish("job", server.plan(["script.py"], **asked))
        job = engine.start(NodeGroup(key="job", plan=json.dumps(plan).encode()))
        assert ended(engine, job).exit_code == 1
        error = server.report("failed")["error"]
        assert isinstance(error, dict)
        assert error["code"] == "NodeFull"
        assert "the disk of the node is full" in error["message"]


def test_clocks_that_differ_by_an_hour_change_nothing(
    engine: ApartEngine, server: FakeServer
) -> None:
    engine.clocks.update({0: 3600, 1: -3600})
    job = engine.start(gang_group(engine, server, "print('here')"))
    assert ended(engine, job).exit_code == 0
    assert [server.log(log_of(rank)) for rank in range(2)] == ["here\n"] * 2
    code = "import os, time\nif os.environ['RANK'] == '0': raise ValueError('bad')\n" + FOREVER
    group = gang_group(engine, server, code, grace_seconds=0.5, max_run_duration_seconds=600)
    plan = server.publish("again", json.loads(group.plan))
    again = NodeGroup(key="again", nodes=2, plan=json.dumps(plan).encode())
    assert ended(engine, engine.start(again)).exit_code == 1
    error = server.report("finished")["error"]
    assert isinstance(error, dict)
    assert (error["rank"], error["message"]) == (0, "Rank 0 (node 0): ValueError: bad")


@pytest.mark.parametrize("code", [0, 1, 3, 64, -9, -15])
def test_exit_codes_survive_the_way_through_a_process(code: int) -> None:
    assert remote.exit_code(remote.exit_status(code)) == code
    assert not remote.is_lost(remote.exit_status(code))


# ---- several nodes -----------------------------------------------------------------------------


def test_of_files_of_one_name_that_of_the_first_node_is_kept(
    engine: ApartEngine, server: FakeServer
) -> None:
    code = (
        "import os, time\n"
        "rank = os.environ['RANK']\n"
        "open('outputs/same', 'w').write(rank)\n"
        "open('outputs/own' + rank, 'w').write(rank)\n"
        "open('logs/note.txt', 'w').write('of ' + rank)\n"
    )
    job = engine.start(gang_group(engine, server, code, checkpoint_seconds=0.05))
    assert ended(engine, job).exit_code == 0
    assert server.file("outputs/same") == b"0"
    assert server.file("outputs/own1") == b"1"
    assert server.log("logs/note.txt") == "of 0"
    assert server.log("logs/node-1/note.txt") == "of 1"


def test_of_outputs_in_a_datastore_that_of_the_first_node_is_kept_too(
    engine: ApartEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        "import os, time\n"
        "place = os.path.join(os.environ['made'], 'same')\n"
        "if os.environ['RANK'] == '0': open(place, 'w').write('0')\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "if os.environ['RANK'] == '1': open(place, 'w').write('1')\n"
    )
    made = {"name": "made", "datastore": "store", "path": "made", "mode": "mount"}
    group = gang_group(engine, server, code, checkpoint_seconds=0.05, outputs=[made])
    job = engine.start(group)
    wait_until(lambda: "made/same" in server.stored)
    gate.touch()
    assert ended(engine, job).exit_code == 0, server.log(ACCOUNT)
    assert server.blobs[server.stored["made/same"][0]] == b"0"


def test_every_node_gets_back_what_all_of_them_left(
    engine: ApartEngine, server: FakeServer
) -> None:
    code = (
        "import os\n"
        "rank, attempt = os.environ['RANK'], os.environ['RUNYARD_ATTEMPT']\n"
        "print(sorted(os.listdir('outputs')), os.listdir('logs'))\n"
        "open('outputs/' + rank, 'w').write(attempt)\n"
        "open('logs/mine', 'a').write(rank + attempt)\n"
    )
    for attempt in (1, 2):
        more = {"restore": True} if attempt > 1 else {}
        variables = {"RUNYARD_ATTEMPT": str(attempt)}
        group = gang_group(engine, server, code, attempt=attempt, variables=variables, **more)
        key = f"job-{attempt}"
        plan = json.loads(group.plan)
        server.plans[attempt] = {**plan, "attempt": attempt}
        again = NodeGroup(key=key, nodes=2, plan=json.dumps(server.plans[attempt]).encode())
        assert ended(engine, engine.start(again)).exit_code == 0
    for rank in range(2):
        assert server.log(log_of(rank)).splitlines()[-1] == "['0', '1'] ['mine']"
        assert server.file(f"outputs/{rank}") == b"2", "what was put back does not win"
    assert server.log("logs/mine") == "0102"
    assert server.log("logs/node-1/mine") == "1112"


def test_every_node_has_the_inputs(engine: ApartEngine, server: FakeServer) -> None:
    code = "import sys; print(open(sys.argv[1] + '/a.txt').read())"
    with FaultyWeb() as web:
        page = web.put("/a", b"content")
        rows = [["a.txt", 7, f"url:{web.url}/a", page.etag]]
        server.inputs["data"] = {"files": rows, "single": False}
        one = {"name": "data", "mode": "mount", "dataset": "d", "path_on_compute": None}
        words = ["script.py", "DatasetConsumptionConfig:data"]
        fetching = {"allow_private": True}
        group = gang_group(
            engine, server, code, arguments=words, inputs=[one], fetching=fetching, mounter=None
        )
        assert ended(engine, engine.start(group)).exit_code == 0, server.log(ACCOUNT)
    assert [server.log(log_of(rank)) for rank in range(2)] == ["content\n"] * 2
    assert (engine.node(1) / "cache").exists(), "it is there for the next job"


def test_mpirun_starts_the_ranks_of_nodes_that_share_nothing(
    engine: ApartEngine, server: FakeServer
) -> None:
    code = (
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "print(world.Get_rank(), world.allreduce(world.Get_rank() + 1), flush=True)\n"
    )
    launcher = {"kind": "mpi", "nodes": 2, "processes_per_node": 2}
    job = engine.start(gang_group(engine, server, code, launcher=launcher))
    assert ended(engine, job, 60).exit_code == 0, server.log(ACCOUNT)
    logs = [server.log(log_of(rank)) for rank in range(4)]
    assert logs == [f"{rank} 10\n" for rank in range(4)]
    assert "the mpirun of Open MPI" in server.log(ACCOUNT)


# ---- environments ------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one package in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    name = "pebble_of_test-1.0"
    files = {
        "pebble_of_test.py": "SIZE = 'small'\n",
        f"{name}.dist-info/METADATA": "Metadata-Version: 2.1\nName: pebble-of-test\nVersion: 1.0\n",
        f"{name}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            rows.append(f"{path},sha256={digest.decode().rstrip('=')},{len(text)}")
        record = f"{name}.dist-info/RECORD"
        wheel.writestr(record, "\n".join([*rows, f"{record},,"]) + "\n")
    return folder


def environment(wheels: Path, **changes: object) -> dict[str, object]:
    """An environment with that package, for nodes that know no index."""
    return {
        "key": "k1",
        "name": "stones",
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "lock": ["pebble-of-test==1.0"],
        "options": {"find_links": ["/no/such/folder", wheels.as_uri()], "no_index": True},
        "variables": {},
        "user_managed": False,
        "interpreter": "python",
        **changes,
    }


CODE = "import pebble_of_test, sys; print(pebble_of_test.SIZE, sys.prefix)"


@pytest.fixture
def without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that have the usual programs, but not uv."""
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")


@pytest.mark.usefixtures("without_uv")
def test_an_environment_is_made_once_on_a_node_with_the_servers_uv(
    engine: ApartEngine, server: FakeServer, wheels: Path
) -> None:
    asked = environment(wheels)
    for key in ("one", "two"):
        job = engine.start(job_group(server, CODE, key=key, environment=asked))
        assert ended(engine, job, 60).exit_code == 0, server.log(ACCOUNT)
    place = engine.node(0) / "environments" / "k1"
    assert server.log(DRIVER_LOG) == f"small {place}\n" * 2
    assert server.log(ACCOUNT).count("making the environment 'stones'") == 1
    assert server.requests.count(UV) == 1
    assert not (place / "options.txt").exists()


def test_several_nodes_that_share_a_folder_make_it_once(
    server: FakeServer, wheels: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_ENVIRONMENTS=str(shared))):
        job = engine.start(gang_group(engine, server, CODE, environment=environment(wheels)))
        assert ended(engine, job, 60).exit_code == 0, server.log(ACCOUNT)
        assert [server.log(log_of(rank)) for rank in range(2)] == [f"small {shared / 'k1'}\n"] * 2
        both = server.log(ACCOUNT) + server.log(ACCOUNT.replace(".txt", "_1.txt"))
        assert both.count("the environment took") == 1


def test_jobs_that_come_to_a_node_at_once_make_the_environment_once(
    engine: ApartEngine, server: FakeServer, wheels: Path
) -> None:
    asked = environment(wheels)
    keys = ["one", "two", "three"]
    jobs = [engine.start(job_group(server, CODE, key=key, environment=asked)) for key in keys]
    assert [ended(engine, job).exit_code for job in jobs] == [0, 0, 0], server.log(ACCOUNT)
    place = engine.node(0) / "environments"
    assert sorted(one.name for one in place.iterdir() if not one.name.startswith(".")) == [
        "k1",
        "k1.lock",
    ]
    assert server.requests.count(RUNTIME) == 1


def test_nodes_may_have_one_folder_for_all_they_keep(
    server: FakeServer, wheels: Path, tmp_path: Path
) -> None:
    # A home that all machines of a site share: two jobs of two nodes each meet there.
    home = tmp_path / "home of all"
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_FOLDER=str(home))):
        group = gang_group(engine, server, CODE, environment=environment(wheels))
        plan = server.publish("other", json.loads(group.plan))
        other = NodeGroup(key="other", nodes=2, plan=json.dumps(plan).encode())
        jobs = [engine.start(group), engine.start(other)]
        assert [ended(engine, job).exit_code for job in jobs] == [0, 0], server.log(ACCOUNT)
        assert server.requests.count(RUNTIME) == 1
        assert sorted(os.listdir(home / "jobs")) == [
            f"{key}.{node}.over" for key in ("job", "other") for node in range(2)
        ]
        assert set(server.log(log_of(0)).splitlines()) == {f"small {home / 'environments' / 'k1'}"}


# A shared disk that knows no locks, as some sites have it.
NO_LOCKS = """
import errno, fcntl
def lockf(stream, *rest, real=fcntl.lockf):
    if "/shared/" in getattr(stream, "name", ""):
        raise OSError(errno.ENOLCK, "No locks available")
    return real(stream, *rest)
fcntl.lockf = lockf
"""


def test_nodes_that_share_a_folder_without_locks_may_make_it_twice_but_not_spoil_it(
    server: FakeServer, wheels: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared" / "environments"
    for engine in made(ApartEngine(tmp_path / "site", RUNYARD_NODE_ENVIRONMENTS=str(shared))):
        engine.quirks = NO_LOCKS
        job = engine.start(gang_group(engine, server, CODE, environment=environment(wheels)))
        assert ended(engine, job, 60).exit_code == 0, server.log(ACCOUNT)
        assert [server.log(log_of(rank)) for rank in range(2)] == [f"small {shared / 'k1'}\n"] * 2
        assert [one for one in os.listdir(shared) if "making" in one] == []


def test_what_was_left_of_an_environment_half_made_is_removed(
    engine: ApartEngine, server: FakeServer, wheels: Path
) -> None:
    folder = engine.node(0) / "environments"
    for name in ("k1.making-elsewhere-7", "k1"):
        (folder / name / "bin").mkdir(parents=True)
    job = engine.start(job_group(server, CODE, environment=environment(wheels)))
    assert ended(engine, job, 60).exit_code == 0, server.log(ACCOUNT)
    assert not (folder / "k1.making-elsewhere-7").exists()


def test_a_package_that_is_not_to_be_had_fails_the_run_with_uvs_words(
    engine: ApartEngine, server: FakeServer, wheels: Path
) -> None:
    asked = environment(wheels, lock=["no-such-stone==3.0"])
    job = engine.start(job_group(server, "", environment=asked))
    assert ended(engine, job, 60).exit_code == 1
    error = server.report("failed")["error"]
    assert isinstance(error, dict)
    assert error["code"] == "EnvironmentFailed"
    assert "'stones' could not be made on this node" in error["message"]
    assert "no-such-stone" in error["message"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"python": "3.5.1"}, "This node has no Python 3.5, and uv could not get one"),
        ({"user_managed": True, "interpreter": "/no/python"}, "no interpreter '/no/python' on"),
        ({"user_managed": True, "interpreter": "/bin/true"}, "does not answer as a Python"),
    ],
)
def test_a_python_that_a_node_does_not_have_is_said_in_words(
    server: FakeServer, wheels: Path, tmp_path: Path, asked: dict[str, object], words: str
) -> None:
    for engine in made(ApartEngine(tmp_path / "site", UV_PYTHON_DOWNLOADS="never")):
        wanted = environment(wheels, **asked)
        group = gang_group(engine, server, "", environment=wanted)
        assert ended(engine, engine.start(group), 60).exit_code == 1
        error = server.report("failed")["error"]
        assert isinstance(error, dict)
        assert words in error["message"]
