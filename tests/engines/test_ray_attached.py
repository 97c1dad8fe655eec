"""A real Ray attached to a real server, by SDK and command: what is said when it does not fit,
and nodes that Ray's own autoscaler adds."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.compute import ComputeTarget, RayCompute
from azureml.core.runconfig import MpiConfiguration
from azureml.exceptions import ComputeTargetException, UserErrorException
from runyard.cli import commands
from runyard.engines.ray_api import RayApi
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.fake_server import wait_until
from runyard.testing.faulty_web import FaultyWeb
from runyard.testing.interpreters import interpreters
from runyard.testing.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.story
PENDING_SECONDS = 15  # after which Ray itself gives up a job that has no node; usually 900
FOREVER = "print('running', flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head with one core, to which Ray adds up to two nodes of three.

    It is of another Python than the server, where this machine has one that Ray can be had for.
    """
    found = [path for path in interpreters(extremes=False) if path.endswith(("3.10", "3.12"))]
    python = Path(next((path for path in found if path != sys.executable), sys.executable))
    with ray_cluster(
        nodes=1, cores=1, growth=(3, 2), pending_seconds=PENDING_SECONDS, python=python
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    yield home
    settings = load_settings({"RUNYARD_HOME": str(home)})
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def ws(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_HOME", str(home))
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    ws = Workspace.create("rays", exist_ok=True)
    ws.write_config(str(tmp_path))
    return ws


def attach(ws: Workspace, cluster: RayCluster, name: str, **settings: Any) -> ComputeTarget:
    given = {"node_folder": str(Path.cwd() / "node"), **settings}
    config = RayCompute.attach_configuration(cluster.address, cluster.token, **given)
    return ComputeTarget.attach(ws, name, config)


def submit(ws: Workspace, target: str, code: str, nodes: int = 1) -> Run:
    environment = Environment("here")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    Path("train.py").write_text(code)
    config = ScriptRunConfig(
        ".",
        "train.py",
        compute_target=target,
        environment=environment,
        distributed_job_config=MpiConfiguration(node_count=nodes) if nodes > 1 else None,
    )
    return Experiment(ws, "attached").submit(config)


@pytest.mark.parametrize(("token", "words"), [(None, "asks for a token"), ("no", "refuses the")])
def test_a_token_that_is_missing_or_wrong_is_told_when_it_is_attached(
    ws: Workspace, cluster: RayCluster, capsys: pytest.CaptureFixture[str], token: str | None,
    words: str,
) -> None:  # fmt: skip
    config = RayCompute.attach_configuration(cluster.address, token)
    with pytest.raises(ComputeTargetException, match=words):
        ComputeTarget.attach(ws, "refused", config)
    Path("token").write_text(token or "")
    given = ["--token-file", "token"] if token else []
    assert commands.run(["compute", "attach", "refused", "--ray", cluster.address, *given]) != 0
    said = capsys.readouterr().err
    assert words in said
    assert "ray get-auth-token" in said


def test_a_web_server_that_is_no_ray_is_told_when_it_is_attached(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultyWeb() as other:
        other.put("/api/version", b"<html>It works!</html>")
        with pytest.raises(ComputeTargetException, match="not Ray's Jobs API"):
            ComputeTarget.attach(ws, "other", RayCompute.attach_configuration(other.url))
        assert commands.run(["compute", "attach", "other", "--ray", other.url]) != 0
    assert "8265" in capsys.readouterr().err


def test_a_size_that_no_node_has_is_refused_when_it_is_attached_or_submitted(
    ws: Workspace, cluster: RayCluster
) -> None:
    with pytest.raises(ComputeTargetException, match="cannot hold this: 1 node with 64 cores"):
        attach(ws, cluster, "large", cores=64)
    attach(ws, cluster, "fixed", cores=1)
    with pytest.raises(UserErrorException, match="cannot hold this: 3 nodes with 1 core each"):
        submit(ws, "fixed", "", nodes=3)


def test_nodes_that_ray_adds_are_waited_for_and_go_when_they_idle(
    ws: Workspace, cluster: RayCluster
) -> None:
    attach(ws, cluster, "growing", cores=2, autoscale=True, max_nodes=2)
    assert cluster.nodes() == 1
    run = submit(ws, "growing", "print('hello')", nodes=2)
    most = 1
    deadline = time.monotonic() + 120
    while run.get_status() not in ("Completed", "Failed", "Canceled"):
        assert time.monotonic() < deadline, run.get_details()
        most = max(most, cluster.nodes())
        time.sleep(0.2)
    assert run.get_status() == "Completed", run.get_details()
    assert most == 3, "the head has one core: each node of the run was added for it"
    wait_until(lambda: cluster.nodes() == 1, 120)


def test_a_cluster_that_is_restarted_under_a_run_is_told_in_its_error(
    ws: Workspace, cluster: RayCluster
) -> None:
    attach(ws, cluster, "restarted", cores=1)
    run = submit(ws, "restarted", FOREVER)
    wait_until(lambda: run.get_status() == "Running", 60)
    cluster.restart()
    wait_until(lambda: run.get_status() == "Failed", 60)
    details: Any = run.get_details()
    error = details["error"]["error"]
    # Its agent may have been quick enough to say so itself.
    words = {
        "Stopped": "told to stop by somebody other than Runyard",
        "NodeLost": "Ray does not know this job; it may have been started anew",
    }
    assert words[error["code"]] in error["message"]


def test_a_run_waits_for_longer_than_ray_lets_a_job_wait(
    ws: Workspace, cluster: RayCluster
) -> None:
    attach(ws, cluster, "larger", cores=4, autoscale=True)
    run = submit(ws, "larger", "print('hello')")
    api = RayApi(cluster.address, cluster.token)

    def submitted() -> int:
        found = [one for one in api.jobs().values() if (one["metadata"] or {}).get("run")]
        mine = [one["start_time"] for one in found if one["status"] == "PENDING"]
        return mine[0] if mine else 0

    wait_until(lambda: submitted() > 0, 60)
    first = submitted()
    wait_until(lambda: submitted() > first, PENDING_SECONDS + 60)
    assert run.get_status() == "Starting"
    cluster.add_node(cores=4)
    run.wait_for_completion()
    assert run.get_status() == "Completed"
