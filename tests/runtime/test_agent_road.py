"""An agent's road from the plan to the last report, against a real server of its own."""

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobPhase
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    agent_pid,
    ended,
    job_group,
    lives,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.interpreters import interpreters
from runyard_runtime import wire

EVENTS = "0.jsonl"


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


def run(
    engine: LocalEngine, server: FakeServer, code: str, key: str = "job", **changes: object
) -> int | None:
    """Run a script to its end; the exit code."""
    return ended(engine, engine.start(job_group(server, code, key, **changes))).exit_code


@pytest.mark.parametrize(
    "interpreter", interpreters(extremes=False), ids=lambda path: Path(path).parts[-3]
)
def test_the_whole_road_on_every_python(
    tmp_path: Path, server: FakeServer, interpreter: str
) -> None:
    engine = LocalEngine(tmp_path / "jobs", interpreter=interpreter)
    code = """
import json, os, sys
print("hello from", "%d.%d" % sys.version_info[:2])
with open(os.path.join(os.environ["RUNYARD_JOB_DIR"], "events", "0.jsonl"), "a") as events:
    events.write(json.dumps({"e": "metric", "n": "loss", "v": 0.5}) + "\\n")
open("outputs/model.bin", "wb").write(b"weights")
open("logs/extra.txt", "w").write("a log of the user's own")
sys.stderr.write("to stderr\\n")
sys.exit(3)
"""
    assert run(engine, server, code, interpreter=interpreter, sample_seconds=10) == 3
    assert server.log(DRIVER_LOG).startswith("hello from 3.")
    assert "to stderr" in server.log(DRIVER_LOG)
    assert server.stream("events", EVENTS) == b'{"e": "metric", "n": "loss", "v": 0.5}\n'
    assert server.file("outputs/model.bin") == b"weights"
    assert server.log("logs/extra.txt") == "a log of the user's own"
    assert server.phases() == ["started", "ended", "finished"]
    report = server.report("finished")
    assert report["ranks"] == [{"rank": 0, "exit_code": 3}]
    assert report["error"]["exit_code"] == 3  # type: ignore[index]
    assert "kept 1 outputs" in server.log(wire.CONTROL_LOG)
    acked = tmp_path / "jobs" / "job" / "events" / "0.jsonl.acked"
    assert int(acked.read_text()) == len(server.stream("events", EVENTS))


def test_a_job_without_outputs_needs_four_requests(engine: LocalEngine, server: FakeServer) -> None:
    run(engine, server, "print('hi')", arguments=["-c", "print('hi')"], files={})
    assert server.phases() == ["started", "finished"]
    assert len(server.requests) <= 4  # two reports, two logs


def test_the_snapshot_is_laid_out_with_its_modes(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    snapshot = [
        server.add_file("deep/er/tool.sh", "#!/bin/sh\necho ran\n", 0o755),
        server.add_file("a file\nwith – odd name", "x", 0o444),
    ]
    run(engine, server, "", snapshot=snapshot, is_command=True, arguments=["deep/er/tool.sh"])
    work = tmp_path / "jobs" / "job" / "work"
    assert server.log(DRIVER_LOG) == "ran\n"
    assert stat.S_IMODE((work / "deep/er/tool.sh").stat().st_mode) == 0o755
    assert (work / "a file\nwith – odd name").read_text() == "x"


@pytest.mark.parametrize("path", ["/tmp/evil", "../evil", "a/../../evil", "a//b", "", "."])
def test_a_path_that_leads_out_fails_the_run(
    engine: LocalEngine, server: FakeServer, tmp_path: Path, path: str
) -> None:
    assert run(engine, server, "", snapshot=[server.add_file(path, "x")]) == 1
    error = server.report("failed")["error"]
    assert error["code"] == "LayoutFailed"  # type: ignore[index]
    assert "leads out of its folder" in server.log(wire.CONTROL_LOG)
    assert not list(tmp_path.glob("**/evil"))


def test_damaged_blobs_are_fetched_from_the_server_instead(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    row = server.add_file("script.py", "print('whole')")
    blob = tmp_path / "blobs" / str(row[1])[:2] / str(row[1])[2:]
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"damaged")
    run(engine, server, "", snapshot=[row], blobs=str(tmp_path / "blobs"))
    assert server.log(DRIVER_LOG) == "whole\n"


def test_a_damaged_content_fails_the_run(engine: LocalEngine, server: FakeServer) -> None:
    row = server.add_file("script.py", "print(1)")
    server.blobs[str(row[1])] = b"print(2)"
    assert run(engine, server, "", snapshot=[row]) == 1
    assert "damaged" in str(server.report("failed")["error"])


def test_a_missing_interpreter_is_said(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "", interpreter="/no/such/bin/python") == 127
    message = server.report("finished")["error"]["message"]  # type: ignore[index]
    assert message.startswith("Cannot run /no/such/bin/python: No such file or directory.")


def test_a_missing_script_is_said(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "", arguments=["nowhere.py"]) == 2
    assert "is not in the snapshot" in str(server.report("finished")["error"])


def test_an_unknown_launcher_fails_the_run(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "", launcher={"kind": "smoke"}) == 1
    assert "no launcher 'smoke'" in str(server.report("failed")["error"])


def test_a_traceback_becomes_the_runs_error(engine: LocalEngine, server: FakeServer) -> None:
    assert run(engine, server, "def f():\n    raise ValueError('bad rate')\nf()") == 1
    error = server.report("finished")["error"]
    assert error["message"] == "ValueError: bad rate"  # type: ignore[index]
    assert "line 2, in f" in error["traceback"]  # type: ignore[index]


def test_a_signal_is_a_negative_exit_code(engine: LocalEngine, server: FakeServer) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert run(engine, server, code) == -signal.SIGSEGV
    # and 143 is what the script said, not what a shell makes of a signal
    server.reports.clear()
    assert run(engine, server, "raise SystemExit(143)", key="another") == 143


def test_the_servers_order_stops_the_ranks(engine: LocalEngine, server: FakeServer) -> None:
    server.stop_ordered = True
    assert run(engine, server, FOREVER) == -signal.SIGTERM
    assert server.report("finished")["stopped"] is True
    assert server.report("finished").get("error") is None


def test_what_ignores_sigterm_is_killed_after_the_grace(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    job = engine.start(job_group(server, code, grace_seconds=0.2))
    says(server, "running")
    engine.stop(job)
    assert ended(engine, job).exit_code == -signal.SIGKILL


def test_a_script_may_use_its_grace_to_save(engine: LocalEngine, server: FakeServer) -> None:
    code = """
import signal, sys
def save(*_):
    open("outputs/saved", "w").write("at the last moment")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""
    job = engine.start(job_group(server, code + FOREVER))
    says(server, "running")
    engine.stop(job)
    assert ended(engine, job).exit_code == 0
    assert server.file("outputs/saved") == b"at the last moment"
    assert server.report("finished")["stopped"] is True


def test_the_time_limit_ends_the_run_and_keeps_its_outputs(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = "open('outputs/kept', 'w').write('x')\n" + FOREVER
    run(engine, server, code, max_run_duration_seconds=0.5)
    report = server.report("finished")
    assert report["timed_out"] is True
    assert report["error"]["code"] == "MaxRunDurationExceeded"  # type: ignore[index]
    assert server.file("outputs/kept") == b"x"


def test_daemons_that_hide_are_ended_with_the_run(engine: LocalEngine, server: FakeServer) -> None:
    code = """
import os, sys, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, b"%d" % os.getpid())
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
print("pids", os.read(reader, 20).decode())
"""
    assert run(engine, server, code) == 0
    (daemon,) = printed_pids(server)
    assert not lives(daemon)


def test_a_stop_before_the_start_starts_nothing(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    # What an agent leaves that was asked to stop and then killed.
    own = tmp_path / "jobs" / "job" / "agent-0"
    own.mkdir(parents=True)
    (own / "state.json").write_text(json.dumps({"reason": "stopped"}))
    assert run(engine, server, "print('never')") == 0
    assert server.report("finished")["stopped"] is True
    assert server.log(DRIVER_LOG) == ""


def test_a_stop_while_the_snapshot_is_fetched_is_heard(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    group = job_group(server, "print('never')")
    server.go_down()
    job = engine.start(group)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.ACTIVE)
    engine.stop(job)
    server.come_back()
    ended(engine, job)
    assert server.report("finished")["stopped"] is True
    assert server.log(DRIVER_LOG) == ""


def test_an_agent_whose_folder_was_removed_does_not_wait_for_the_server(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    pid = agent_pid(tmp_path / "jobs" / "job")
    engine.stop(job)
    server.go_down()
    engine.forget(job)
    wait_until(lambda: not lives(pid))


def test_a_second_agent_in_the_same_folder_ends_at_once(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    folder = tmp_path / "jobs" / "job"
    first = agent_pid(folder)
    code = "import sys; from runyard_runtime.agent import main; sys.exit(main(sys.argv[1], 0))"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code, str(folder)]) == 0
    assert agent_pid(folder) == first
    assert server.log(DRIVER_LOG) == "running\n"
    engine.stop(job)
    ended(engine, job)


def test_use_of_the_machine_is_sampled(engine: LocalEngine, server: FakeServer) -> None:
    code = "import time\nend = time.time() + 1\nwhile time.time() < end: pass"
    run(engine, server, code, sample_seconds=0.2)
    lines = server.stream("events", "agent-0.jsonl").decode().splitlines()
    events = [json.loads(line) for line in lines]
    assert {event["k"] for event in events} == {"system"}
    assert max(event["v"] for event in events if event["n"] == "system/cpu_percent") > 20
    assert max(event["v"] for event in events if event["n"] == "system/memory_mb") > 3


def test_ranks_are_nice_unless_told_otherwise(engine: LocalEngine, server: FakeServer) -> None:
    code = "import os; print(os.nice(0))"
    run(engine, server, code, key="a")
    assert int(server.log(DRIVER_LOG)) == min(os.nice(0) + 5, 19)
    server.streams.clear()
    run(engine, server, code, key="b", nice=0)
    assert int(server.log(DRIVER_LOG)) == os.nice(0)


def test_a_killed_keeper_does_not_lose_the_exit_code(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = f"""
import os, time
print("pids", os.getppid(), flush=True)
while not os.path.exists({str(gate)!r}): time.sleep(0.02)
raise SystemExit(7)
"""
    job = engine.start(job_group(server, code))
    (keeper,) = printed_pids(server)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not lives(keeper))
    gate.touch()
    assert ended(engine, job).exit_code == 7


def test_when_all_who_watched_were_killed_the_words_do_not_guess(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    code = "import os, time\nprint('pids', os.getppid(), os.getpid(), flush=True)\ntime.sleep(600)"
    group = job_group(server, code)
    job = engine.start(group)
    watched = printed_pids(server)
    for pid in (agent_pid(tmp_path / "jobs" / "job"), *watched):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    engine.start(group)
    ended(engine, job)
    error = server.report("finished")["error"]
    assert error["code"] == "ExitCodeUnknown"  # type: ignore[index]
    assert "rank 0 is over; its exit code is not known" in server.log(wire.CONTROL_LOG)


def test_what_variables_stand_for_is_not_in_the_agents_account(
    engine: LocalEngine, server: FakeServer
) -> None:
    arguments = ["-c", "import sys; print(len(sys.argv[1]))", "$PASSWORD"]
    run(engine, server, "", arguments=arguments, variables={"PASSWORD": "hush-hush"})
    assert server.log(DRIVER_LOG) == "9\n"
    account = server.log(wire.CONTROL_LOG)
    assert "print(len(sys.argv[1])) $PASSWORD" in account
    assert "hush-hush" not in account


def test_a_script_cannot_report_the_end_of_its_own_run(
    engine: LocalEngine, server: FakeServer
) -> None:
    code = """
import json, os, urllib.error, urllib.parse, urllib.request
request = urllib.request.Request(
    "%s/api/v1/runs/%s/reports" % (os.environ["AZUREML_SERVICE_ENDPOINT"],
                                   urllib.parse.quote(os.environ["AZUREML_RUN_ID"], safe="")),
    json.dumps({"attempt": 1, "phase": "finished", "ranks": []}).encode(),
    {"Authorization": "Bearer " + os.environ["AZUREML_RUN_TOKEN"]})
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print("refused", error.code)
    error.close()
"""
    run(engine, server, code)
    assert server.log(DRIVER_LOG) == "refused 403\n"
    assert server.report("finished")["ranks"] == [{"rank": 0, "exit_code": 0}]
