"""Runs that are started again after a failure, over a real server with real processes."""

import contextlib
import io
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import MpiConfiguration, PyTorchConfiguration, RunConfiguration
from azureml.exceptions import ActivityFailedException
from runyard.cli import commands
from runyard.sdk import embedded
from runyard.settings import Settings, load_settings
from runyard_runtime import processes

LOG = "azureml-logs/70_driver_log.txt"

# Each attempt does one step from where the last one stopped, and fails until there were three.
STEPS = """
import os, sys
from azureml.core import Run
run = Run.get_context()
step = int(open("outputs/step").read()) if os.path.exists("outputs/step") else 0
print("step", step, "attempt", os.environ["RUNYARD_ATTEMPT"])
run.log("loss", 3 - step)
open("outputs/step", "w").write(str(step + 1))
open("logs/notes.txt", "a").write("note %d\\n" % step)
if step < 2:
    raise ValueError("bad luck at step %d" % step)
"""

# Of a gang of two, the second rank is killed in the first attempt while the first one waits.
GANG = """
import os, signal, sys, time
rank, attempt = int(os.environ["OMPI_COMM_WORLD_RANK"]), os.environ["RUNYARD_ATTEMPT"]
print("rank", rank, "attempt", attempt, flush=True)
open("outputs/%s-%d" % (attempt, rank), "w").close()
if attempt == "1":
    while rank == 0 or not os.path.exists("outputs/1-0"):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
assert sorted(os.listdir("outputs"))[:2] == ["1-0", "1-1"], os.listdir("outputs")
"""


# Its first attempt fails after the server was killed.
OUTAGE = """
import os, sys, time
from azureml.core import Run
attempt = int(os.environ["RUNYARD_ATTEMPT"])
print("attempt", attempt)
Run.get_context().log("attempt", attempt)
if attempt == 1:
    print("ready", flush=True)
    while not os.path.exists({flag!r}):
        time.sleep(0.01)
    sys.exit(3)
"""


# Its first attempt never ends, and dies with everything else on the machine.
DEATH = """
import os, time
from azureml.core import Run
attempt = int(os.environ["RUNYARD_ATTEMPT"])
Run.get_context().log("attempt", attempt)
if attempt == 1:
    open("outputs/checkpoint", "w").write("epoch 7")
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
print("goes on from", open("outputs/checkpoint").read())
"""

# One rank of four, on the second node, fails; the others wait for it.
FAILING = """
import os, time
def train(rank):
    if rank == 3:
        raise ValueError("no such layer: 12")
    time.sleep(600)
train(int(os.environ["RANK"]))
"""


def submit(ws: Workspace, code: str, **settings: Any) -> Any:
    Path("train.py").write_text(code)
    return Experiment(ws, "again").submit(ScriptRunConfig(".", "train.py", **settings))


def text_of(run: Any, name: str) -> str:
    run.download_file(name, "here.txt")
    return Path("here.txt").read_text()


def show(run: Any, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert commands.run(["show", run.id]) == 0
    return capsys.readouterr().out


def test_a_run_goes_on_where_its_failed_attempt_stopped(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submit(ws, STEPS, max_restarts=3)
    run.wait_for_completion(show_output=True)
    printed = capsys.readouterr().out
    assert run.get_status() == "Completed"
    assert "step 0 attempt 1" in printed
    assert printed.index("==== attempt 2 ====") < printed.index("step 1 attempt 2")
    # What was acknowledged is there, once and in order, across the attempts.
    lines = [line for line in text_of(run, LOG).splitlines() if line.startswith(("step", "===="))]
    assert lines == [
        "step 0 attempt 1",
        "==== attempt 1 failed: ValueError: bad luck at step 0",
        "==== attempt 2 ====",
        "step 1 attempt 2",
        "==== attempt 2 failed: ValueError: bad luck at step 1",
        "==== attempt 3 ====",
        "step 2 attempt 3",
    ]
    assert run.get_metrics()["loss"] == [3, 2, 1]
    assert text_of(run, "logs/notes.txt") == "note 0\nnote 1\nnote 2\n"
    assert text_of(run, "outputs/step") == "3"
    details = run.get_details()
    assert details["runDefinition"]["maxRestarts"] == 3
    restarts = details["restarts"]
    assert (restarts["attempt"], restarts["maxAttempts"]) == (3, 4)
    why = [one["error"]["error"]["message"] for one in restarts["earlierAttempts"]]
    assert ["step 0" in why[0], "step 1" in why[1], len(why)] == [True, True, 2]
    shown = show(run, capsys)
    assert "3 of 4" in shown
    assert "bad luck at step 0" in shown
    capsys.readouterr()
    assert commands.run(["open", run.id]) == 0
    with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(
        capsys.readouterr().out.strip()
    ) as page:
        html = page.read().decode()
    assert "Attempt 1 failed: " in html
    assert "<dd>3 of 4</dd>" in html


def test_the_last_failure_is_the_runs(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    settings = RunConfiguration()
    settings.max_restarts = 1
    run = submit(ws, STEPS, run_config=settings)
    with pytest.raises(ActivityFailedException, match="bad luck at step 1") as caught:
        run.wait_for_completion()
    assert "attempt 2 of 2" in str(caught.value)
    assert run.get_status() == "Failed"
    assert run.get_details()["restarts"]["attempt"] == 2


def test_a_whole_gang_starts_again_when_one_rank_is_killed(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    gang = MpiConfiguration(node_count=2)
    run = submit(ws, GANG, distributed_job_config=gang, max_restarts=1)
    run.wait_for_completion()
    assert run.get_status() == "Completed"
    (before,) = run.get_details()["restarts"]["earlierAttempts"]
    error = before["error"]["error"]
    assert (error["rank"], error["exitCode"]) == (1, -9)
    names = [name for name in run.get_file_names() if "70_driver_log" in name]
    assert names == [f"azureml-logs/70_driver_log_{rank}.txt" for rank in (0, 1)]
    for rank in (0, 1):
        text = text_of(run, names[rank])
        assert text.index(f"rank {rank} attempt 1") < text.index("==== attempt 2 ====")
        assert text.index("==== attempt 2 ====") < text.index(f"rank {rank} attempt 2")
    shown = show(run, capsys)
    assert "Rank 1 (" in shown
    assert "SIGKILL" in shown
    assert commands.run(["logs", run.id, "--rank", "1"]) == 0
    assert "rank 1 attempt 2" in capsys.readouterr().out
    assert commands.run(["logs", run.id]) == 0
    assert "rank 0 attempt 2" in capsys.readouterr().out, "the first rank's is preferred"
    assert commands.run(["logs", run.id, "--rank", "2"]) == 1
    assert "It has 2: 0 to 1." in capsys.readouterr().err


def settings_of(home: Path) -> Settings:
    return load_settings({"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"})


def test_an_attempt_that_fails_while_the_server_is_dead_is_followed_by_another(
    ws: Workspace, cluster_home: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    settings = settings_of(cluster_home)
    run = submit(ws, OUTAGE.format(flag=str(flag)), max_restarts=1)

    class Killing(io.StringIO):
        def write(self, text: str) -> int:
            server = embedded.status(settings).server
            if "ready" in text and server is not None and not flag.exists():
                os.kill(server.pid, signal.SIGKILL)
                flag.touch()
            return super().write(text)

    out = Killing()
    with contextlib.redirect_stdout(out):
        run.wait_for_completion(show_output=True)
    assert run.get_status() == "Completed"
    expected = ["attempt 1", "ready", "==== attempt 2 ====", "attempt 2"]
    assert [line for line in out.getvalue().splitlines() if line in expected] == expected
    assert run.get_metrics()["attempt"] == [1, 2]


def kill_job(folder: Path) -> None:
    """Kill the agent, the keeper and the script of a job at once, as a power cut does."""
    agent = json.loads((folder / "agent-0" / "pid").read_text())
    assert processes.is_alive(agent["pid"], agent["start"])
    marker = processes.job_marker(str(folder))
    for pid in (agent["pid"], *processes.job_processes(marker, (agent["pid"],))):
        processes.send(pid, signal.SIGKILL)


def test_a_run_goes_on_from_its_checkpoint_after_the_machine_died(
    ws: Workspace, cluster_home: Path
) -> None:
    settings = settings_of(cluster_home)
    run = submit(ws, DEATH, max_restarts=1)
    killed: list[int] = []

    class Dying(io.StringIO):
        def write(self, text: str) -> int:
            server = embedded.status(settings).server
            if "ready" in text and server is not None and not killed:
                os.kill(server.pid, signal.SIGKILL)
                killed.append(server.pid)
                kill_job(cluster_home / "jobs" / f"{run._record.uid}-1")
            return super().write(text)

    out = Dying()
    with contextlib.redirect_stdout(out):
        run.wait_for_completion(show_output=True)
    assert killed
    assert run.get_status() == "Completed"
    assert "goes on from epoch 7" in out.getvalue()
    assert run.get_metrics()["attempt"] == [1, 2]
    (before,) = run.get_details()["restarts"]["earlierAttempts"]
    assert before["error"]["error"]["code"] == "ExitCodeUnknown"


def test_a_failed_gang_is_shown_with_its_rank_its_node_and_the_traceback(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    gang = PyTorchConfiguration("Gloo", process_count=4, node_count=2)
    run = submit(ws, FAILING, distributed_job_config=gang)
    with pytest.raises(ActivityFailedException, match=r"Rank 3 \(node 1\): ValueError"):
        run.wait_for_completion()
    shown = show(run, capsys)
    for words in ("Rank 3 (", "exit code 1", "in train", "ValueError: no such layer: 12"):
        assert words in shown
    assert f"runyard logs {run.id} --rank 3" in shown
    error = run.get_details()["error"]["error"]
    assert (error["rank"], error["exitCode"]) == (3, 1)


def test_the_command_line_asks_for_restarts(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    ws.write_config()
    Path("train.py").write_text(STEPS)
    arguments = ["submit", "--wait", "--max-restarts", "2", "train.py"]
    assert commands.run(arguments) == 0


def test_the_facts_of_a_distributed_run_are_v1s(ws: Workspace) -> None:
    gang = MpiConfiguration(process_count_per_node=2, node_count=2)
    run = submit(ws, "print('hi')", distributed_job_config=gang)
    run.wait_for_completion()
    definition = run.get_details()["runDefinition"]
    assert (definition["framework"], definition["communicator"]) == ("Python", "IntelMpi")
    assert definition["nodeCount"] == 2
    assert definition["mpi"] == {"processCountPerNode": 2}
    assert {"workerCount", "parameterServerCount"} <= set(definition["tensorflow"])
    assert {"communicationBackend", "processCount"} <= set(definition["pyTorch"])
    assert "maxRestarts" not in definition
    assert "restarts" not in run.get_details()
    logs = [name for name in run.get_file_names() if "70_driver_log" in name]
    assert logs == [f"azureml-logs/70_driver_log_{rank}.txt" for rank in range(4)]
