"""The distributed examples, unchanged, on a server whose AmlCompute comes from a real Slurm."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from azureml.core import Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from runyard.environments.uv_tool import find_uv
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.slurm_cluster import slurm_cluster, why_not

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


def test_an_example_learns_the_same_on_both_nodes(
    ws: Workspace, two_node_example: Callable[[Workspace], None]
) -> None:
    two_node_example(ws)
