"""Small parts of the agent, each alone."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runyard.testing.fake_server import wait_until
from runyard_runtime import job_folder, processes, sampling
from runyard_runtime.periodic import Periodic


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0, 35, 1024\n", [("system/gpu0_percent", 35.0), ("system/gpu0_memory_mb", 1024.0)]),
        ("1, [N/A], 7", [("system/gpu1_memory_mb", 7.0)]),
        ("No devices were found\n", []),
        ("", []),
    ],
)
def test_nvidia_smis_answer_becomes_metrics(text: str, values: list[tuple[str, float]]) -> None:
    assert sampling.gpu_values(text) == values


def test_cpu_use_counts_what_was_done_since_the_last_look() -> None:
    hertz = os.sysconf("SC_CLK_TCK")
    one = processes.Stat(state="R", parent=1, start=1, ticks=3 * hertz, pages=0)
    assert sampling.cpu_percent({7: 1 * hertz}, {7: one}, 4.0) == 50.0
    assert sampling.cpu_percent({}, {}, 4.0) == 0.0


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    me = os.getpid()
    start = processes.start_time(me)
    assert processes.is_alive(me, start)
    assert not processes.is_alive(me, start + 1)
    assert not processes.is_alive(0, 0)


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    start = processes.start_time(child.pid)
    wait_until(lambda: not processes.is_alive(child.pid, start))
    assert child.wait() == 0


def test_two_folders_have_two_markers(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "key", tmp_path / "b" / "key"
    assert processes.job_marker(str(one)) != processes.job_marker(str(two))
    assert processes.job_marker(str(one)) == processes.job_marker(str(one) + "/")


def test_ending_escalates_and_says_what_it_could_not_end() -> None:
    clock = iter(range(100))
    assert processes.end_processes(
        lambda: {2**22 + 1}, 3, now=lambda: next(clock), sleep=lambda _: None
    ) == {2**22 + 1}


def test_a_place_is_claimed_once(tmp_path: Path) -> None:
    place = str(tmp_path / "claim")
    assert job_folder.claim(place, {"who": 1})
    assert not job_folder.claim(place, {"who": 2})
    assert job_folder.read_json(place) == {"who": 1}


def test_a_reserved_note_appears_only_when_it_is_settled(tmp_path: Path) -> None:
    place = tmp_path / "note.json"
    reserved = job_folder.Reserved(str(place))
    assert not place.exists()
    reserved.settle({"exit_code": -9})
    assert job_folder.read_json(str(place)) == {"exit_code": -9}


def test_what_is_done_every_so_often_survives_its_failures() -> None:
    notes: list[str] = []
    done = threading.Event()
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) == 4:
            done.set()
        raise ValueError("always the same")

    thread = Periodic("testing", 0.001, work, notes.append)
    thread.start()
    assert done.wait(10)
    thread.end()
    thread.join()
    assert notes == ["testing failed: ValueError: always the same"]


NO_ROOM = """
import os, sys
from runyard_runtime import ranks

forks, fails_at = [], int(sys.argv[2])
really = os.fork

def fork():
    forks.append(1)
    if len(forks) == fails_at:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return really()

os.fork = fork
try:
    ranks.start(ranks_process, sys.argv[1], sys.argv[1] + "/log", sys.argv[1], 0)
except ranks.StartFailed as error:
    print(error)
"""


@pytest.mark.parametrize("fails_at", [1, 2], ids=["of the agent", "of the keeper"])
def test_a_fork_that_fails_is_told_in_words(tmp_path: Path, fails_at: int) -> None:
    process = "launch.Process(0, 3, 0, ['/bin/true'], {}, 'log', False, False)"
    code = NO_ROOM.replace("ranks_process", process).replace("import ranks", "import launch, ranks")
    command = [sys.executable, "-c", code, str(tmp_path), str(fails_at)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rank 3 cannot start: [Errno 11] Resource temporarily unavailable" in done.stdout
    assert not (tmp_path / "rank-3.json").exists()
