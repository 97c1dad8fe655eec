"""Runs whose agents, servers or files fail them, and runs that are ended: what is said of them."""

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.exceptions import UserErrorException
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.engine_suite import agent_pid
from runyard.testing.fake_server import wait_until
from runyard_runtime import processes

pytestmark = pytest.mark.story

Submit = Callable[..., Any]
Tell = Callable[[Any], Any]

# Rank 1 fails as soon as it is told; the other waits.
WHEN_TOLD = """
meet("up")
while rank == 1 and not os.path.exists("outputs/go"):
    time.sleep(0.01)
if rank == 0:
    forever()
raise ValueError("bad batch")
"""


def folder_of(run: Any, home: Path) -> Path:
    """The job's folder, once all ranks have met."""
    folder = home / "jobs" / f"{run._record.uid}-1"
    outputs = folder / "work" / "outputs"
    wait_until(lambda: all((outputs / f"up-{rank}").exists() for rank in (0, 1)), 60)
    return folder


def go(folder: Path) -> None:
    """Have rank 1 fail."""
    (folder / "work" / "outputs" / "go").touch()


@pytest.mark.parametrize("nodes", [(0,), (1,), (0, 1)], ids=["leader", "member", "both"])
def test_a_rank_that_fails_while_its_agents_are_dead_is_named(
    nodes: tuple[int, ...], submit: Submit, tell: Tell, failures_home: Path
) -> None:
    run = submit(WHEN_TOLD)
    folder = folder_of(run, failures_home)
    for node in nodes:
        os.kill(agent_pid(folder, node), signal.SIGKILL)
    go(folder)
    told = tell(run)
    told.says("Rank 1 (node 1): ValueError: bad batch")
    assert (told.status, told.error["rank"]) == ("Failed", 1)


def test_a_node_that_dies_with_all_its_processes_is_named(
    submit: Submit, tell: Tell, failures_home: Path
) -> None:
    run = submit(WHEN_TOLD)
    folder = folder_of(run, failures_home)
    marker = processes.node_marker(processes.job_marker(str(folder)), 1)
    agent = agent_pid(folder, 1)
    rank = json.loads((folder / "agent-1" / "rank-1.json").read_text())
    for pid in {agent, rank["keeper"], rank["pid"], *processes.job_processes(marker, (agent,))}:
        processes.send(pid, signal.SIGKILL)
    told = tell(run)
    told.says("Rank 1 (node 1)", "exit code of the script is not known")
    assert (told.status, told.error["code"]) == ("Failed", "ExitCodeUnknown")


def test_a_rank_that_dies_while_the_server_is_dead_is_named(
    submit: Submit, tell: Tell, failures_home: Path
) -> None:
    run = submit(WHEN_TOLD)
    folder = folder_of(run, failures_home)
    server = embedded.status(load_settings({"RUNYARD_HOME": str(failures_home)})).server
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    go(folder)
    told = tell(run)
    told.says("Rank 1 (node 1): ValueError: bad batch")
    assert told.status == "Failed"


def test_a_run_that_takes_too_long_says_how_long_it_had(submit: Submit, tell: Tell) -> None:
    told = tell(submit("meet('up')\nforever()", max_run_duration_seconds=1))
    told.says("The run took longer than max_run_duration_seconds=1 and was canceled.")
    told.says_nothing_of("SIGTERM")
    assert (told.status, told.error["code"]) == ("Canceled", "MaxRunDurationExceeded")


def test_a_run_that_is_canceled_has_not_failed(
    submit: Submit, tell: Tell, failures_home: Path
) -> None:
    run = submit(WHEN_TOLD)
    folder_of(run, failures_home)
    run.cancel()
    told = tell(run)
    assert (told.status, told.error) == ("Canceled", {})
    told.says_nothing_of("SIGTERM", "Rank")


def test_a_script_that_is_not_there_is_refused_before_anything_starts(submit: Submit) -> None:
    with pytest.raises(UserErrorException, match=r"trian\.py"):
        submit(None, script="trian.py")


def test_a_module_that_was_left_out_of_the_snapshot_is_named(submit: Submit, tell: Tell) -> None:
    Path("layers.py").write_text("")
    Path(".amlignore").write_text("layers.py\n")
    told = tell(submit("import layers"))
    told.says("No module named 'layers'")
    assert told.status == "Failed"


def test_a_command_that_does_not_exist_is_named(submit: Submit, tell: Tell) -> None:
    told = tell(submit(None, command=["no-such-program", "--lr", "0.1"]))
    told.says("no-such-program", "not found")
    assert (told.status, told.error["exitCode"]) == ("Failed", 127)


def test_a_program_that_may_not_be_run_is_named(submit: Submit, tell: Tell) -> None:
    Path("train.sh").write_text("#!/bin/sh\necho hi\n")
    Path("train.sh").chmod(0o644)
    told = tell(submit(None, command=["./train.sh"]))
    told.says("train.sh", "ermission")
    assert (told.status, told.error["exitCode"]) == ("Failed", 126)


class TestANodeThatDoesNotComeUp:
    @pytest.fixture
    def failures_home(
        self, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Path]:
        """The home of a server with one run at a time, which gives its nodes a second."""
        home = tmp_path / "home"
        for name, value in (("HOME", str(home)), ("GROUP_SECONDS", "1"), ("LOCAL_SLOTS", "1")):
            monkeypatch.setenv(f"RUNYARD_{name}", value)
        settings = load_settings()
        yield home
        open_session(settings).client.close()
        embedded.stop(settings)

    def test_is_named_with_the_time_it_had(
        self, submit: Submit, tell: Tell, failures_home: Path
    ) -> None:
        before = submit("while not os.path.exists('outputs/go'):\n    time.sleep(0.01)", gang=None)
        run = submit("print('never')")  # waits for its turn, so the place of a node can be taken
        own = failures_home / "jobs" / f"{run._record.uid}-1" / "agent-1"
        own.mkdir(parents=True)
        with (own / "lock").open("a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            outputs = failures_home / "jobs" / f"{before._record.uid}-1" / "work" / "outputs"
            wait_until(outputs.exists, 60)
            (outputs / "go").touch()
            told = tell(run)
        told.says("Node 1 of 2 has not come up within 1 s", "Ask for fewer nodes")
        assert (told.status, told.error["code"]) == ("Failed", "GroupNotFormed")
