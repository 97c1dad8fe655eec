"""What every engine promises, as tests. Subclass, and give the `engines` fixture:

class TestMyEngine(EngineSuite):
    @pytest.fixture
    def engines(self, tmp_path):
        return lambda: MyEngine(tmp_path)      # each call: another object, the same jobs

    @pytest.fixture
    def lose_node(self, cluster):              # where one node can be lost alone
        def lose(hosts):
            cluster.unplug(hosts[1])
            return hosts[1]
        return lose
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import EngineFailed, RunyardError, Unavailable
from runyard.engines.base import Engine, JobId, JobPhase, JobStatus, NodeGroup, NodeResources
from runyard.testing.fake_server import AGENT_TOKEN, FakeServer, wait_until
from runyard.testing.interpreters import interpreters
from runyard_runtime import processes

Engines = Callable[[], Engine]
LoseNode = Callable[[Sequence[str]], str]  # of these hosts, one vanishes with all on it: which
DRIVER_LOG = "azureml-logs/70_driver_log.txt"
GHOST = JobId("a-job-that-never-was")
FOREVER = "print('running', flush=True)\nimport time\ntime.sleep(600)"


def job_group(server: FakeServer, code: str, key: str = "job", **changes: object) -> NodeGroup:
    """A group whose script is `code`; `changes` are made to its plan."""
    plan = server.plan(["script.py"], **{"files": {"script.py": code}, **changes})
    # Engines without a shared folder have their nodes ask the server for it.
    return NodeGroup(key=key, plan=json.dumps(server.publish(key, plan)).encode())


def gang_group(
    engine: Engine,
    server: FakeServer,
    code: str,
    *,
    nodes: int = 2,
    per_node: int = 1,
    **changes: object,
) -> NodeGroup:
    """A group of several nodes whose ranks run `code`, planned for that engine."""
    can = engine.capabilities
    if not can.multi_node:
        pytest.skip(f"The engine '{engine.name}' runs jobs of one node only.")
    told: dict[str, object] = {
        "nodes": nodes,
        "launcher": {"kind": "pytorch", "nodes": nodes, "processes_per_node": per_node},
        "one_machine": can.one_machine,
        "board": "folder" if can.shared_folder else "server",
    }
    group = job_group(server, code, "job", **{**told, **changes})
    return NodeGroup(key=group.key, nodes=nodes, plan=group.plan)


def ended(engine: Engine, job: JobId, timeout: float = 60.0) -> JobStatus:
    """The job's status once its agents have ended."""
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.EXITED, timeout)
    return engine.poll([job])[job]


def says(server: FakeServer, text: str, log: str = DRIVER_LOG) -> None:
    """Wait until the script has printed `text`."""
    wait_until(lambda: text in server.log(log))


def log_of(rank: object) -> str:
    """The log of a rank of several; of a task "ps_0" where the launcher names them."""
    return f"azureml-logs/70_driver_log_{rank}.txt"


def lives(pid: int) -> bool:
    """True if a process with that number runs."""
    return bool(processes.is_alive(pid, processes.start_time(pid)))


def printed_pids(server: FakeServer, log: str = DRIVER_LOG) -> list[int]:
    """The numbers that the script printed in a line `pids …`."""
    wait_until(lambda: "pids " in server.log(log) and server.log(log).endswith("\n"))
    line = next(one for one in server.log(log).splitlines() if one.startswith("pids "))
    return [int(word) for word in line.split()[1:]]


def agent_pid(folder: Path, node: int = 0) -> int:
    """The process that is the agent of that node of the job in that folder."""
    return int(json.loads((folder / f"agent-{node}" / "pid").read_text())["pid"])


def replaced(engine: Engine, group: NodeGroup, folder: Path, node: int = 0) -> None:
    """Kill the agent of that node, and wait until there is another in its place.

    An engine may replace it by itself; else the job is seen to be GONE, and started again.
    """
    old = agent_pid(folder, node)
    os.kill(old, signal.SIGKILL)

    def is_replaced() -> bool:
        if engine.poll([JobId(group.key)])[JobId(group.key)].phase is JobPhase.GONE:
            assert engine.start(group) == group.key
        return agent_pid(folder, node) != old

    wait_until(is_replaced)
    wait_until(lambda: engine.poll([JobId(group.key)])[JobId(group.key)].phase is JobPhase.ACTIVE)


def stopped_early(engine: Engine, server: FakeServer, job: JobId) -> None:
    """Wait for the end of a job that was stopped at once; its agents said so if they ever were."""
    status = ended(engine, job)
    if server.phases():
        assert server.report("finished")["stopped"] is True
    else:  # it was still in the engine's queue
        assert status.exit_code == -signal.SIGTERM


def refusal(engine: Engine, group: NodeGroup) -> str:
    """What the engine says of a group that it cannot run: when it is started, or polled."""
    try:
        job = engine.start(group)
    except Unavailable:
        raise
    except RunyardError as error:
        assert list(engine.jobs()) == [], "what was refused is not kept"
        return error.what + error.why
    wait_until(lambda: engine.poll([job])[job].detail)
    assert engine.poll([job])[job].phase in (JobPhase.PENDING, JobPhase.GONE)
    return engine.poll([job])[job].detail


def is_killed(engine: Engine, job: JobId) -> bool:
    """Kill a job; False if something is left of it, so that it is to be killed again."""
    try:
        engine.kill(job)
    except EngineFailed:
        return False
    return True


def command_lines() -> Iterator[bytes]:
    """What is on the command lines of this machine, for all to read."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it is over
            yield path.read_bytes()


class NodeLossSuite:
    """What every engine promises of a job that loses a node."""

    @pytest.fixture
    def engines(self) -> Engines:
        raise NotImplementedError("give a fixture that makes engines on the same jobs")

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[FakeServer]:
        with FakeServer(tmp_path / "address.json") as server:
            yield server

    @pytest.fixture
    def engine(self, engines: Engines) -> Iterator[Engine]:
        engine = engines()
        yield engine
        for job in engine.jobs():
            wait_until(partial(is_killed, engine, job))

    @pytest.fixture
    def lose_node(self, engine: Engine) -> LoseNode:
        """Has one of the named hosts vanish, with all that runs there, and says which."""
        pytest.skip(f"All nodes of the engine '{engine.name}' are one machine: none is lost alone.")

    def test_a_lost_node_is_named_and_all_else_goes_on(
        self, engine: Engine, server: FakeServer, lose_node: LoseNode
    ) -> None:
        code = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n"
        job = engine.start(gang_group(engine, server, code + FOREVER))
        pids = [printed_pids(server, log_of(rank)) for rank in range(2)]
        wait_until(lambda: len(engine.poll([job])[job].hosts) == 2)
        hosts = engine.poll([job])[job].hosts
        lost = lose_node(hosts)
        wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
        status = engine.poll([job])[job]
        assert status.node_lost, "nobody can take over there"
        assert lost in status.detail, status.detail
        wait_until(lambda: is_killed(engine, job))
        engine.kill(job)
        assert not any(lives(pid) for pid in pids[1 - hosts.index(lost)])
        following = engine.start(job_group(server, "print('goes on')", key="following"))
        assert ended(engine, following).exit_code == 0
        assert server.log(DRIVER_LOG) == "goes on\n"
        # A host that nobody reaches ends by itself what ran there.
        wait_until(lambda: not any(lives(pid) for pid in pids[hosts.index(lost)]), 120)


class EngineSuite(NodeLossSuite):
    """The promises of `runyard.engines.base.Engine`."""

    counts_resources = True  # False: it gives a job what there is, whatever it asks for

    @pytest.fixture
    def secrets(self) -> Sequence[str]:
        """Texts that the engine knows and no rank may see."""
        return ()

    @pytest.mark.parametrize("code", [0, 3])
    def test_reports_the_exit_code(self, engine: Engine, server: FakeServer, code: int) -> None:
        job = engine.start(job_group(server, f"raise SystemExit({code})"))
        assert ended(engine, job).exit_code == code

    def test_starting_twice_starts_once(self, engine: Engine, server: FakeServer) -> None:
        # The server may die between start() and saving the job id; the retry must find the job.
        group = job_group(server, "print('once')")
        job = engine.start(group)
        assert engine.start(group) == job
        ended(engine, job)
        assert engine.start(group) == job
        assert engine.poll([job])[job].phase is JobPhase.EXITED
        assert server.log(DRIVER_LOG) == "once\n"

    def test_an_unknown_job_is_gone_not_an_error(self, engine: Engine) -> None:
        assert engine.poll([GHOST])[GHOST].phase is JobPhase.GONE

    def test_one_poll_answers_for_every_job(self, engine: Engine, server: FakeServer) -> None:
        over = engine.start(job_group(server, "", key="over"))
        ended(engine, over)
        alive = engine.start(job_group(server, FOREVER, key="alive"))
        wait_until(lambda: engine.poll([alive])[alive].phase is JobPhase.ACTIVE)
        phases = [status.phase for status in engine.poll([over, alive, GHOST]).values()]
        assert phases == [JobPhase.EXITED, JobPhase.ACTIVE, JobPhase.GONE]

    def test_a_started_job_is_never_gone_in_between(
        self, engine: Engine, server: FakeServer
    ) -> None:
        job = engine.start(job_group(server, ""))
        seen = set()
        while JobPhase.EXITED not in seen:
            seen.add(engine.poll([job])[job].phase)
            assert JobPhase.GONE not in seen

    def test_stop_ends_the_ranks_and_keeps_the_outputs(
        self, engine: Engine, server: FakeServer
    ) -> None:
        job = engine.start(job_group(server, "open('outputs/kept', 'w').write('x')\n" + FOREVER))
        says(server, "running")
        engine.stop(job)
        engine.stop(job)
        assert ended(engine, job).exit_code == -signal.SIGTERM
        assert server.report("finished")["stopped"] is True
        assert server.file("outputs/kept") == b"x"
        engine.stop(job)

    def test_a_stop_right_after_the_start_is_not_lost(
        self, engine: Engine, server: FakeServer
    ) -> None:
        job = engine.start(job_group(server, FOREVER))
        engine.stop(job)
        stopped_early(engine, server, job)

    def test_stopping_and_killing_what_is_not_there_is_nothing(self, engine: Engine) -> None:
        engine.stop(GHOST)
        engine.kill(GHOST)
        engine.forget(GHOST)

    def test_kill_leaves_no_process(self, engine: Engine, server: FakeServer) -> None:
        code = (
            "import os, subprocess, sys\n"
            "sleeper = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            "child = subprocess.Popen(sleeper, start_new_session=True)\n"
            "print('pids', os.getpid(), child.pid, os.getppid(), flush=True)\n"
        )
        job = engine.start(job_group(server, code + FOREVER))
        pids = printed_pids(server)
        assert all(lives(pid) for pid in pids)
        engine.kill(job)
        engine.kill(job)
        assert not any(lives(pid) for pid in pids)
        assert engine.poll([job])[job].phase is JobPhase.GONE

    def test_agents_survive_the_engine_object(
        self, engine: Engine, engines: Engines, server: FakeServer
    ) -> None:
        job = engine.start(job_group(server, FOREVER))
        says(server, "running")
        another = engines()
        assert another.poll([job])[job].phase is JobPhase.ACTIVE
        assert list(another.jobs()) == [job]
        another.stop(job)
        ended(another, job)

    def test_the_job_of_a_killed_agent_is_taken_over(
        self, engine: Engine, server: FakeServer, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        code = (
            "import os, pathlib, time\n"
            "print('folder', os.environ['RUNYARD_JOB_DIR'], flush=True)\n"
            f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
            "print('done'); raise SystemExit(5)\n"
        )
        group = job_group(server, code)
        job = engine.start(group)
        says(server, "folder")
        folder = Path(server.log(DRIVER_LOG).split()[1])
        replaced(engine, group, folder)
        gate.touch()
        assert ended(engine, job).exit_code == 5
        assert server.log(DRIVER_LOG).splitlines() == [f"folder {folder}", "done"]

    def test_a_forgotten_job_is_gone(self, engine: Engine, server: FakeServer) -> None:
        job = engine.start(job_group(server, ""))
        ended(engine, job)
        assert list(engine.jobs()) == [job]
        engine.forget(job)
        engine.forget(job)
        assert engine.poll([job])[job].phase is JobPhase.GONE
        assert list(engine.jobs()) == []

    # ---- what ranks see and say --------------------------------------------------------------

    def test_ranks_have_the_interpreter_and_the_variables_of_the_plan_and_no_secret(
        self,
        engine: Engine,
        engines: Engines,
        server: FakeServer,
        secrets: Sequence[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("RUNYARD_COMPUTE_TOKEN", "a secret of the server")
        given = {"MINE": "Größe $HOME 'x' \"y\"\nz\\", "EMPTY": "", "PYTHONPATH": "/own"}
        code = (
            "import json, os, sys, time\n"
            "print(json.dumps([sys.version_info[:2], dict(os.environ)]), flush=True)\n" + FOREVER
        )
        python = interpreters()[0]
        job = engines().start(job_group(server, code, interpreter=python, variables=given))
        says(server, "running")
        version, seen = json.loads(server.log(DRIVER_LOG).splitlines()[0])
        assert f"python3.{version[1]}" in os.path.realpath(python)
        assert {name: seen[name] for name in ("MINE", "EMPTY")} == {
            name: given[name] for name in ("MINE", "EMPTY")
        }
        assert "/own" in seen["PYTHONPATH"].split(os.pathsep)
        hidden = [AGENT_TOKEN, "a secret of the server", *secrets]
        assert [one for one in hidden if one in json.dumps(seen)] == []
        lines = list(command_lines())
        assert lines
        assert [line for line in lines for one in hidden if one.encode() in line] == []
        engine.kill(job)

    def test_logs_arrive_once_and_in_order_while_the_job_runs(
        self, engine: Engine, server: FakeServer, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        # More than one request takes, cut in the midst of a character somewhere.
        code = f"""
import os, sys, time
for number in range(100):
    stream = sys.stderr if number % 2 else sys.stdout
    stream.write("%d\\n" % number)
    stream.flush()
os.write(1, ("ä€😀" * 150000).encode("utf-8") + b"\\xff\\r\\n")
os.write(2, b"no end of line")
while not os.path.exists({str(gate)!r}):
    time.sleep(0.02)
print("; done")
"""
        job = engine.start(job_group(server, code))
        says(server, "no end of line")
        numbers = "".join(f"{number}\n" for number in range(100))
        text = numbers + "ä€😀" * 150000 + "\ufffd\r\nno end of line"
        assert server.log(DRIVER_LOG) == text
        gate.touch()
        assert ended(engine, job).exit_code == 0
        assert server.log(DRIVER_LOG) == text + "; done\n"

    def test_a_group_that_is_too_large_is_told_so(self, engine: Engine, server: FakeServer) -> None:
        if not self.counts_resources:
            pytest.skip(f"The engine '{engine.name}' gives a job what there is.")
        group = job_group(server, FOREVER)
        group = msgspec.structs.replace(group, resources=NodeResources(cores=4096))
        assert refusal(engine, group)
        assert server.reports == []

    def test_a_server_that_is_away_for_a_while_misses_nothing_and_hears_nothing_twice(
        self, engine: Engine, engines: Engines, server: FakeServer, tmp_path: Path
    ) -> None:
        gates = [tmp_path / "first", tmp_path / "written", tmp_path / "last"]
        code = f"""
import os, time
first, written, last = {[str(gate) for gate in gates]!r}
events = open(os.path.join(os.environ["RUNYARD_JOB_DIR"], "events", "0.jsonl"), "a")
def say(number):
    print(number, flush=True)
    events.write('{{"n": %d}}\\n' % number)
    events.flush()
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.02)
say(1)
wait(first)
say(2)
open("outputs/kept", "w").write("x")
open(written, "w")
wait(last)
say(3)
"""
        group = job_group(server, code)
        job = engine.start(group)
        wait_until(lambda: server.stream("events", "0.jsonl") and server.log(DRIVER_LOG))
        server.go_down()
        gates[0].touch()
        wait_until(gates[1].exists)
        another = engines()  # of the server that comes back
        assert another.poll([job])[job].phase is JobPhase.ACTIVE
        assert another.start(group) == job
        server.come_back(same_port=True)
        says(server, "2")
        gates[2].touch()
        assert ended(another, job).exit_code == 0
        assert server.log(DRIVER_LOG) == "1\n2\n3\n"
        assert server.stream("events", "0.jsonl") == b'{"n": 1}\n{"n": 2}\n{"n": 3}\n'
        assert server.file("outputs/kept") == b"x"
        assert server.phases() == ["started", "ended", "finished"]

    # ---- several nodes -----------------------------------------------------------------------

    def test_the_nodes_of_a_group_find_each_other(self, engine: Engine, server: FakeServer) -> None:
        code = """
import os, socket
rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.socket() as listener:
        listener.bind(place)
        listener.listen()
        peer, _ = listener.accept()
        with peer:
            print("heard", peer.recv(20).decode())
else:
    while True:
        with socket.socket() as speaker:
            if speaker.connect_ex(place) == 0:
                speaker.sendall(b"rank %d" % rank)
                break
print("node", os.environ["NODE_RANK"], "of", os.environ["WORLD_SIZE"])
"""
        job = engine.start(gang_group(engine, server, code))
        assert ended(engine, job).exit_code == 0
        assert server.log(log_of(0)) == "heard rank 1\nnode 0 of 2\n"
        assert server.log(log_of(1)) == "node 1 of 2\n"
        assert server.report("finished")["ranks"] == [
            {"rank": 0, "exit_code": 0},
            {"rank": 1, "exit_code": 0},
        ]

    def test_what_the_ranks_of_all_nodes_leave_is_kept_once(
        self, engine: Engine, server: FakeServer
    ) -> None:
        code = (
            "import os\n"
            "rank = os.environ['RANK']\n"
            "print('I am', rank)\n"
            "open('outputs/' + rank, 'w').write(rank)\n"
            "events = os.path.join(os.environ['RUNYARD_JOB_DIR'], 'events', rank + '.jsonl')\n"
            "open(events, 'w').write('{}\\n')\n"
        )
        job = engine.start(gang_group(engine, server, code, per_node=2))
        assert ended(engine, job).exit_code == 0
        assert [server.log(log_of(rank)) for rank in range(4)] == [
            f"I am {rank}\n" for rank in range(4)
        ]
        assert [server.file(f"outputs/{rank}") for rank in range(4)] == [b"0", b"1", b"2", b"3"]
        assert [server.stream("events", f"{rank}.jsonl") for rank in range(4)] == [b"{}\n"] * 4
        assert server.phases() == ["started", "ended", "finished"]

    def test_a_rank_that_fails_ends_those_of_other_nodes_and_is_named(
        self, engine: Engine, server: FakeServer, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        code = (
            "import os, signal, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # hangs in a collective, say
            "print('pids', os.getpid(), flush=True)\n"
            f"while not os.path.exists({str(gate)!r}) or os.environ['RANK'] != '1':\n"
            "    time.sleep(0.02)\n"
            "raise ValueError('bad luck')\n"
        )
        job = engine.start(gang_group(engine, server, code, nodes=3, grace_seconds=0.5))
        pids = [pid for rank in range(3) for pid in printed_pids(server, log_of(rank))]
        gate.touch()
        assert ended(engine, job).exit_code == 1
        error = server.report("finished")["error"]
        assert isinstance(error, dict)
        assert error["rank"] == 1
        assert error["message"] == "Rank 1 (node 1): ValueError: bad luck"
        assert not any(lives(pid) for pid in pids)

    @pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
    def test_a_killed_agent_of_a_group_is_replaced_and_all_go_on(
        self, engine: Engine, server: FakeServer, tmp_path: Path, node: int
    ) -> None:
        gate = tmp_path / "gate"
        code = (
            "import os, time\n"
            "print('folder', os.environ['RUNYARD_JOB_DIR'], flush=True)\n"
            f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
            "print('done')\n"
        )
        group = gang_group(engine, server, code)
        job = engine.start(group)
        says(server, "\n", log_of(0))
        says(server, "\n", log_of(1))
        folders = [Path(server.log(log_of(rank)).split()[1]) for rank in range(2)]
        other = agent_pid(folders[1 - node], 1 - node)
        replaced(engine, group, folders[node], node)
        assert agent_pid(folders[1 - node], 1 - node) == other
        gate.touch()
        assert ended(engine, job).exit_code == 0
        for rank in range(2):
            assert server.log(log_of(rank)).splitlines()[1:] == ["done"]
        assert server.report("finished")["ranks"] == [
            {"rank": 0, "exit_code": 0},
            {"rank": 1, "exit_code": 0},
        ]

    def test_stop_ends_all_nodes(self, engine: Engine, server: FakeServer) -> None:
        code = (
            "import os\n"
            "print('pids', os.getpid(), flush=True)\n"
            "open('outputs/' + os.environ['RANK'], 'w').write('x')\n"
        )
        job = engine.start(gang_group(engine, server, code + FOREVER))
        pids = [pid for rank in range(2) for pid in printed_pids(server, log_of(rank))]
        says(server, "running", log_of(0))
        says(server, "running", log_of(1))
        engine.stop(job)
        engine.stop(job)
        ended(engine, job)
        assert server.report("finished")["stopped"] is True
        assert server.report("finished").get("error") is None
        assert not any(lives(pid) for pid in pids)
        assert sorted(server.files) == ["outputs/0", "outputs/1"]

    def test_a_stop_right_after_the_start_stops_all_nodes(
        self, engine: Engine, server: FakeServer
    ) -> None:
        job = engine.start(gang_group(engine, server, FOREVER))
        engine.stop(job)
        stopped_early(engine, server, job)

    def test_starting_a_group_twice_starts_it_once(
        self, engine: Engine, server: FakeServer
    ) -> None:
        group = gang_group(engine, server, "print('once')")
        job = engine.start(group)
        assert engine.start(group) == job
        ended(engine, job)
        assert engine.start(group) == job
        assert engine.poll([job])[job].phase is JobPhase.EXITED
        assert [server.log(log_of(rank)) for rank in range(2)] == ["once\n"] * 2

    def test_kill_leaves_no_process_of_any_node(self, engine: Engine, server: FakeServer) -> None:
        code = "import os; print('pids', os.getpid(), os.getppid(), flush=True)\n"
        job = engine.start(gang_group(engine, server, code + FOREVER))
        pids = [pid for rank in range(2) for pid in printed_pids(server, log_of(rank))]
        engine.kill(job)
        assert not any(lives(pid) for pid in pids)
        assert engine.poll([job])[job].phase is JobPhase.GONE
