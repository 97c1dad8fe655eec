"""A Ray for tests that is shared: who was killed while it used one leaves none behind."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.testing.fake_server import wait_until
from runyard.testing.ray_cluster import end_abandoned
from runyard_runtime import processes, wire


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="ry-ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as at:
        yield Path(at)


@pytest.fixture
def node(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for a process of the cluster in that folder."""
    marked = {**os.environ, wire.JOB_KEY: f"ray-cluster-{folder.name}"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=marked, stdin=-1) as node:
        mark = marked[wire.JOB_KEY]
        wait_until(lambda: node.pid in processes.job_processes(mark))
        yield node
        node.kill()


def test_a_cluster_is_ended_when_all_who_used_it_were_killed(
    folder: Path, node: subprocess.Popen[bytes]
) -> None:
    me = os.getpid()
    killed, reused = (node.pid, 1), (me, processes.start_time(me) - 1)
    mine = (me, processes.start_time(me))
    (folder / "users.json").write_text(json.dumps([killed, reused, mine]))
    end_abandoned()
    assert node.poll() is None, "somebody still uses it"
    (folder / "users.json").write_text(json.dumps([killed, reused]))
    end_abandoned()
    node.wait(30)
    assert not folder.exists()
