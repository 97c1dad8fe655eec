"""The Ray engine on a real Ray: the promises of every engine, and what is its own."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import Denied, EngineFailed, Invalid, Unavailable, Unsupported
from runyard.engines import ENGINES
from runyard.engines.base import JobId, JobPhase, NodeGroup, NodeResources
from runyard.engines.ray import RayEngine, describe_nodes, plan_need, read_status
from runyard.engines.ray_driver import combined
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    Engines,
    EngineSuite,
    ended,
    gang_group,
    job_group,
    log_of,
    says,
)
from runyard.testing.fake_server import AGENT_TOKEN, FakeServer, wait_until
from runyard.testing.ray_cluster import shared_ray_cluster

Cluster = tuple[str, str]
NODES = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Address and token of a cluster of three nodes; test processes side by side share it."""
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "popen-" in base.name else base
    with shared_ray_cluster(place, nodes=NODES, gpus=2) as found:
        yield found


@pytest.fixture
def engines(cluster: Cluster, tmp_path: Path) -> Engines:
    address, token = cluster
    options = {"address": address, "node_folder": str(tmp_path / "node")}
    return lambda: RayEngine(tmp_path / "jobs", options, {"token": token})


class TestRayEngine(EngineSuite):
    @pytest.fixture
    def engines(self, engines: Engines) -> Engines:
        return engines


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def test_the_table_has_the_ray_engine(tmp_path: Path) -> None:
    assert ENGINES["ray"](tmp_path, {"address": "http://head:8265"}, {}).name == "ray"


def test_secrets_are_not_on_any_command_line(engines: Engines, server: FakeServer) -> None:
    engine = engines()
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    engine.kill(job)
    assert lines
    assert not any(AGENT_TOKEN.encode() in line for line in lines)


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("gpus", "seen"), [(0, [""]), (1, ["0", "1"]), (2, ["0,1"])])
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_see_the_gpus_that_ray_gave_their_node(
    engines: Engines, server: FakeServer, gpus: int, seen: list[str], nodes: int
) -> None:
    engine = engines()
    code = "import os; print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    group = job_group(server, code) if nodes == 1 else gang_group(engine, server, code)
    asked = NodeResources(cores=1, gpus=gpus)
    job = engine.start(msgspec.structs.replace(group, resources=asked))
    assert ended(engine, job, 60).exit_code == 0
    for name in [DRIVER_LOG] if nodes == 1 else [log_of(0), log_of(1)]:
        assert server.log(name).strip() in [f"sees {one!r}" for one in seen]


def test_two_servers_on_one_cluster_see_their_own_jobs_only(
    engines: Engines, cluster: Cluster, server: FakeServer, tmp_path: Path
) -> None:
    engine = engines()
    other = RayEngine(tmp_path / "other", {"address": cluster[0]}, {"token": cluster[1]})
    job = engine.start(job_group(server, ""))
    assert list(other.jobs()) == []
    assert other.poll([job])[job].phase is JobPhase.GONE
    other.kill(job)
    assert ended(engine, job).exit_code == 0


def test_a_group_that_no_cluster_like_this_can_hold_is_refused_in_words(
    engines: Engines, server: FakeServer
) -> None:
    group = job_group(server, "")
    large = NodeGroup(
        key="large", nodes=4, plan=group.plan, resources=NodeResources(cores=6, gpus=1)
    )
    with pytest.raises(Unsupported, match="4 nodes with 6 cores and 1 GPU each") as refused:
        engines().start(large)
    assert f"the cluster has {NODES} nodes" in refused.value.why


@pytest.mark.parametrize("nodes", [1, 4])
def test_where_ray_adds_nodes_a_group_waits_and_is_told_why_when_none_come(
    cluster: Cluster, server: FakeServer, tmp_path: Path, nodes: int
) -> None:
    options = {"address": cluster[0], "autoscale": "true", "place_seconds": "12"}
    engine = RayEngine(tmp_path, options, {"token": cluster[1]})
    asked = NodeResources(cores=6)
    plan = job_group(server, "").plan
    job = engine.start(NodeGroup(key="job", nodes=nodes, plan=plan, resources=asked))
    wait_until(lambda: "Ray to add nodes" in engine.poll([job])[job].detail)
    status = ended(engine, job)
    assert status.exit_code is None, "no agent was there that could have ended"
    assert "with 6 cores" in status.detail
    assert f"the cluster has {NODES} nodes" in status.detail
    engine.kill(job)
    assert engine.poll([job])[job].phase is JobPhase.GONE


def test_an_agent_that_cannot_be_kept_up_ends_the_job_with_its_last_words(
    engines: Engines, server: FakeServer
) -> None:
    engine = engines()
    group = job_group(server, "")
    plan = json.loads(group.plan)
    wrong = json.dumps({**plan, "agent_token": "wrong"}).encode()
    job = engine.start(NodeGroup(key="job", plan=wrong))
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    status = engine.poll([job])[job]
    assert status.node_lost
    assert "the token is not valid there" in status.detail


def test_a_cluster_without_such_a_python_says_so(
    cluster: Cluster, server: FakeServer, tmp_path: Path
) -> None:
    options = {"address": cluster[0], "python": "python-of-nobody"}
    engine = RayEngine(tmp_path, options, {"token": cluster[1]})
    job = engine.start(job_group(server, ""))
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    assert "python-of-nobody" in engine.poll([job])[job].detail


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token_is_refused_in_words(cluster: Cluster, tmp_path: Path, token: str) -> None:
    engine = RayEngine(tmp_path, {"address": cluster[0]}, {"token": token})
    with pytest.raises(Denied, match="refuses the token"):
        engine.check()


def test_an_address_nobody_answers_is_unavailable(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        engine = RayEngine(tmp_path, {"address": f"127.0.0.1:{taken.getsockname()[1]}"}, {})
        with pytest.raises(Unavailable, match="No Ray answers"):
            engine.check()
        with pytest.raises(Unavailable):
            engine.poll([JobId("job")])


def test_another_web_server_is_not_taken_for_ray(tmp_path: Path, server: FakeServer) -> None:
    engine = RayEngine(tmp_path, {"address": server.url}, {"token": AGENT_TOKEN})
    with pytest.raises(EngineFailed, match="not Ray's Jobs API"):
        engine.check()


@pytest.mark.parametrize("address", ["", "ray head", "ftp://head:8265", "http://"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(Invalid, match="not an address"):
        RayEngine(tmp_path, {"address": address}, {})


def test_a_need_is_put_as_ray_names_it() -> None:
    assert plan_need(2, None).bundle() == {"CPU": 1}
    need = plan_need(2, NodeResources(cores=6, gpus=2, memory_gb=1.5))
    assert need.bundle() == {"CPU": 6, "GPU": 2, "memory": 3 * 2**29}
    assert need.words() == "2 nodes with 6 cores and 2 GPUs and 1.5 GB each"


def test_equal_nodes_are_told_together() -> None:
    small, large = {"CPU": 4.0, "memory": 2.0**31}, {"CPU": 8.0, "GPU": 1.0, "memory": 2.0**32}
    told = "the cluster has 3 nodes: 2 with 4 cores, 2 GB; 1 with 8 cores, 1 GPU, 4 GB."
    assert describe_nodes([small, large, small]) == told
    assert describe_nodes([]) == "The cluster has no nodes now."


def test_the_state_of_a_job_is_that_of_its_worst_node() -> None:
    active, over = {"phase": "active", "host": "a"}, {"phase": "exited", "exit_code": 0}
    failed = {"phase": "exited", "exit_code": 3}
    lost = {"phase": "lost", "words": "no heart beat"}
    assert combined([over, active])["phase"] == "active"
    assert combined([over, failed])["exit_code"] == 3
    told = combined([active, lost])
    assert (told["phase"], told["node"]) == ("lost", 1)
    status = read_status("RUNNING", told, "")
    assert status.phase is JobPhase.GONE
    assert status.node_lost
    assert status.detail == "node 1: Ray lost it: no heart beat"


def test_a_driver_that_ray_lost_is_told_in_rays_words() -> None:
    status = read_status("FAILED", {"phase": "active"}, "Job supervisor actor died")
    assert (status.phase, status.detail) == (JobPhase.GONE, "Job supervisor actor died")
