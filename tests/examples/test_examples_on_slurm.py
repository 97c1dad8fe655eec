"""The distributed examples, unchanged, on a server whose AmlCompute comes from a real Slurm."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, Run, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from runyard.environments.uv_tool import find_uv
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.slurm_cluster import slurm_cluster, why_not

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"

pytestmark = [pytest.mark.story, pytest.mark.heavy]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a server is started with whose clusters are Slurm's."""
    if reason := why_not():
        pytest.skip(reason)
    found = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True)
    kept = Path(found.stdout.strip()).with_name("runyard-tests") / "environments"
    kept.mkdir(parents=True, exist_ok=True)
    home = tmp_path_factory.mktemp("home")
    (home / "environments").symlink_to(kept)
    with slurm_cluster(2, memory_mb=16000) as cluster:
        given = {"RUNYARD_HOME": str(home), "RUNYARD_COMPUTE": "slurm"}
        yield {**given, "SLURM_CONF": str(cluster.conf)}
        settings = load_settings(given)
        open_session(settings).client.close()
        embedded.stop(settings)


@pytest.fixture
def ws(variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ws = Workspace.create("examples", exist_ok=True)
    ws.write_config(path=str(tmp_path))
    if "cpu-2" not in ws.compute_targets:
        size = AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=2)
        ComputeTarget.create(ws, "cpu-2", size)
    return ws


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("pytorch-ddp", ("0", "1")),
        ("mpi", ("0", "1")),
        ("tensorflow-multiworker", ("worker_0", "worker_1")),
    ],
)
def test_an_example_learns_the_same_on_both_nodes(
    ws: Workspace, kind: str, names: tuple[str, ...]
) -> None:
    words = (str(EXAMPLES / "submit.py"), kind, "--processes-per-node", "1")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = next(iter(Experiment(ws, kind).get_runs()))
    assert run.get_status() == "Completed"
    logs = [log_of(run, name) for name in names]
    digests = {re.findall(r"^weights (\w{16})$", log, re.MULTILINE)[0] for log in logs}
    assert len(digests) == 1
    losses: Any = run.get_metrics()["loss"]
    assert losses[-1] < losses[0] / 1.5


def log_of(run: Run, name: str) -> str:
    run.download_file(f"azureml-logs/70_driver_log_{name}.txt", f"{name}.txt")
    return Path(f"{name}.txt").read_text()
