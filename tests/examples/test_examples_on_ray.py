"""The distributed examples, unchanged, on a server whose AmlCompute comes from a real Ray."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from azureml.core import Workspace
from runyard.environments.uv_tool import find_uv
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.ray_cluster import ray_cluster

pytestmark = [pytest.mark.story, pytest.mark.heavy]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What a server is started with whose clusters are Ray's."""
    found = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True)
    kept = Path(found.stdout.strip()).with_name("runyard-tests")
    home, nodes = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("nodes")
    for folder, name in ((home, "environments"), (nodes / ".runyard-node", "node-environments")):
        # Frameworks are large: what is made once, by the server or by a node, serves all tests.
        (kept / name).mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        (folder / "environments").symlink_to(kept / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(nodes))  # of the nodes, which keep what they fetch there
        with ray_cluster(nodes=2, cores=2) as cluster:
            patch.undo()
            token = home / "ray-token"
            token.write_text(cluster.token)
            given = {
                "RUNYARD_HOME": str(home),
                "RUNYARD_COMPUTE": f"ray:{cluster.address}",
                "RUNYARD_COMPUTE_TOKEN_FILE": str(token),
            }
            yield given
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
    return ws


def test_an_example_learns_the_same_on_both_nodes_of_ray(
    ws: Workspace, two_node_example: Callable[[Workspace], None]
) -> None:
    two_node_example(ws)
