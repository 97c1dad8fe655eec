"""The command line and pages around runs of several processes: a real server, real runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.run import Run
from azureml.core.runconfig import PyTorchConfiguration, TensorflowConfiguration
from azureml.exceptions import ActivityFailedException
from runyard.cli import commands
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings

SETTINGS = {"RUNYARD_SAMPLE_SECONDS": "0", "RUNYARD_LOCAL_SLOTS": "8"}
SCRIPT = """\
import os, sys, time
rank = int(os.environ["RUNYARD_RANK"])
print("I am", rank, flush=True)
open("outputs/%d" % rank, "w").close()
while len(os.listdir("outputs")) < 2:
    time.sleep(0.01)
if sys.argv[1] == "fail" and rank == 1:
    raise ValueError("bad batch")
while sys.argv[1] != "end":
    time.sleep(0.01)
"""
Tell = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    settings = load_settings({"RUNYARD_HOME": str(home), **SETTINGS})
    yield home
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture(scope="module")
def project(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in {**SETTINGS, "RUNYARD_HOME": str(home)}.items():
            patch.setenv(name, value)
        patch.delenv("RUNYARD_URL", raising=False)
        (folder / "train.py").write_text(SCRIPT)
        yield folder


@pytest.fixture(scope="module")
def ws(project: Path) -> Workspace:
    made = Workspace.create("yard")
    made.write_config(str(project))
    return made


@pytest.fixture
def tell(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Run a command; what it prints to stdout and stderr."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert commands.run(arguments) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


def submit(ws: Workspace, how: str, kind: object = None) -> Run:
    environment = Environment("mine")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    source = ScriptRunConfig(
        ".",
        "train.py",
        arguments=[how],
        environment=environment,
        distributed_job_config=kind or PyTorchConfiguration("Gloo", process_count=2, node_count=2),
    )
    return Experiment(ws, "several").submit(source)


@pytest.fixture(scope="module")
def failed(ws: Workspace) -> Run:
    run = submit(ws, "fail")
    with pytest.raises(ActivityFailedException, match=f"runyard logs {run.id} --rank 1"):
        run.wait_for_completion()
    return run


def test_a_failed_run_leads_to_the_log_of_the_rank_that_failed(failed: Run, tell: Tell) -> None:
    shown, _ = tell("show", failed.id)
    assert "UserError (exit code 1): Rank 1 (node 1): ValueError: bad batch" in shown
    assert f"fix: Read its log with: runyard logs {failed.id} --rank 1\n" in shown
    assert "PyTorch (gloo), 2 nodes × 1 process\n" in shown
    printed, beside = tell("logs", failed.id)
    assert printed == "I am 0\n"
    assert f"all: --rank all; the one that failed: runyard logs {failed.id} --rank 1" in beside
    _, beside = tell("logs", "-f", failed.id)
    assert "70_driver_log_0.txt (of 2 ranks; --rank 1 shows another" in beside
    assert f"Its log: runyard logs {failed.id} --rank 1" in beside


def test_its_page_opens_that_log(failed: Run, tell: Tell) -> None:
    from urllib.request import HTTPCookieProcessor, build_opener

    url = tell("open", failed.id)[0].strip()
    with build_opener(HTTPCookieProcessor()).open(url, timeout=10) as page:
        html = page.read().decode()
    assert 'class="here">70_driver_log_1.txt</a>' in html
    assert "PyTorch (gloo), 2 nodes × 1 process" in html


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_all_ranks_are_printed_each_line_with_its_rank(
    failed: Run, tell: Tell, follow: list[str]
) -> None:
    printed, _ = tell("logs", *follow, "--rank", "all", failed.id)
    assert {"[0] I am 0", "[1] I am 1", "[1] ValueError: bad batch"} <= set(printed.splitlines())
    assert all(line.startswith(("[0]", "[1]")) for line in printed.splitlines())


def test_all_ranks_as_a_document(failed: Run, tell: Tell) -> None:
    document, _ = tell("logs", "--json", "--rank", "all", failed.id)
    assert '"log": "azureml-logs/70_driver_log_1.txt"' in document


def test_a_log_may_be_named_by_its_base_name(failed: Run, tell: Tell) -> None:
    assert tell("logs", failed.id, "--log", "70_driver_log_0.txt")[0] == "I am 0\n"
    account = tell("logs", failed.id, "--log", "55_azureml-execution.txt")[0]
    assert "rank 0" in account
    refused = tell("logs", failed.id, "--log", "nothing.txt", code=1)[1]
    assert "has no log" in refused


def test_tasks_of_tensorflow_have_their_names(ws: Workspace, tell: Tell) -> None:
    run = submit(ws, "fail", TensorflowConfiguration(worker_count=2, parameter_server_count=0))
    with pytest.raises(ActivityFailedException, match=r"worker_1 \(node 1\): ValueError"):
        run.wait_for_completion()
    assert f"runyard logs {run.id} --rank worker_1\n" in tell("show", run.id)[0]
    account = "".join(
        tell("logs", run.id, "--log", f"55_azureml-execution{end}.txt")[0] for end in ("", "_1")
    )
    assert "worker_1 ended with exit code 1" in account
    assert "started worker_0: " in account
    printed, _ = tell("logs", "--rank", "all", run.id)
    assert "[worker_1] I am 1" in printed


def test_far_more_processes_than_cores_are_warned_of(ws: Workspace) -> None:
    count = 2 * (os.cpu_count() or 1) + 1
    run = submit(ws, "end", PyTorchConfiguration("Gloo", process_count=count, node_count=1))
    run.wait_for_completion()
    assert f"{count} processes share this machine" in str(run.get_details()["warnings"])


def test_who_stops_following_is_told_that_the_run_goes_on(ws: Workspace, project: Path) -> None:
    run = submit(ws, "forever")
    words = [sys.executable, "-m", "runyard", "logs", "-f", "--rank", "all", run.id]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert any(line.endswith("I am 1\n") for line in follower.stdout)
        follower.send_signal(signal.SIGINT)
        _, said = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert f"The run goes on. Follow it with: runyard logs -f {run.id}" in said
    assert "Traceback" not in said
    assert run.get_status() == "Running"
    run.cancel()
    run.wait_for_completion(raise_on_error=False)


def test_local_is_shown_like_a_target_and_is_no_cluster(ws: Workspace, tell: Tell) -> None:
    assert "8 (RUNYARD_LOCAL_SLOTS)" in tell("compute", "show", "local")[0]
    assert '"slots": 8' in tell("compute", "show", "--json", "local")[0]
    listed, beside = tell("compute", "ls")
    assert "local" in listed
    assert "8 runs" in listed
    assert "There is no cluster yet" in beside
    with pytest.raises(ComputeTargetException) as refused:
        ComputeTarget(ws, "local")
    assert "is no cluster, but the server's machine itself" in str(refused.value)
    assert "not found" not in str(refused.value)


def test_a_target_that_is_written_wrongly_is_guessed(ws: Workspace, tell: Tell) -> None:
    tell("compute", "create", "gpu-cluster", "--size", "STANDARD_D2_V2", "--max-nodes", "1")
    for wrong in ("gpu-clutser", "GPU_Cluster"):
        assert "Did you mean 'gpu-cluster'?" in tell("compute", "show", wrong, code=1)[1]
    assert "Did you mean" not in tell("compute", "show", "zzz", code=1)[1]
    assert "Say what to change" in tell("compute", "update", "gpu-cluster", code=2)[1]


def test_sizes_are_listed(ws: Workspace, tell: Tell) -> None:
    listed, _ = tell("compute", "sizes")
    assert "STANDARD_NC6 " in listed
    assert '"name": "STANDARD_NC6"' in tell("compute", "sizes", "--json")[0]
