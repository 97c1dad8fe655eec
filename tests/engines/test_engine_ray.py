"""The Ray engine on a real Ray: the promises of every engine, and what is its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runyard.domain.errors import Denied, EngineFailed, Unsupported
from runyard.engines import ENGINES
from runyard.engines.base import Engine, JobId, JobPhase, NodeGroup, NodeResources
from runyard.engines.ray import RayEngine, describe_nodes, plan_need
from runyard.engines.ray_answers import read_status
from runyard.engines.ray_api import RayApi
from runyard.engines.ray_driver import combined
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    Engines,
    EngineSuite,
    LoseNode,
    command_lines,
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
    def secrets(self, cluster: Cluster) -> Sequence[str]:
        return [cluster[1]]

    @pytest.fixture
    def lose_node(self) -> LoseNode:
        pytest.skip("Tests side by side share this cluster: test_ray_hosts loses a host of another")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def test_the_table_has_the_ray_engine(tmp_path: Path) -> None:
    assert ENGINES["ray"](tmp_path, {"address": "http://head:8265"}, {}).name == "ray"


@pytest.mark.parametrize("nodes", [1, 2])
def test_secrets_are_on_no_command_line_while_a_job_comes_up(
    engines: Engines, server: FakeServer, nodes: int
) -> None:
    engine = engines()
    group = job_group(server, "") if nodes == 1 else gang_group(engine, server, "")
    job = engine.start(group)
    shown: list[bytes] = []

    def is_over() -> bool:
        shown.extend(line for line in command_lines() if AGENT_TOKEN.encode() in line)
        return engine.poll([job])[job].phase is JobPhase.EXITED

    wait_until(is_over, 120)
    assert shown == []


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
        engines().check(large)
    assert f"The cluster has {NODES} nodes" in refused.value.why


def test_a_node_that_is_missing_when_a_job_starts_is_waited_for(
    engines: Engines, server: FakeServer
) -> None:
    # It fitted when it was submitted: a node was lost since then, and may be back soon.
    engine = engines()
    plan = job_group(server, "").plan
    job = engine.start(NodeGroup(key="job", nodes=NODES + 1, plan=plan))
    wait_until(lambda: "waits for nodes that the cluster lacks" in engine.poll([job])[job].detail)
    status = engine.poll([job])[job]
    assert status.phase is JobPhase.PENDING
    assert f"needs {NODES + 1} nodes with 1 core each; the cluster has {NODES}" in status.detail
    engine.kill(job)


@pytest.mark.parametrize("nodes", [1, 4])
def test_where_ray_adds_nodes_a_group_waits_and_is_told_why_when_none_come(
    cluster: Cluster, server: FakeServer, tmp_path: Path, nodes: int
) -> None:
    options = {"address": cluster[0], "autoscale": "true", "place_seconds": "5"}
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


@pytest.mark.parametrize(
    ("trouble", "nodes", "code", "words"),
    [
        ("token", 1, "NodeRefused", "the token is not valid there"),
        ("token", 2, "NodeRefused", "the token is not valid there"),
        ("server", 1, "ServerUnreachable", "cannot be reached from this node within 1 s"),
        ("disk", 1, "NodeFull", "the disk of this node is full"),
        ("folder", 1, "NodeFull", "cannot be written"),
    ],
)
def test_a_node_that_cannot_work_ends_the_job_with_the_cause(
    cluster: Cluster, server: FakeServer, tmp_path: Path, trouble: str, nodes: int, code: str,
    words: str,
) -> None:  # fmt: skip
    options = {"address": cluster[0], "node_folder": str(tmp_path / "node")}
    with contextlib.ExitStack() as stack:
        if trouble == "disk":
            options["node_folder"] = str(stack.enter_context(full_disk(tmp_path / "disk")))
        elif trouble == "folder":
            options["node_folder"] = "/proc/nowhere"
        elif trouble == "server":
            options |= {"url": f"http://127.0.0.1:{closed_port()}", "server_seconds": "1"}
        engine = RayEngine(tmp_path, options, {"token": cluster[1]})
        group = job_group(server, "") if nodes == 1 else gang_group(engine, server, "")
        if trouble == "token":
            plan = json.dumps({**json.loads(group.plan), "agent_token": "wrong"}).encode()
            group = msgspec.structs.replace(group, plan=plan)
        job = engine.start(group)
        wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE, 60)
        status = engine.poll([job])[job]
        engine.kill(job)
    assert status.node_lost, "another agent there would do no better"
    assert status.code == code
    assert status.detail.startswith(("node 0 (", "node 1 ("))
    assert words in status.detail


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[Path]:
    """A folder on a file system without room for anything."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_node_that_does_not_reach_the_server_says_so_while_it_tries(
    cluster: Cluster, server: FakeServer, tmp_path: Path
) -> None:
    options = {"address": cluster[0], "node_folder": str(tmp_path / "node")}
    options["url"] = f"http://127.0.0.1:{closed_port()}"
    engine = RayEngine(tmp_path, options, {"token": cluster[1]})
    job = engine.start(job_group(server, ""))
    wait_until(lambda: "does not answer" in engine.poll([job])[job].detail, 60)
    assert engine.poll([job])[job].phase is JobPhase.ACTIVE
    engine.kill(job)


def test_a_kill_that_could_not_end_the_job_says_so_and_can_be_repeated(
    engines: Engines, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runyard.engines.ray._KILL_SECONDS", 1.0)
    engine = engines()
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.ACTIVE)
    drivers = driver_processes(job)
    for pid in drivers:
        os.kill(pid, signal.SIGSTOP)  # its host is out of reach, as it were
    try:
        with pytest.raises(EngineFailed, match="could not be ended"):
            engine.kill(job)
    finally:
        for pid in drivers:
            os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    engine.kill(job)
    assert engine.poll([job])[job].phase in (JobPhase.GONE, JobPhase.EXITED)


def test_what_a_dead_driver_leaves_is_waited_for(
    engines: Engines, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runyard.engines.ray._KILL_SECONDS", 0.5)
    engine = engines()
    job = engine.start(job_group(server, FOREVER))
    says(server, "running")
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.ACTIVE)
    for pid in driver_processes(job):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: engine.poll([job])[job].phase is JobPhase.GONE)
    with pytest.raises(EngineFailed, match="could not be ended") as told:
        engine.kill(job)
    assert "driver is gone" in told.value.why
    monkeypatch.setattr("runyard.engines.ray._ORPHAN_SECONDS", 0.0)
    engine.kill(job)


def test_rays_list_tells_how_jobs_ended_until_they_are_swept_from_it(
    engines: Engines, cluster: Cluster, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    good = engine.start(job_group(server, "", key="good"))
    ended(engine, good)
    bad = engine.start(job_group(server, FOREVER, key="bad"))
    says(server, "running")
    engine.kill(bad)
    for job in (good, bad):
        engine.forget(job)
    listed = of_engine(engine, cluster)
    assert sorted(listed) == ["bad", "bad.kill", "good"]
    assert listed["good"]["status"] == "SUCCEEDED"
    assert listed["good"]["metadata"]["run"]
    assert AGENT_TOKEN not in json.dumps(listed)
    assert len(json.dumps(listed["good"])) < 4000, "each look at Ray fetches the list of all jobs"
    assert list(engine.jobs()) == []
    # Ray's own watch of a job writes it anew, as failed, where it is deleted too early.
    monkeypatch.setattr("runyard.engines.ray_answers.KEEP_SECONDS", 0.0)
    wait_until(lambda: not engine.jobs() and not of_engine(engine, cluster))
    other = engine.start(job_group(server, "", key="other"))
    ended(engine, other)
    assert sorted(of_engine(engine, cluster)) == ["other"]


def of_engine(engine: Engine, cluster: Cluster) -> dict[str, Any]:
    """The jobs of this engine in Ray's list, by their keys."""
    assert isinstance(engine, RayEngine)
    prefix = engine._submission(JobId(""))
    listed = RayApi(*cluster).jobs()
    return {
        name.removeprefix(prefix): info for name, info in listed.items() if name.startswith(prefix)
    }


def driver_processes(job: JobId) -> list[int]:
    """The processes of our program on Ray's side, without the guard and what it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            key = json.loads(_variables(path).get(b"RUNYARD_RAY_SPEC", b"{}")).get("key", "")
            if key.endswith(f"-{job}") and b"RUNYARD_RAY_DRIVER" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    assert found
    return found


def _variables(process: Path) -> dict[bytes, bytes]:
    pairs = (line.partition(b"=") for line in (process / "environ").read_bytes().split(b"\0"))
    return {name: value for name, _, value in pairs}


def test_a_cluster_without_such_a_python_says_so(
    cluster: Cluster, server: FakeServer, tmp_path: Path
) -> None:
    options = {"address": cluster[0], "python": "python-of-nobody"}
    engine = RayEngine(tmp_path, options, {"token": cluster[1]})
    status = ended(engine, engine.start(job_group(server, "")))
    assert (status.exit_code, status.code) == (None, "NodePython")
    assert "python-of-nobody" in status.detail


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token_is_refused_in_words(cluster: Cluster, tmp_path: Path, token: str) -> None:
    engine = RayEngine(tmp_path, {"address": cluster[0]}, {"token": token})
    with pytest.raises(Denied, match=r"refuses the token|asks for a token"):
        engine.check()


def test_a_need_is_put_as_ray_names_it() -> None:
    assert plan_need(2, None).bundle() == {"CPU": 1}
    need = plan_need(2, NodeResources(cores=6, gpus=2, memory_gb=1.5))
    assert need.bundle() == {"CPU": 6, "GPU": 2, "memory": 3 * 2**29}
    assert need.words() == "2 nodes with 6 cores and 2 GPUs and 1.5 GB each"


def test_equal_nodes_are_told_together() -> None:
    small, large = {"CPU": 4.0, "memory": 2.0**31}, {"CPU": 8.0, "GPU": 1.0, "memory": 2.0**32}
    told = "the cluster has 3 nodes: 2 with 4 cores, 2 GB; 1 with 8 cores, 1 GPU, 4 GB."
    assert describe_nodes([small, large, small]) == told
    assert describe_nodes([]) == "the cluster has no nodes now."


def test_the_state_of_a_job_is_that_of_its_worst_node() -> None:
    active, over = {"phase": "active", "host": "a"}, {"phase": "exited", "exit_code": 0}
    failed = {"phase": "exited", "exit_code": 3}
    lost = {"phase": "lost", "words": "no heart beat"}
    assert combined([over, active])["phase"] == "active"
    assert combined([over, failed])["exit_code"] == 3
    told = combined([active, lost])
    assert (told["phase"], told["node"]) == ("lost", 1)
    status = read_status({"status": "RUNNING"}, told)
    assert status.phase is JobPhase.GONE
    assert status.node_lost
    assert status.detail == "node 1: Ray lost it: no heart beat"


def test_a_driver_that_ray_lost_is_told_in_rays_words() -> None:
    info = {"status": "FAILED", "message": "Job supervisor actor died"}
    status = read_status(info, {"phase": "active"})
    assert (status.phase, status.detail) == (JobPhase.GONE, "Job supervisor actor died")


def test_a_driver_that_never_began_is_no_lost_node() -> None:
    shell = (
        "Job entrypoint command failed with exit code 127, last logs:\n/bin/sh: python: not found\n"
    )
    status = read_status({"status": "FAILED", "message": shell}, None)
    assert (status.phase, status.exit_code, status.code) == (JobPhase.EXITED, None, "NodePython")
    assert "/bin/sh: python: not found (the option 'python'" in status.detail
    failed = {"status": "FAILED", "message": "runtime_env setup failed: no space"}
    status = read_status(failed, None)
    assert (status.phase, status.code) == (JobPhase.EXITED, "EngineFailed")
    # A new Ray says what it was, and then no word of the message matters.
    failed |= {"message": "pip died", "error_type": "RUNTIME_ENV_SETUP_FAILURE"}
    assert read_status(failed, None).code == "EngineFailed"
    status = read_status({"status": "FAILED", "message": "The job's node died."}, None)
    assert (status.phase, status.node_lost, status.code) == (JobPhase.GONE, True, "")


def test_what_a_node_has_trouble_with_is_told_while_it_comes_up() -> None:
    trouble = {"phase": "active", "host": "b", "words": "runyard: one\nrunyard: the server is away"}
    told = combined([{"phase": "active", "host": "a", "words": ""}, trouble])
    status = read_status({"status": "RUNNING"}, told)
    assert (status.phase, status.detail) == (JobPhase.ACTIVE, "node 1 (b): the server is away")
