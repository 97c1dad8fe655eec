"""The bell by which front ends tell the platform that there is something to see."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.serving import bell
from runyard.serving.bell import Bell
from runyard.testing.front_service import PATIENCE, Service


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Bell]:
    """A bell that somebody listens to."""
    one = Bell(tmp_path / "services")
    yield one
    one.close()


def test_a_ring_before_the_wait_ends_it_and_counts_once(heard: Bell) -> None:
    heard.ring()
    heard.ring()
    assert heard.wait(PATIENCE)
    assert not heard.wait(0)


def test_another_process_rings(heard: Bell) -> None:
    code = "import sys; from runyard.serving.bell import ring; ring(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", code, str(heard.path)]) as other:
        assert heard.wait(PATIENCE)
    assert other.returncode == 0


def test_nobody_waits_for_a_bell_that_is_not_heard(heard: Bell) -> None:
    for _ in range(100_000):  # more than a pipe holds
        heard.ring()
    assert heard.wait(PATIENCE)
    heard.close()
    heard.ring()
    bell.ring(str(heard.path))
    assert not heard.path.exists()


def test_the_next_server_hears_the_bell_that_a_killed_one_left(heard: Bell) -> None:
    after = Bell(heard.path.parent)
    bell.ring(str(heard.path))
    assert after.wait(PATIENCE)
    after.close()


def test_where_there_can_be_no_named_pipe_the_server_still_wakes_itself(tmp_path: Path) -> None:
    (tmp_path / bell.FILE_NAME).mkdir()
    alone = Bell(tmp_path)
    alone.ring()
    assert alone.wait(PATIENCE)
    assert not alone.wait(0)
    alone.close()


def test_a_front_end_rings_when_it_has_found_a_worker_and_when_it_goes_by_a_new_file(
    service: Service, heard: Bell
) -> None:
    service.start(bell=str(heard.path))
    assert not heard.wait(0)
    service.worker()
    assert heard.wait(PATIENCE)
    assert service.status()["ready_workers"] == 1
    service.write(configuration="next")
    assert heard.wait(PATIENCE)
    assert service.status()["configuration"] == "next"


def test_a_front_end_whose_bell_is_gone_serves_all_the_same(
    service: Service, tmp_path: Path
) -> None:
    service.start(bell=str(tmp_path / "nowhere"))
    service.worker()
    service.wait_ready()
