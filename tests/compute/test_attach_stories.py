"""A real Slurm cluster attached to a real server, used through the SDK and the command."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.cli import commands
from runyard.sdk.cluster_compute import RayCompute, SlurmCompute
from runyard.sdk.compute import AmlCompute, ComputeTarget
from runyard.sdk.deployment_configuration import plan_settings
from runyard.sdk.distributed import MpiConfiguration
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import ComputeTargetException, WebserviceException
from runyard.sdk.experiment import Experiment
from runyard.sdk.script_run_config import ScriptRunConfig
from runyard.sdk.workspace import Workspace
from runyard.testing.fake_server import wait_until
from runyard.testing.slurm_cluster import SlurmCluster, slurm_cluster, why_not

SCRIPT = """
import os
from azureml.core import Run

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
print("rank", rank)
os.makedirs("outputs", exist_ok=True)
open(f"outputs/of-{rank}.txt", "w").close()
if rank == "0":
    Run.get_context().log("cores", len(os.sched_getaffinity(0)))
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with slurm_cluster(nodes=2) as cluster:
        yield cluster


def settings(cluster: SlurmCluster, partition: str = "main") -> list[str]:
    """What the command is told of a cluster whose nodes are all this machine."""
    options = [f"conf={cluster.conf}", "one_machine=true"]
    given = [word for option in options for word in ("--option", option)]
    return ["--slurm", "--partition", partition, "--cores", "1", *given]


def test_the_same_script_runs_on_a_real_slurm(
    ws: Workspace, slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    ws.write_config(".")
    assert commands.run(["compute", "attach", "slurm", *settings(slurm, "nowhere")]) != 0
    assert "partition" in capsys.readouterr().err
    assert commands.run(["compute", "attach", "slurm", *settings(slurm)]) == 0
    assert "slurm main, attached" in capsys.readouterr().out
    target = ComputeTarget(ws, "slurm")
    assert isinstance(target, SlurmCompute)
    assert target.is_attached
    Path("train.py").write_text(SCRIPT)
    environment = Environment("own")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    config = ScriptRunConfig(
        ".",
        "train.py",
        compute_target=target,
        environment=environment,
        distributed_job_config=MpiConfiguration(node_count=2),
    )
    run = Experiment(ws, "elsewhere").submit(config)
    run.wait_for_completion()
    assert {"outputs/of-0.txt", "outputs/of-1.txt"} <= set(run.get_file_names())
    assert "cores" in run.get_metrics()
    assert f"Runyard run {run.id}" in slurm.ask("scontrol", "show", "job")

    def shown() -> str:
        capsys.readouterr()
        assert commands.run(["show", run.id]) == 0
        return capsys.readouterr().out

    wait_until(
        lambda: re.search(r"target +slurm, job", shown())
    )  # also if it was over before a look
    number = re.search(r"target +slurm, job (\d+)\n", shown())
    assert number is not None
    assert f"JobId={number[1]} " in slurm.ask("scontrol", "show", "job")
    with pytest.raises(ComputeTargetException, match="detach instead"):
        target.delete()
    with pytest.raises(WebserviceException, match="cannot be deployed to 'slurm'"):
        plan_settings(None, target)
    capsys.readouterr()
    assert commands.run(["compute", "show", "slurm"]) == 0
    assert "one_machine=true" in capsys.readouterr().out
    target.detach()
    assert commands.run(["compute", "attach", "again", *settings(slurm)]) == 0
    assert commands.run(["compute", "rm", "again"]) == 0
    assert "removed again; the cluster itself stays as it is" in capsys.readouterr().out
    with pytest.raises(ComputeTargetException, match="not found"):
        ComputeTarget(ws, "slurm")


def test_an_address_where_nobody_answers_is_told_when_it_is_attached(ws: Workspace) -> None:
    config = RayCompute.attach_configuration("http://127.0.0.1:1", "a-secret-token")
    assert "a-secret-token" not in repr(config)
    with pytest.raises(ComputeTargetException, match=r"127\.0\.0\.1:1") as told:
        ComputeTarget.attach(ws, "nowhere", config)
    assert "a-secret-token" not in str(told.value)


def test_what_is_no_cluster_cannot_be_attached(ws: Workspace) -> None:
    with pytest.raises(ComputeTargetException, match="RayCompute"):
        ComputeTarget.attach(ws, "vm", object())
    with pytest.raises(ComputeTargetException, match="not found"):
        AmlCompute(ws, "vm")


def test_what_is_on_a_cluster_that_is_gone_can_be_given_up(
    ws: Workspace, slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    ws.write_config(".")
    assert commands.run(["compute", "attach", "gone", *settings(slurm)]) == 0
    again = ["compute", "attach", "gone", *settings(slurm), "--max-nodes", "1"]
    assert commands.run(again) == 0
    assert "was attached before; changed: nodes 0–any → 0–1." in capsys.readouterr().err
    Path("train.py").write_text("import time; time.sleep(600)")
    environment = Environment("own")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    config = ScriptRunConfig(".", "train.py", compute_target="gone", environment=environment)
    run = Experiment(ws, "elsewhere").submit(config)
    wait_until(lambda: run.get_status() == "Running")
    slurm.stop_controller()
    try:
        assert commands.run(["compute", "show", "gone"]) == 0
        assert "cluster cannot be used now: Slurm's controller" in capsys.readouterr().err
        assert commands.run(["doctor"]) == 0
        assert re.search(r"warn +cluster gone", capsys.readouterr().out)
        assert commands.run(["compute", "rm", "gone"]) == 1
        assert "runyard compute rm --force gone" in capsys.readouterr().err
        assert commands.run(["compute", "rm", "--force", "gone"]) == 0
        assert run.get_status() == "Canceled"
        assert "GivenUp" in str(run.get_details()["error"])
    finally:
        slurm.start_controller()
    wait_until(lambda: not slurm.running())
