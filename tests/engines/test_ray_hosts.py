"""Ray over three hosts, each with its own network, address and hostname: what if one is cut off?

All tests of such hosts are here, because they share one cluster: what is cut is mended.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.compute import ComputeTarget, RayCompute
from azureml.core.runconfig import PyTorchConfiguration
from runyard.engines.ray import RayEngine
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.engine_suite import Engines, LoseNode, NodeLossSuite
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.ray_cluster import RayCluster, ray_cluster, why_not_apart

# Not loopback: the hosts' network is made by the test and leads nowhere else.
pytestmark = [pytest.mark.story, pytest.mark.enable_socket]

# Two ranks average a weight at each step. The first attempt has more steps than time; the second
# goes on from the newest checkpoint that the server has, for ten steps.
TRAIN = """
import glob, json, os, socket, struct, time
from azureml.core import Run
rank, attempt = int(os.environ["RANK"]), os.environ["RUNYARD_ATTEMPT"]
print("rank", rank, "attempt", attempt, "on", socket.gethostname(), flush=True)
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", at[1])) as listener:
        peer, _ = listener.accept()
while rank:
    try:
        peer = socket.create_connection(at)
        break
    except OSError:
        time.sleep(0.1)
run, step, weight = Run.get_context(), 0, 0.0
newest = sorted(glob.glob("outputs/checkpoint-*.json"))
if newest:
    with open(newest[-1]) as stream:
        step, weight = json.load(stream)
begin, end = step, step + 10 if newest else 100000
while step < end:
    peer.sendall(struct.pack("dd", step, weight + 1 + rank))
    other, theirs = struct.unpack("dd", peer.recv(16, socket.MSG_WAITALL))
    assert other == step, "both begin at the same checkpoint"
    weight = (weight + 1 + rank + theirs) / 2
    step += 1
    if rank == 0:
        run.log("step", "%s:%d" % (attempt, step))
        if step % 5 == 0:
            name = "outputs/checkpoint-%05d.json" % step
            with open(name, "w") as stream:
                json.dump([step, weight], stream)
            run.upload_file(name, name)  # at once, not with the next look at outputs
    time.sleep(0.2)
print("from", begin, "to", step, "weight", weight, flush=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayCluster]:
    if why := why_not_apart():
        pytest.skip(f"Hosts of their own cannot be had here: {why}")
    with ray_cluster(nodes=3, cores=1, apart=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(hosts: RayCluster) -> RayCluster:
    """The cluster with all its hosts, whatever an earlier test did."""
    hosts.mend()
    return hosts


@pytest.fixture
def server(cluster: RayCluster) -> Iterator[FakeServer]:
    with FakeServer(host=cluster.gateway) as server:
        yield server


@pytest.fixture
def engines(cluster: RayCluster, tmp_path: Path) -> Engines:
    options = {"address": cluster.address, "node_folder": str(tmp_path / "node")}
    return lambda: RayEngine(tmp_path, options, {"token": cluster.token})


class TestRayLosesAHost(NodeLossSuite):
    @pytest.fixture
    def engines(self, engines: Engines) -> Engines:
        return engines

    @pytest.fixture
    def server(self, server: FakeServer) -> FakeServer:
        return server

    @pytest.fixture
    def lose_node(self, cluster: RayCluster) -> LoseNode:
        """Cuts the link of one that is not the head."""

        def lose(hosts: Sequence[str]) -> str:
            lost = next(host for host in hosts if host != "ray-0")
            cluster.cut(int(lost.removeprefix("ray-")))
            return lost

        return lose


@pytest.fixture
def ws(cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace of a server that the hosts reach, with the cluster attached."""
    given = {"RUNYARD_HOME": str(tmp_path / "home"), "RUNYARD_HOST": cluster.gateway}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    ws = Workspace.create("hosts")
    config = RayCompute.attach_configuration(
        cluster.address, cluster.token, cores=1, node_folder=str(tmp_path / "node")
    )
    ComputeTarget.attach(ws, "ray", config)
    yield ws
    settings = load_settings(given)
    open_session(settings).client.close()
    embedded.stop(settings)


def submit(ws: Workspace, folder: Path) -> Run:
    env = Environment("here")
    env.python.user_managed_dependencies = True
    env.python.interpreter_path = sys.executable
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    src = ScriptRunConfig(
        str(folder),
        "train.py",
        compute_target="ray",
        environment=env,
        distributed_job_config=PyTorchConfiguration(process_count=2, node_count=2),
        max_restarts=1,
    )
    return Experiment(ws, "cut").submit(src)


def test_a_run_whose_host_is_cut_off_goes_on_from_its_checkpoint_on_the_others(
    ws: Workspace, cluster: RayCluster, tmp_path: Path
) -> None:
    run = submit(ws, tmp_path / "project")
    wait_until(lambda: len(steps_of(run)) >= 6, 60)
    hosts = [text_of(run, rank).split()[5] for rank in range(2)]
    assert len(set(hosts)) == 2, "each node is a host of its own"
    # Not the head; rather the first node, which has the metrics and the checkpoints.
    lost = next(host for host in hosts if host != "ray-0")
    known = steps_of(run)
    cluster.cut(int(lost.removeprefix("ray-")))
    cut = time.monotonic()
    wait_until(lambda: restarts_of(run)["attempt"] == 2, 40)
    print(f"noticed after {time.monotonic() - cut:.1f} s")
    run.wait_for_completion()
    print(f"finished after {time.monotonic() - cut:.1f} s")
    (first,) = restarts_of(run)["earlierAttempts"]
    assert first["error"]["error"]["code"] == "NodeLost"
    assert f"({lost}): Ray lost it" in first["error"]["error"]["message"]
    check_steps(run, known)
    for rank in range(2):
        text = text_of(run, rank)
        assert text.index("attempt 1 on") < text.index("==== attempt 2 ====")
        assert f"attempt 2 on {lost}" not in text


def check_steps(run: Run, known: list[str]) -> None:
    """Whatever was known is there still; each step of each attempt is there, once, in order."""
    steps = steps_of(run)
    assert steps[: len(known)] == known
    first = [one for one in steps if one.startswith("1:")]
    assert first == [f"1:{step}" for step in range(1, len(first) + 1)]
    words = text_of(run, 0).split("\nfrom ")[1].split()
    begin, end, weight = int(words[0]), int(words[2]), float(words[4])
    assert begin in range(5, len(first) + 1, 5), "a checkpoint of the first attempt"
    assert steps == first + [f"2:{step}" for step in range(begin + 1, end + 1)]
    assert weight == 1.5 * end


def steps_of(run: Run) -> list[str]:
    found: Any = run.get_metrics().get("step", [])
    return found if isinstance(found, list) else [found]


def restarts_of(run: Run) -> Any:
    return run.get_details()["restarts"]


def text_of(run: Run, rank: int) -> str:
    run.download_file(f"azureml-logs/70_driver_log_{rank}.txt", f"{rank}.txt")
    return Path(f"{rank}.txt").read_text()
