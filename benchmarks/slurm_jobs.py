"""How soon a trivial script is over on Slurm, ours against a bare `sbatch`."""

import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.report import Report, Times
from benchmarks.servers import yard
from runyard.testing.slurm_cluster import SlurmCluster, slurm_cluster, why_not

PROMISE = "Slurm: a run against a bare `sbatch` of the same script, both waited for"
_LOOK_SECONDS = 0.02


def measure_slurm(report: Report, options: Options) -> None:
    """`sbatch` and ours in turn, on nodes that share the server's disk and on nodes that do not."""
    if reason := why_not():
        report.not_measured(PROMISE, reason)
        return
    times: dict[str, list[float]] = {"sbatch": [], "shared": [], "apart": []}
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        (source / "script.py").write_text("print('hello')\n")
        cluster = stack.enter_context(slurm_cluster(2))
        server = stack.enter_context(yard(folder / "yard"))
        common = ("compute", "attach", "--slurm", "--option", f"conf={cluster.conf}")
        server.command(*common, "shared")
        apart = ("shared=false", f"folder={folder / 'node'}", f"python={sys.executable}")
        server.command(*common, "apart", *(word for one in apart for word in ("--option", one)))
        ours = stack.enter_context(server.driver())
        for repetition in range(options.slow_submits + 1):
            found = {
                "sbatch": bare(cluster, source),
                "shared": ours.seconds("submit_and_wait", folder=str(source), target="shared"),
                "apart": ours.seconds("submit_and_wait", folder=str(source), target="apart"),
            }
            if repetition:  # the first warms all of them
                for name, seconds in found.items():
                    times[name].append(seconds)
    plain, shared, far = (Times(times[name]) for name in ("sbatch", "shared", "apart"))
    note = f"ours {shared}; sbatch {plain}"
    report.at_most(PROMISE, shared.p50 / plain.p50, 1.5, note)
    report.at_most(
        f"{PROMISE}; nodes share no disk with the server", far.p50 / plain.p50, 1.5, f"ours {far}"
    )


def bare(cluster: SlurmCluster, source: Path) -> float:
    """Seconds from `sbatch` until Slurm says that the job is over."""
    sbatch = shutil.which("sbatch") or "sbatch"
    output = source.parent / "sbatch.log"
    command = [sbatch, "--parsable", f"--output={output}", f"--wrap={sys.executable} script.py"]
    begun = time.perf_counter()
    done = subprocess.run(
        command, env=cluster.environment, cwd=source, capture_output=True, text=True, check=True
    )
    job = done.stdout.strip()
    while True:
        state = cluster.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        if state.strip() in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"):
            break
        time.sleep(_LOOK_SECONDS)
    seconds = time.perf_counter() - begun
    assert state.strip() == "COMPLETED", state
    return seconds
