"""A real Slurm cluster attached to a real server, used through the SDK and the command."""

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
    assert "Runyard job" in slurm.ask("scontrol", "show", "job")
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
