"""Several agents as one gang: from their plan to the one report that ends the run."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobPhase, NodeGroup
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    agent_pid,
    ended,
    gang_group,
    job_group,
    lives,
    log_of,
    printed_pids,
    replaced,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.faulty_web import FaultyWeb
from runyard.testing.interpreters import interpreters
from runyard_runtime import wire

PIDS = "import os\nprint('pids', os.getpid(), flush=True)\n"
MEMBERS_ACCOUNT = "azureml-logs/55_azureml-execution_1.txt"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "address.json") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(tmp_path / "jobs")
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def run(engine: LocalEngine, server: FakeServer, code: str, **changes: object) -> int | None:
    """Run a script on two nodes to its end; the exit code."""
    return ended(engine, engine.start(gang_group(engine, server, code, **changes))).exit_code  # type: ignore[arg-type]


def error_of(server: FakeServer, phase: str = "finished") -> dict[str, object]:
    error = server.report(phase)["error"]
    assert isinstance(error, dict)
    return error


def tensorflow(workers: int, servers: int, nodes: int = 2) -> dict[str, object]:
    """The launcher of a job with parameter servers."""
    return {
        "kind": "tensorflow",
        "nodes": nodes,
        "workers": workers,
        "parameter_servers": servers,
    }


@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda path: Path(path).parts[-3])
def test_a_gang_goes_its_road_on_old_and_new_pythons(
    tmp_path: Path, server: FakeServer, interpreter: str
) -> None:
    engine = LocalEngine(tmp_path / "jobs", interpreter=interpreter)
    code = (
        "import os, sys\n"
        "print(os.environ['RANK'], flush=True)\n"
        "open('outputs/' + os.environ['RANK'], 'w').close()\n"
        "while os.environ['RANK'] == '3' and len(os.listdir('outputs')) < 4: pass\n"
        "sys.exit(3 if os.environ['RANK'] == '3' else 0)\n"
    )
    assert run(engine, server, code, per_node=2, interpreter=interpreter, sample_seconds=10) == 3
    assert [server.log(log_of(rank)) for rank in (0, 3)] == ["0\n", "3\n"]
    assert error_of(server)["rank"] == 3
    assert "started rank 2" in server.log(MEMBERS_ACCOUNT)


def test_only_the_leader_moves_the_run(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "print(1)", nodes=3) == 0
    said = {(report["node"], report["phase"]) for report in server.reports}
    assert {(0, "started"), (0, "finished")} <= said
    assert {phase for node, phase in said if node != 0} <= {"alive"}


def test_every_log_is_shipped_by_one_agent_only(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "print('x')", per_node=2, sample_seconds=60) == 0
    posts = [path for method, path in server.requests if method == "POST" and "/streams/" in path]
    logs = [path for path in posts if "70_driver" in path]
    assert len(logs) == len(set(logs)) == 4
    assert server.log(wire.CONTROL_LOG).count("laying out") == 1
    assert server.log(MEMBERS_ACCOUNT).count("laying out") == 1


def test_a_node_that_does_not_come_up_fails_the_run_in_words(
    engine: LocalEngine, server: FakeServer
) -> None:
    names = ["gpu-1", "gpu-2", "gpu-3"]
    group = gang_group(engine, server, "", nodes=3, node_ids=names, group_seconds=0.3)
    engine.start(NodeGroup(key=group.key, nodes=2, plan=group.plan))
    wait_until(server.finished)
    error = error_of(server, "failed")
    assert error["code"] == "GroupNotFormed"
    assert str(error["message"]).startswith(
        "Node 2 (gpu-3) of 3 has not come up within 0.3 s: the engine may lack room"
    )
    assert "failed: Node 0 (gpu-1): Node 2" in server.log(MEMBERS_ACCOUNT)
    assert server.log(log_of(0)) == ""


def test_a_node_that_cannot_begin_fails_the_run_with_its_reason(
    engine: LocalEngine, server: FakeServer
) -> None:
    elsewhere = ["127.0.0.1", "203.0.113.9"]
    assert run(engine, server, FOREVER, launcher=tensorflow(2, 0), hosts=elsewhere) == 1
    assert error_of(server, "failed") == {
        "code": "NoPorts",
        "message": "Node 1: 203.0.113.9 is not an address of this node.",
    }
    assert server.phases() == ["failed"]
    assert "is not an address" in server.log(MEMBERS_ACCOUNT)


def test_what_the_leader_cannot_do_ends_the_members_too(
    engine: LocalEngine, server: FakeServer
) -> None:
    server.refuse = ("/inputs/", 404)
    inputs = [{"name": "data", "mode": "download", "dataset": "d", "path_on_compute": None}]
    assert run(engine, server, "", inputs=inputs, fetching={}) == 1
    assert error_of(server, "failed")["code"] == "InputFailed"
    assert "failed: Node 0: Input 'data' cannot be had" in server.log(MEMBERS_ACCOUNT)


def test_the_time_limit_ends_all_nodes(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    run(engine, server, FOREVER, max_run_duration_seconds=1)
    job = tmp_path / "jobs" / "job"
    claims = [job / f"agent-{rank}" / f"rank-{rank}.json" for rank in range(2)]
    pids = [json.loads(claim.read_text())["pid"] for claim in claims]
    assert server.report("finished")["timed_out"] is True
    assert error_of(server)["code"] == "MaxRunDurationExceeded"
    assert not any(lives(pid) for pid in pids)


def test_the_servers_order_stops_all_nodes(engine: LocalEngine, server: FakeServer) -> None:
    server.stop_ordered = True
    run(engine, server, FOREVER)
    assert server.report("finished")["stopped"] is True
    assert server.report("finished").get("error") is None


def test_a_stop_of_one_agent_stops_all(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    job = engine.start(gang_group(engine, server, FOREVER))
    says(server, "running", log_of(0))
    says(server, "running", log_of(1))
    os.kill(agent_pid(tmp_path / "jobs" / "job", 1), signal.SIGTERM)
    ended(engine, job)
    assert server.report("finished")["stopped"] is True


def test_the_cause_is_the_rank_that_failed_not_those_that_were_ended(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '2': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    assert run(engine, server, code, per_node=2) == -signal.SIGKILL
    error = error_of(server)
    assert error["rank"] == 2
    assert str(error["message"]).startswith("Rank 2 (node 1) ended by signal SIGKILL")
    ranks = server.report("finished")["ranks"]
    assert isinstance(ranks, list)
    assert {one["exit_code"] for one in ranks if one["rank"] != 2} == {-signal.SIGTERM}


def test_a_leader_whose_ranks_are_over_waits_for_the_others(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        "import os, time\n"
        f"while os.environ['RANK'] == '1' and not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "open('outputs/' + os.environ['RANK'], 'w').write('late')\n"
    )
    job = engine.start(gang_group(engine, server, code))
    account = tmp_path / "jobs" / "job" / wire.CONTROL_LOG
    wait_until(lambda: account.exists() and "rank 0 ended" in account.read_text())
    assert server.phases() in ([], ["started"])
    gate.touch()
    assert ended(engine, job).exit_code == 0
    assert server.file("outputs/1") == b"late"


def test_a_gang_whose_agents_were_all_killed_goes_on(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = PIDS + (
        "import time\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
        "raise SystemExit(4 if os.environ['RANK'] == '1' else 0)\n"
    )
    group = gang_group(engine, server, code)
    job = engine.start(group)
    for rank in range(2):
        printed_pids(server, log_of(rank))
    for node in range(2):
        os.kill(agent_pid(tmp_path / "jobs" / "job", node), signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    gate.touch()  # one rank fails while nobody looks
    engine.start(group)
    assert ended(engine, job).exit_code == 4
    assert error_of(server)["rank"] == 1
    assert "taking over rank 0" in server.log(wire.CONTROL_LOG)


def test_a_leader_that_is_killed_at_the_end_is_replaced(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    code = PIDS + (
        f"import time\nwhile not os.path.exists({str(tmp_path / 'gate')!r}): time.sleep(0.02)\n"
    )
    group = gang_group(engine, server, code)
    job = engine.start(group)
    for rank in range(2):
        printed_pids(server, log_of(rank))
    server.go_down()  # so that none can ship its log, and none is over
    (tmp_path / "gate").touch()
    board = tmp_path / "jobs" / "job" / "board.jsonl"
    wait_until(lambda: board.read_text().count('"over"') == 2)
    os.kill(agent_pid(tmp_path / "jobs" / "job"), signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    engine.start(group)
    server.come_back()
    assert ended(engine, job).exit_code == 0
    assert server.report("finished")["ranks"] == [
        {"rank": 0, "exit_code": 0},
        {"rank": 1, "exit_code": 0},
    ]


def test_parameter_servers_end_when_the_workers_are_done(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('pids', os.getpid(), flush=True)\n"
        "time.sleep(600 if os.environ['AZ_BATCHAI_TASK_TYPE'] == 'ps' else 0.2)\n"
    )
    assert run(engine, server, code, launcher=tensorflow(2, 2)) == 0
    assert not any(lives(pid) for n in range(2) for pid in printed_pids(server, log_of(f"ps_{n}")))
    report = server.report("finished")
    assert report["ranks"] == [{"rank": rank, "exit_code": 0} for rank in range(4)]
    assert report.get("error") is None


def test_one_node_with_a_parameter_server_needs_no_other(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    code = "import os, time\nif 'ps' in os.environ['AZ_BATCHAI_TASK_TYPE']: time.sleep(600)\n"
    group = job_group(server, code, launcher=tensorflow(1, 1, nodes=1))
    assert ended(engine, engine.start(group)).exit_code == 0
    assert not (tmp_path / "jobs" / "job" / "board.jsonl").exists()


def test_a_parameter_server_that_crashes_fails_the_run(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = (
        "import os, time\n"
        "if os.environ['AZ_BATCHAI_TASK_TYPE'] == 'ps': raise RuntimeError('no memory')\n"
        "time.sleep(600)\n"
    )
    assert run(engine, server, code, launcher=tensorflow(1, 1)) == 1
    assert "RuntimeError: no memory" in str(error_of(server)["message"])


def test_inputs_are_prepared_once_for_nodes_that_share_a_folder(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    with FaultyWeb() as web:
        page = web.put("/data/0", b"the content")
        rows = [["a.txt", 11, f"url:{web.url}/data/0", page.etag]]
        server.inputs["data"] = {"files": rows, "single": False}
        one = {"name": "data", "mode": "download", "dataset": "d", "path_on_compute": None}
        code = "import sys; print(open(sys.argv[1] + '/a.txt').read())"
        changes: dict[str, object] = {
            "arguments": ["script.py", "DatasetConsumptionConfig:data"],
            "inputs": [one],
            "cache": str(tmp_path / "cache"),
            "fetching": {"mirrors": {}, "allow_private": True, "max_bytes": None},
        }
        assert run(engine, server, code, **changes) == 0
    assert [server.log(log_of(rank)) for rank in range(2)] == ["the content\n"] * 2
    asked = [path for _, path in server.requests if path.endswith("/inputs/data")]
    assert len(asked) == 1
    assert not (tmp_path / "jobs" / "job" / "agent-1" / "inputs.json").exists()


def test_every_rank_has_a_container_of_its_own(engine: LocalEngine, server: FakeServer) -> None:
    code = "import os; print(os.environ['CONTAINER'])"
    prefix = ["/usr/bin/env", "CONTAINER={name}"]
    assert run(engine, server, code, per_node=2, prefix=prefix) == 0
    names = [server.log(log_of(rank)).strip() for rank in range(4)]
    assert len(set(names)) == 4
    assert [name.rsplit("-", 1)[1] for name in names] == ["0", "1", "2", "3"]


def test_jobs_of_one_node_do_not_pay_for_gangs() -> None:
    code = "import sys, runyard_runtime.agent; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "runyard_runtime.supervision" in done.stdout
    for name in ("gang", "board", "ports", "idle_ranks"):
        assert f"runyard_runtime.{name}'" not in done.stdout


def test_a_rank_does_not_wait_for_what_its_agent_needs_later() -> None:
    code = "import sys, runyard_runtime.agent; print(sorted(sys.modules))"
    # Without `site`, as agents are started: it may import anything.
    found = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=found
    )
    for name in ("subprocess", "socket", "threading", "shlex", "http.client", "ssl", "ctypes"):
        assert f"'{name}'" not in done.stdout


def test_a_lone_ranks_port_is_the_same_for_the_next_agent(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    launcher = {"kind": "pytorch", "nodes": 1, "processes_per_node": 1}
    gate, folder = tmp_path / "gate", tmp_path / "jobs" / "job"
    code = (
        "import os, time\n"
        "print(os.environ['MASTER_PORT'], flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.02)\n"
    )
    group = job_group(server, code, launcher=launcher)
    job = engine.start(group)
    says(server, "\n")
    port = int(server.log(DRIVER_LOG))
    keeper = json.loads((folder / "agent-0" / "rank-0.json").read_text())["keeper"]
    os.kill(keeper, signal.SIGKILL)  # so that only the next agent can hold the port
    replaced(engine, group, folder)
    wait_until(lambda: "taking over rank 0" in (folder / wire.CONTROL_LOG).read_text())
    with socket.socket(socket.AF_UNIX) as another, pytest.raises(OSError, match="in use"):
        another.bind(f"\0runyard-port-{port}")
    assert json.loads((folder / "agent-0" / "ports.json").read_text()) == [port]
    gate.touch()
    ended(engine, job)


def test_what_each_node_uses_has_names_of_its_own(engine: LocalEngine, server: FakeServer) -> None:
    code = (
        "import os, time\n"
        "name = 'events/agent-%s.jsonl' % os.environ['NODE_RANK']\n"
        "path = os.path.join(os.environ['RUNYARD_JOB_DIR'], name)\n"
        "while not os.path.exists(path) or 'cpu_percent' not in open(path).read():\n"
        "    time.sleep(0.02)\n"
    )
    assert run(engine, server, code, sample_seconds=0.1) == 0
    for node in range(2):
        lines = server.stream("events", f"agent-{node}.jsonl").decode().splitlines()
        names = {json.loads(line)["n"] for line in lines}
        assert f"system/node{node}/cpu_percent" in names
        assert all(name.startswith(f"system/node{node}/") for name in names)
