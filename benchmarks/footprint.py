"""What the platform weighs: time to be ready, memory, imports, the command, a page of runs."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from benchmarks.connection import Connection
from benchmarks.machine import clean_environ, end_tree, free_port, resident_mb, scratch, wait_until
from benchmarks.options import Options
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Times, short
from benchmarks.servers import BIN, Yard, answers, mlflow_command, spawn, yard
from runyard.domain.runs import RunKind, RunRecord, RunSpec
from runyard.domain.states import RunState
from runyard.settings import load_settings
from runyard.stores import open_store

INSERTERS = 32  # enough threads that group commits are large


def measure(options: Options) -> Report:
    """Servers in turn, then short commands in turn, then two sizes of history in turn."""
    report = Report("footprint: ready, memory, imports, the command, a page of runs")
    with scratch() as folder:
        _ready(report, options, folder)
        _commands(report, options, folder)
        _pages(report, options, folder)
    return report


def _ready(report: Report, options: Options, folder: Path) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    missing = "peers were not asked for"
    idle = 0.0
    peer_idle = 0.0
    for round_ in range(options.starts + 1):  # the first warms the disk cache and is thrown away
        seconds, idle = _start_ours(folder / f"ready-{round_}")
        ours.append(seconds)
        if options.peers:
            try:
                seconds, peer_idle = _start_mlflow(folder / f"mlflow-{round_}")
                theirs.append(seconds)
            except PeerMissing as error:
                missing = str(error)
    mine = Times(ours[1:])
    promise = "server ready faster than `mlflow server` by"
    if theirs:
        them = Times(theirs[1:])
        note = f"ours {mine}; mlflow {them}; a new home each time"
        report.at_least(promise, them.p50 / mine.p50, 5, note)
    else:
        report.not_measured(promise, missing)
    note = "`runyard up` in the foreground: the server and the command that waits for it"
    report.at_most("resident memory, idle", idle, 150, note, unit="MB")
    runs = 5 if options.quick else 50
    worked = _after_work(folder, runs)
    note = "the server in the background, and what it started"
    report.at_most(f"resident memory after {runs} runs", worked, 150, note, unit="MB")
    if theirs:
        report.shown("resident memory of `mlflow server`, idle", peer_idle, unit="MB")


def _start_ours(folder: Path) -> tuple[float, float]:
    """Seconds until the server answers, and its memory in MB."""
    port = free_port()
    one = Yard(folder, RUNYARD_PORT=str(port))
    return _start(
        [str(BIN / "runyard"), "up"], one.environ, folder, f"http://127.0.0.1:{port}/healthz"
    )


def _start_mlflow(folder: Path) -> tuple[float, float]:
    folder.mkdir()
    port = free_port()
    command = mlflow_command(folder, port)
    return _start(command, clean_environ(), folder, f"http://127.0.0.1:{port}/health")


def _start(command: list[str], environ: dict[str, str], cwd: Path, url: str) -> tuple[float, float]:
    begun = time.perf_counter()
    process = spawn(command, environ, cwd)
    try:
        wait_until(lambda: answers(url), timeout=180, pause=0.005)
        seconds = time.perf_counter() - begun
        time.sleep(1)  # let it settle before it is weighed
        return seconds, resident_mb(process.pid)
    finally:
        end_tree(process.pid)
        process.wait()


def _after_work(folder: Path, runs: int) -> float:
    source = folder / "source"
    source.mkdir()
    (source / "script.py").write_text("print('hello')\n")
    with yard(folder / "worked") as ours:
        pid = ours.pid
        with ours.driver() as driver:
            ids = driver.ask("submit_many", folder=str(source), count=runs)
            driver.ask("wait", ids=ids)
        return resident_mb(pid)


def _commands(report: Report, options: Options, folder: Path) -> None:
    with yard(folder / "commands") as ours:
        ours.down()
        _fill(ours, 100)  # so that `ls` has something to list
        ours.up()
        commands = {
            "bare": [sys.executable, "-c", "pass"],
            "import": [sys.executable, "-c", "import azureml.core"],
            "ls": [str(BIN / "runyard"), "ls"],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.processes + 1):
            for name, command in commands.items():
                found[name].append(_seconds(command, ours))
    times = {name: Times(seconds[1:]) for name, seconds in found.items()}
    bare = times["bare"]
    for name, promise, bound in (
        ("import", "`import azureml.core` against a bare interpreter start", 12),
        ("ls", "`runyard ls` against a bare interpreter start", 20),
    ):
        note = f"{times[name]}; bare {bare}"
        report.at_most(promise, times[name].p50 / bare.p50, bound, note)


def _seconds(command: list[str], ours: Yard) -> float:
    begun = time.perf_counter()
    subprocess.run(
        command,
        env=ours.environ,
        cwd=ours.folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


def _pages(report: Report, options: Options, folder: Path) -> None:
    sizes = (1_000, options.listed)
    with ExitStack() as stack:
        fetch: dict[int, list[Callable[[], float]]] = {}
        for size in sizes:
            one = Yard(folder / f"history-{size}")
            one.init()
            one.down()
            _fill(one, size)
            one.up()
            stack.callback(one.clear)
            fetch[size] = [_page(one, size, deep=False), _page(one, size, deep=True)]
        repetitions = 5 if options.quick else 30
        found: dict[tuple[int, int], list[float]] = {}
        for _ in range(repetitions):
            for size in sizes:
                for depth, action in enumerate(fetch[size]):
                    found.setdefault((size, depth), []).append(action())
    for depth, label in enumerate(("first page", "a page from the middle")):
        small, large = (Times(found[size, depth]) for size in sizes)
        report.at_most(
            f"{label} of {sizes[1]:,} runs against one of {sizes[0]:,}",
            large.p50 / small.p50,
            2,
            f"{short(large.p50)} against {short(small.p50)}; 100 runs a page, n={repetitions}",
        )


def _fill(one: Yard, count: int) -> None:
    """Put finished runs into the store of a server that does not run."""
    settings = load_settings(one.environ)
    store = open_store(settings.database_url, settings.blobs_url)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    spec = RunSpec(workspace="bench", experiment="history", kind=RunKind.INTERACTIVE)

    def insert(index: int) -> None:
        store.records.insert(
            RunRecord(
                id=f"history_{index}",
                uid=f"h{index:08}",
                spec=spec,
                state=RunState.COMPLETED,
                created=moment,
                ended=moment,
                tags={"index": str(index)},
            )
        )

    try:
        with ThreadPoolExecutor(INSERTERS) as pool:
            for _ in pool.map(insert, range(count)):
                pass
    finally:
        store.close()


def _page(one: Yard, size: int, *, deep: bool) -> Callable[[], float]:
    """A function that fetches one page on a kept connection and returns the seconds it took."""
    connection = Connection(one.url, one.headers)
    path = "/api/v1/runs?workspace=bench&experiment=history&limit=100"
    if deep:
        first, cursor = path, ""
        for _ in range(size // 200):
            cursor = json.loads(connection.get(first + cursor))["next"]
            cursor = f"&after={quote(cursor)}"
        path = first + cursor

    def fetch() -> float:
        begun = time.perf_counter()
        answer = connection.get(path)
        seconds = time.perf_counter() - begun
        assert len(json.loads(answer)["runs"]) == 100
        return seconds

    fetch()
    return fetch
