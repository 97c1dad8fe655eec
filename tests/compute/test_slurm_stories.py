"""A real Slurm behind a real server: what it refuses and takes away, in words that users read."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from runyard.cli import commands
from runyard.sdk.cluster_compute import SlurmCompute
from runyard.sdk.compute import ComputeTarget
from runyard.sdk.distributed import PyTorchConfiguration
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import ComputeTargetException, UserErrorException
from runyard.sdk.experiment import Experiment
from runyard.sdk.run import Run
from runyard.sdk.script_run_config import ScriptRunConfig
from runyard.sdk.workspace import Workspace
from runyard.testing.fake_server import wait_until
from runyard.testing.slurm_cluster import SlurmCluster

GOES_ON = """
import os, time
if os.path.exists("outputs/half"):
    print("goes on")
else:
    open("outputs/half", "w").close()
    print("half", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def slurm(slurm_of_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whose nodes are free again after the test."""
    yield slurm_of_session
    slurm_of_session.clear()


def attached(ws: Workspace, cluster: SlurmCluster, name: str, **options: object) -> ComputeTarget:
    # `one_machine` is no matter of users: nodes here are all this machine.
    config = SlurmCompute.attach_configuration(config_file=str(cluster.conf), **options)  # type: ignore[arg-type]
    config.to_spec().options["one_machine"] = "true"
    return ComputeTarget.attach(ws, name, config)


def submitted(
    ws: Workspace, target: ComputeTarget, code: str, *, nodes: int = 1, max_restarts: int = 0
) -> Run:
    Path("train.py").write_text(code)
    environment = Environment("own")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    config = ScriptRunConfig(
        ".",
        "train.py",
        compute_target=target,
        environment=environment,
        distributed_job_config=PyTorchConfiguration(node_count=nodes) if nodes > 1 else None,
        max_restarts=max_restarts,
    )
    return Experiment(ws, "slurm").submit(config)


def failure(run: Run) -> tuple[str, str]:
    """The code and the message of the error of a run that failed."""
    run.wait_for_completion(raise_on_error=False)
    details = cast(dict[str, Any], run.get_details())
    error = details["error"]["error"]
    return error["code"], error["message"]


def test_what_slurm_does_not_take_is_told_when_it_is_attached(
    ws: Workspace, slurm: SlurmCluster
) -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"partition": "nowhere"}, r"(?s)does not have that partition.*nowhere"),
        ({"time_limit": "soon"}, r"does not take that time limit"),
        ({"mpi": "pmix", "shared_folder": False}, r"needs a shared folder"),
        ({"arguments": "--constraint=gold"}, r"No node of the cluster has"),
        ({"arguments": "--no-such-thing"}, r"no-such-thing"),
        ({"cores": 64}, r"No node of the cluster has"),
    ]
    for options, words in refused:
        with pytest.raises(ComputeTargetException, match=words):
            attached(ws, slurm, "wrong", **options)


def test_more_nodes_than_there_are_are_refused_at_submit(
    ws: Workspace, slurm: SlurmCluster
) -> None:
    any_size = attached(ws, slurm, "any")
    with pytest.raises(UserErrorException, match="No node of the cluster has what the job asks"):
        submitted(ws, any_size, "", nodes=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "others", "account": "me"}, "its account may not use the partition"),
        ({"partition": "short", "time_limit": "7-0"}, "more time than the partition"),
    ],
    ids=["account", "time"],
)
def test_what_a_partition_does_not_allow_is_told_by_the_run(
    ws: Workspace,
    slurm: SlurmCluster,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, object],
    words: str,
) -> None:
    # Slurm takes such a job, unless a site has set EnforcePartLimits, and never runs it.
    target = attached(ws, slurm, "refused", **options)
    run = submitted(ws, target, "", max_restarts=3)
    code, message = failure(run)
    assert code == "CannotBePlaced", "and it is not tried again"
    assert words in message
    ws.write_config(".")
    assert commands.run(["show", run.id]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_a_node_without_that_python_is_told_by_the_run(ws: Workspace, slurm: SlurmCluster) -> None:
    target = attached(ws, slurm, "other-python", python="/opt/python9/bin/python")
    code, message = failure(submitted(ws, target, ""))
    assert code == "NodePython"
    assert "there is no interpreter '/opt/python9/bin/python' on this node" in message
    assert "option 'python'" in message


def test_a_preempted_run_says_so_and_goes_on_where_it_was(
    ws: Workspace, slurm: SlurmCluster
) -> None:
    run = submitted(ws, attached(ws, slurm, "main"), GOES_ON, max_restarts=1)
    wait_until(lambda: run.get_status() == "Running")
    wait_until(lambda: "R" in slurm.ask("squeue", "--noheader", "--format=%t"))
    wait_until(lambda: "half" in str(run.get_details_with_logs()["logFiles"]))
    wanted = ("--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null")
    slurm.ask("sbatch", *wanted, "--wrap=sleep 1")
    run.wait_for_completion()
    details = cast(dict[str, Any], run.get_details())
    (before,) = details["restarts"]["earlierAttempts"]
    first = before["error"]["error"]
    assert first["code"] == "Preempted"
    assert "it was preempted by a job of higher priority" in first["message"]
