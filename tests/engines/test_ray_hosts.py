"""Ray over several hosts, each with its own network, address and hostname: what if one is lost?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.engines.base import JobPhase
from runyard.engines.ray import RayEngine
from runyard.testing.engine_suite import (
    FOREVER,
    ended,
    gang_group,
    lives,
    log_of,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard.testing.ray_cluster import RayCluster, ray_cluster, why_not_apart

# Not loopback: the hosts' network is made by the test and leads nowhere else.
pytestmark = pytest.mark.enable_socket
CODE = "import os, socket; print('pids', os.getpid(), flush=True)\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if why := why_not_apart():
        pytest.skip(f"Hosts of their own cannot be had here: {why}")
    with ray_cluster(nodes=3, cores=1, apart=True) as cluster:
        yield cluster


@pytest.fixture
def server(cluster: RayCluster) -> Iterator[FakeServer]:
    with FakeServer(host=cluster.gateway) as server:
        yield server


@pytest.fixture
def engine(cluster: RayCluster, tmp_path: Path) -> Iterator[RayEngine]:
    options = {"address": cluster.address, "node_folder": str(tmp_path / "node")}
    engine = RayEngine(tmp_path, options, {"token": cluster.token})
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def test_each_node_is_a_host_of_its_own(engine: RayEngine, server: FakeServer) -> None:
    code = "import os, socket; print(socket.gethostname(), os.environ['MASTER_ADDR'])"
    job = engine.start(gang_group(engine, server, code, nodes=3))
    status = ended(engine, job, 60)
    assert status.exit_code == 0
    assert sorted(status.hosts) == ["ray-0", "ray-1", "ray-2"]
    told = [server.log(log_of(rank)).split() for rank in range(3)]
    assert [name for name, _ in told] == list(status.hosts)
    assert len({address for _, address in told}) == 1
    assert not told[0][1].startswith("127.")


def test_a_host_whose_link_is_cut_is_named_and_nothing_is_left_on_the_others(
    engine: RayEngine, server: FakeServer, cluster: RayCluster
) -> None:
    # Last in this file: the host does not come back.
    job = engine.start(gang_group(engine, server, CODE + FOREVER))
    pids = [printed_pids(server, log_of(rank)) for rank in range(2)]
    says(server, "running", log_of(0))
    says(server, "running", log_of(1))
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.ACTIVE)
    hosts = engine.poll([job])[job].hosts
    lost = next(node for node, host in enumerate(hosts) if host != "ray-0")
    cluster.cut(int(hosts[lost].removeprefix("ray-")))
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE, 40)
    status = engine.poll([job])[job]
    assert status.node_lost
    assert f"node {lost} ({hosts[lost]}): Ray lost it" in status.detail
    wait_until(lambda: not any(lives(pid) for pid in pids[1 - lost]))
    # Nobody can reach the host that was cut off: it tidies up by itself.
    wait_until(lambda: not any(lives(pid) for pid in pids[lost]), 120)
