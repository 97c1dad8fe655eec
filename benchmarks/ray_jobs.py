"""What a run on Ray costs beside a bare Ray job of the same script, on the same cluster."""

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.driver import Driver
from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report, Times
from benchmarks.servers import ray_driver, yard

PROMISE = "a trivial run on Ray, against a bare `ray job submit` of the same script"
BESIDE = "the same against Ray's Python client in a warm process"


def measure_ray(report: Report, options: Options) -> None:
    """Ours, Ray's command and Ray's client in turn, on one cluster of one node."""
    if not options.peers:
        report.not_measured(PROMISE, "peers were not asked for")
        return
    times: dict[str, list[float]] = {"ours": [], "command": [], "client": []}
    with scratch() as folder, ExitStack() as stack:
        source = folder / "source"
        source.mkdir()
        (source / "script.py").write_text("print('hello')\n")
        try:
            ray = stack.enter_context(ray_driver(folder / "ray"))
        except PeerMissing as error:
            report.not_measured(PROMISE, str(error))
            return
        address = ray.environ["RAY_API_SERVER_ADDRESS"]
        ours = stack.enter_context(yard(folder / "yard"))
        token = folder / "ray" / "token"
        ours.command(
            *("compute", "attach", "ray", "--ray", address, "--token-file", str(token)),
            *("--option", f"node_folder={folder / 'node'}"),
        )
        driver = stack.enter_context(ours.driver())
        for repetition in range(options.slow_submits + 1):
            found = {
                "command": bare(ray, source),
                "client": ray.seconds("job", folder=str(source)),
                "ours": driver.seconds("submit_and_wait", folder=str(source), target="ray"),
            }
            if repetition:  # the first warms all of them
                for name, seconds in found.items():
                    times[name].append(seconds)
    mine, command, client = (Times(times[name]) for name in ("ours", "command", "client"))
    report.at_most(PROMISE, mine.p50 / command.p50, 1.5, f"ours {mine}; command {command}")
    report.shown(BESIDE, mine.p50 / client.p50, f"client {client}")


def bare(ray: Driver, source: Path) -> float:
    """Seconds of `ray job submit`, which waits for the job and shows its log."""
    programs = peer("ray")
    script = [str(programs / "python"), str(source / "script.py")]
    command = [str(programs / "ray"), "job", "submit", "--", *script]
    begun = time.perf_counter()
    done = subprocess.run(command, env=ray.environ, cwd=source, capture_output=True, text=True)
    seconds = time.perf_counter() - begun
    assert done.returncode == 0, done.stdout + done.stderr
    return seconds
