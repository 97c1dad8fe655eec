"""A new attempt finds what earlier ones left, and its logs go on behind theirs."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobPhase
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import DRIVER_LOG, agent_pid, ended, job_group
from runyard.testing.fake_server import FakeServer, wait_until
from runyard_runtime.restoring import announce, newest_logs

SCRIPT = """
import os
step = int(open("outputs/step").read()) if os.path.exists("outputs/step") else 0
print("begins at", step)
open("outputs/step", "w").write(str(step + 1))
os.makedirs("outputs/deep", exist_ok=True)
open("outputs/deep/er.bin", "ab").write(b"x")
open("logs/mine.txt", "a").write("line of %d\\n" % step)
open("logs/fresh.txt", "w").write("%d: all of it anew, and longer each time\\n" % step * (step + 1))
"""


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


def attempt(engine: LocalEngine, server: FakeServer, number: int, **changes: object) -> None:
    """Run one attempt to its end."""
    told: dict[str, object] = {"attempt": number, "restore": True} if number > 1 else {}
    group = job_group(server, SCRIPT, key=f"job-{number}", **{**told, **changes})
    assert ended(engine, engine.start(group)).exit_code == 0


def test_outputs_are_there_again_and_logs_go_on(engine: LocalEngine, server: FakeServer) -> None:
    for number in (1, 2, 3):
        attempt(engine, server, number)
    assert server.file("outputs/step") == b"3"
    assert server.file("outputs/deep/er.bin") == b"xxx"
    assert server.log(DRIVER_LOG) == (
        "begins at 0\n\n==== attempt 2 ====\nbegins at 1\n\n==== attempt 3 ====\nbegins at 2\n"
    )
    assert server.log("logs/mine.txt") == "line of 0\nline of 1\nline of 2\n"


def test_a_log_says_why_the_attempt_before_ended(engine: LocalEngine, server: FakeServer) -> None:
    attempt(engine, server, 1)
    attempt(engine, server, 2, restarted_after="Rank 1 (gpu-2): ValueError: ä")
    assert server.log(DRIVER_LOG) == (
        "begins at 0\n\n==== attempt 1 failed: Rank 1 (gpu-2): ValueError: ä\n"
        "==== attempt 2 ====\nbegins at 1\n"
    )


def test_a_log_that_each_attempt_writes_anew_is_kept_whole_for_each(
    engine: LocalEngine, server: FakeServer
) -> None:
    for number in (1, 2, 3):
        attempt(engine, server, number)
    for step, name in enumerate(["logs/fresh.txt", "logs/fresh.txt~2", "logs/fresh.txt~3"]):
        text = f"{step}: all of it anew, and longer each time\n"
        assert server.log(name) == text * (step + 1)


def test_outputs_come_from_the_folder_of_blobs_where_there_is_one(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    attempt(engine, server, 1)
    digest = server.files["outputs/step"][0]
    (tmp_path / "blobs" / digest[:2]).mkdir(parents=True)
    (tmp_path / "blobs" / digest[:2] / digest[2:]).write_bytes(server.blobs[digest])
    attempt(engine, server, 2, blobs=str(tmp_path / "blobs"))
    assert ("GET", f"/api/v1/blobs/{digest}") not in server.requests
    assert server.file("outputs/step") == b"2"


def test_an_output_that_cannot_be_had_fails_the_attempt_before_its_script_runs(
    engine: LocalEngine, server: FakeServer
) -> None:
    attempt(engine, server, 1)
    del server.blobs[server.files["outputs/step"][0]]
    server.reports.clear()
    job = engine.start(job_group(server, SCRIPT, key="job-2", attempt=2, restore=True))
    ended(engine, job)
    error = server.report("failed")["error"]
    assert isinstance(error, dict)
    assert error["code"] == "LayoutFailed"
    assert "'outputs/step' cannot be put back" in error["message"]
    assert "attempt 2" not in server.log(DRIVER_LOG)


def test_an_agent_that_takes_over_does_not_undo_what_the_script_wrote(
    engine: LocalEngine, server: FakeServer, tmp_path: Path
) -> None:
    attempt(engine, server, 1)
    waits = SCRIPT + "import time\nwhile not os.path.exists('outputs/go'): time.sleep(0.01)\n"
    group = job_group(server, waits, key="job-2", attempt=2, restore=True)
    job = engine.start(group)
    folder = tmp_path / "jobs" / "job-2"
    wait_until(lambda: "begins at 1" in server.log(DRIVER_LOG))
    os.kill(agent_pid(folder), signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    engine.start(group)
    wait_until(lambda: "taking over" in server.log("azureml-logs/55_azureml-execution.txt"))
    (folder / "work" / "outputs" / "go").touch()
    assert ended(engine, job).exit_code == 0
    assert server.file("outputs/step") == b"2"
    assert server.log(DRIVER_LOG).count("==== attempt 2 ====") == 1
    assert server.log("logs/mine.txt") == "line of 0\nline of 1\n"
    restored = json.loads((folder / "restored.json").read_text())
    assert list(restored["outputs"]) == ["outputs/deep/er.bin", "outputs/step"]


def test_of_a_rotated_log_the_last_generation_is_put_back() -> None:
    found = newest_logs(["logs/a", "logs/a~2", "logs/a~10", "logs/b~2", "logs/c"])
    assert found == {"logs/a": 10, "logs/b~2": 1, "logs/c": 1}


def test_a_log_that_has_begun_is_not_announced_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("begun\n")
    announce(2, [str(log), str(tmp_path / "no" / "such" / "folder")])
    assert log.read_text() == "begun\n"
