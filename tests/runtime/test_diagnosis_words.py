"""Who a failed run's error speaks of, and what of a traceback a user wants to see."""

import pytest

from runyard_runtime import mpi, wire
from runyard_runtime.diagnosis import choose_cause, diagnose, last_traceback

OWN = '  File "/job/work/train.py", line 3, in <module>\n    main()\nValueError: bad batch'
NEW = (
    "Traceback (most recent call last):\n"
    '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
    '  File "<frozen runpy>", line 88, in _run_code\n'
    '  File "/env/lib/python3.11/site-packages/mpi4py/__main__.py", line 7, in <module>\n'
    "    main()\n"
    '  File "/env/lib/python3.11/site-packages/mpi4py/run.py", line 253, in main\n'
    "    run_command_line(args)\n"
)
OLD = (
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.6/runpy.py", line 193, in _run_module_as_main\n'
    '    "__main__", mod_spec)\n'
)


def failed(rank: int, node: int, **more: object) -> dict[str, object]:
    error = diagnose(1, ("Traceback (most recent call last):\n" + OWN).encode(), rank)
    told = {"rank": rank, "node": node, "exit_code": 1, "ended_at": 1.0, "error": error}
    return {**told, **more}


@pytest.mark.parametrize("before", [NEW, OLD, "Traceback (most recent call last):\n"])
def test_frames_of_what_runs_the_script_are_left_out(before: str) -> None:
    assert last_traceback(before + OWN) == "Traceback (most recent call last):\n" + OWN


def test_frames_further_down_stay_and_a_runner_that_fails_itself_is_shown() -> None:
    later = "Traceback (most recent call last):\n" + OWN.replace(
        "ValueError", '  File "/usr/lib/python3.11/runpy.py", line 1, in run_path\nValueError'
    )
    assert last_traceback(later) == later
    alone = NEW + "ModuleNotFoundError: No module named 'x'"
    assert last_traceback(alone) == alone


def test_an_error_names_the_node_as_its_cluster_does() -> None:
    error = choose_cause([failed(1, 1)], 2, 2, places=["gpu-1", "gpu-2"])
    assert error["message"] == "Rank 1 (gpu-2): ValueError: bad batch"
    assert error["node"] == 1
    elsewhere = choose_cause([failed(1, 1, host="n17")], 2, 2)
    assert elsewhere["message"].startswith("Rank 1 (node 1, n17): ")
    assert choose_cause([failed(1, 1)], 2, 2)["message"].startswith("Rank 1 (node 1): ")
    assert choose_cause([failed(1, 0)], 2, 1)["message"].startswith("Rank 1: ")


def test_tasks_of_tensorflow_are_called_by_their_names() -> None:
    names = {0: "worker_0", 1: "worker_1"}
    assert choose_cause([failed(1, 1)], 2, 2, names=names)["message"].startswith(
        "worker_1 (node 1): ValueError"
    )
    log = b"ConnectionResetError: Connection reset by peer"
    lost = failed(1, 0, error=diagnose(1, b"Traceback (most recent call last):\n  x\n" + log, 1))
    message = choose_cause([lost], 2, 1, good=[0], names=names)["message"]
    assert "With exit code 0 ended: worker_0." in message
    assert wire.task_name(wire.driver_log("ps_12")) == "ps_12"
    assert wire.task_name(wire.driver_log("12")) is None


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"
            "  Proc: [[53812,1],1]\n  Errorcode: 7\n",
            {1: 7},
        ),
        # Of a smaller communicator the rank is another; the process is still the world's.
        (
            "MPI_ABORT was invoked on rank 0 in communicator MPI COMMUNICATOR 3 SPLIT FROM 0\n"
            "  Proc: [[53812,1],3]\n  Errorcode: -1\n",
            {3: -1},
        ),
        (
            "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 7.\n",
            {1: 7},
        ),
        ("mpirun noticed that process rank 1 exited\n", {}),
    ],
)
def test_who_aborted_all_is_found_in_what_mpirun_says(log: str, expected: dict[int, int]) -> None:
    assert mpi.aborts_by_rank("-----\n" + log) == expected
