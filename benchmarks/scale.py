"""A large site on one machine: a thousand nodes report, ten thousand runs wait.

The server, its store, its queue and the protocol of the agents are the real ones; only the nodes
are simulated: an engine that starts nothing, and one process that reports for all of them.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.connection import Connection
from benchmarks.machine import alive, cpu_seconds, end_tree, resident_mb, scratch, wait_until
from benchmarks.options import Options
from benchmarks.report import Report, Times, short
from benchmarks.servers import Yard
from benchmarks.simulated_server import KIND
from runyard.conductor.engine_book import engine_key
from runyard.domain.compute import EngineRef
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.files import Manifest, manifest_digest
from runyard.domain.runs import RunSpec, ScriptSpec, Submission
from runyard_runtime.beside import ALIVE_SECONDS

ROOT = Path(__file__).parents[1]
SUBMITTERS = 4  # people who fill the queue at once
SETTLE_SECONDS = 2 * ALIVE_SECONDS  # every node has reported at least once more
WARM = 20  # submits that are not measured
ROUNDS = 5  # in which the same is measured again, to see how far the figures can be trusted
_EMPTY: Manifest = ()
_BLOCK = b"." * 4096


def measure(options: Options) -> Report:
    """Nodes, then a queue, then submits in turn: to this server and to one that is idle.

    In turn, because what else the machine does meanwhile then falls on both.
    """
    nodes, queued, probes = (50, 200, 10) if options.quick else (1_000, 10_000, 250)
    report = Report(f"scale: {nodes:,} simulated nodes report, {queued:,} runs wait")
    with (
        scratch() as folder,
        _server(folder / "idle") as quiet,
        _server(folder / "yard") as yard,
        _nodes(yard) as seen,
    ):
        _prepare(quiet, nodes)
        _prepare(yard, nodes)
        before = resident_mb(yard.pid)
        _fill(yard, nodes)
        wait_until(lambda: seen.reporting >= nodes, timeout=600, pause=0.1)
        time.sleep(SETTLE_SECONDS)
        with_nodes = resident_mb(yard.pid)
        seconds = _fill(yard, queued)
        filled = time.perf_counter()
        everything = nodes + queued + WARM
        wait_until(lambda: _count(yard) >= everything, timeout=600, pause=0.5)
        behind = time.perf_counter() - filled
        rest = _rest(yard, seen)
        after = resident_mb(yard.pid)
        rounds = [_probe(quiet, yard, folder, probes) for _ in range(ROUNDS)]
    _compare(report, rounds)
    each = (with_nodes - before) * 1000 / nodes
    note = f"{before:.0f} MB before, {with_nodes:.0f} MB with {nodes:,} running runs of one node"
    report.at_most("memory of the server for a node", each, 100, note, unit=" kB")
    note = f"{after:.0f} MB with all; the queue was filled at {queued / seconds:.0f} submits/s"
    report.shown("memory of the server for a queued run", (after - with_nodes) * 1000 / queued,
                 note, unit=" kB")  # fmt: skip
    note = f"{seen.answered:,} were answered; the slowest answer took {short(seen.slowest)}"
    report.at_most("reports that were refused or broken", seen.broken, 0, note, unit="")
    note = f"{rest.reports:.0f} reports/s and nothing else"
    report.shown("of a core for the server, at rest", rest.cores * 100, note, unit=" %")
    report.shown("until all were in line, after the last was submitted", behind, unit=" s")
    return report


class _Round(NamedTuple):
    """Times that were taken in turn."""

    idle: Times
    busy: Times
    in_line: Times  # submits to the target that the nodes belong to and the queue waits for
    disk: Times  # of writing a block to a plain file and having it on the disk


class _Rest(NamedTuple):
    """What the server does when nobody submits."""

    reports: float  # a second
    cores: float


def _compare(report: Report, rounds: Sequence[_Round]) -> None:
    """Add what the rounds say together, and how far they are apart."""
    idle, busy, in_line, disk = (_joined(times) for times in zip(*rounds, strict=True))
    for what, times, number in (
        ("p99 of a submit meanwhile against idle", busy, 1),
        ("the same, to the target that all wait for", in_line, 2),
    ):
        single = ", ".join(f"{one[number].p99 / one.idle.p99:.2g}" for one in rounds)
        note = f"idle {_words(idle)}; meanwhile {_words(times)}; by round {single}"
        report.at_most(what, times.p99 / idle.p99, 3, note)
    note = f"a plain file meanwhile, written and synced: {_words(disk)}"
    report.shown("p99 of the disk against its own p50", disk.p99 / disk.p50, note)


def _joined(times: Iterable[Times]) -> Times:
    return Times([seconds for one in times for seconds in one.seconds])


class _Seen:
    """What the process that plays the nodes says of them."""

    reporting = 0
    answered = 0
    broken = 0
    slowest = 0.0


@contextmanager
def _server(folder: Path) -> Iterator[Yard]:
    yard = Yard(folder, PYTHONPATH=str(ROOT), RUNYARD_LOCAL_SLOTS="2")
    with (folder / "server.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulated_server"],
            env=yard.environ, cwd=ROOT, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        wait_until(lambda: _is_up(yard), timeout=60)
        yield yard
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        if alive(process.pid):
            end_tree(process.pid)
        process.wait()


def _is_up(yard: Yard) -> bool:
    with suppress(OSError, ValueError, KeyError, RuntimeError):
        with Connection(yard.url, yard.headers) as one:
            one.get("/api/v1/workspaces")
        return True
    return False


@contextmanager
def _nodes(yard: Yard) -> Iterator[_Seen]:
    seen = _Seen()
    # All targets have the same options, so there is one engine and one folder.
    file = yard.home / "engines" / engine_key(EngineRef(kind=KIND)) / "started.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.simulated_nodes", str(file)],
        env=yard.environ, cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            seen.reporting, seen.answered, seen.broken, slowest = json.loads(line)
            seen.slowest = max(seen.slowest, slowest)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield seen
    finally:
        process.kill()
        process.wait()
        listener.join()


def _attach(one: Connection, name: str, max_nodes: int) -> None:
    body = json.dumps({"kind": KIND, "max_nodes": max_nodes}).encode()
    one.post(f"/api/v1/workspaces/bench/computes/{name}/attach", body)


def _submission(target: str) -> bytes:
    environment = EnvironmentSpec(name="own", user_managed=True, interpreter=sys.executable)
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot=manifest_digest(_EMPTY),
        environment=environment,
        target=target,
    )
    spec = RunSpec(workspace="bench", experiment="scale", script=script)
    return msgspec.json.encode(Submission(spec=spec, manifest=_EMPTY))


def _submit(one: Connection, target: str) -> float:
    """Seconds of one submit call."""
    body, begun = _submission(target), time.perf_counter()
    one.post("/api/v1/runs", body)
    return time.perf_counter() - begun


def _fill(yard: Yard, count: int) -> float:
    """Submit many runs to the site; the seconds it took."""
    begun = time.perf_counter()

    def some(number: int) -> None:
        with Connection(yard.url, yard.headers) as own:
            for _ in range(count // SUBMITTERS + (number < count % SUBMITTERS)):
                _submit(own, "site")

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(some, range(SUBMITTERS)))
    return time.perf_counter() - begun


def _prepare(yard: Yard, nodes: int) -> None:
    """Make the targets, and submit until the server is warm."""
    with Connection(yard.url, yard.headers) as one:
        one.post("/api/v1/workspaces", b'{"name": "bench"}')
        _attach(one, "probes", 1)
        _attach(one, "site", nodes)
        for _ in range(WARM):
            _submit(one, "probes")


def _rest(yard: Yard, seen: _Seen) -> _Rest:
    """Leave the server alone with its nodes for a while."""
    time.sleep(1)  # the last of the queue are in line; what follows from that is over soon
    begun, answered, used = time.perf_counter(), seen.answered, cpu_seconds(yard.pid)
    time.sleep(SETTLE_SECONDS)
    took = time.perf_counter() - begun
    return _Rest((seen.answered - answered) / took, (cpu_seconds(yard.pid) - used) / took)


def _probe(quiet: Yard, busy: Yard, folder: Path, count: int) -> _Round:
    """The seconds of some submits to each, in turn, and of the disk between them."""
    idle: list[float] = []
    own: list[float] = []
    in_line: list[float] = []
    disk: list[float] = []
    with (
        Connection(quiet.url, quiet.headers) as one,
        Connection(busy.url, busy.headers) as other,
        (folder / "plain").open("ab", buffering=0) as file,
    ):
        for target, times in [("probes", own), ("site", in_line)] * count:
            idle.append(_submit(one, "probes"))
            times.append(_submit(other, target))
            disk.append(_sync(file))
    return _Round(Times(idle), Times(own), Times(in_line), Times(disk))


def _sync(file: FileIO) -> float:
    """Seconds until a block is on the disk."""
    begun = time.perf_counter()
    file.write(_BLOCK)
    os.fsync(file.fileno())
    return time.perf_counter() - begun


def _count(yard: Yard) -> int:
    """How many runs run or wait, as the server counts them."""
    with Connection(yard.url, yard.headers) as one:
        active = json.loads(one.get("/api/v1/server"))["active"]
    return int(active.get("Running", 0)) + int(active.get("Queued", 0))


def _words(times: Times) -> str:
    spread = f"p50 {short(times.p50)}, p95 {short(times.p95)}, p99 {short(times.p99)}"
    return f"{spread}, n={len(times.seconds)}"
