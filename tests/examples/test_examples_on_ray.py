"""The distributed examples, unchanged, on a server whose AmlCompute comes from a real Ray."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, Run, Workspace
from runyard.environments.uv_tool import find_uv
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.ray_cluster import ray_cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"

pytestmark = [
    pytest.mark.story,
    pytest.mark.heavy,
    pytest.mark.skipif(
        not os.environ.get("RUNYARD_TEST_ALL_SPECS"), reason="RUNYARD_TEST_ALL_SPECS is not set"
    ),
]


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


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("pytorch-ddp", ("0", "1")),
        ("mpi", ("0", "1")),
        ("tensorflow-multiworker", ("worker_0", "worker_1")),
    ],
)
def test_an_example_learns_the_same_on_both_nodes_of_ray(
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
