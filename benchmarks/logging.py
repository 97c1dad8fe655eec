"""What logging costs: in the job, in batches, one point at a time, and reading it back."""

import json
import random
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.connection import Connection
from benchmarks.driver import Driver
from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.peers import PeerMissing
from benchmarks.report import Report, Times
from benchmarks.servers import MlflowServer, Yard, mlflow_server, yard

JOBS = Path(__file__).parent / "jobs"
BATCH = 10_000
ROUNDS, CALLS = 400, 50  # see jobs/log_speed.py
CLIENTS = 8


def measure(options: Options) -> Report:
    """All four, MLflow beside us where it has the same thing."""
    report = Report("logging: in a job, in batches, single points, and back")
    with scratch() as folder, ExitStack() as stack:
        ours = stack.enter_context(yard(folder / "yard"))
        driver = stack.enter_context(ours.driver())
        theirs: MlflowServer | None = None
        client: Driver | None = None
        missing = "peers were not asked for"
        if options.peers:
            try:
                theirs = stack.enter_context(mlflow_server(folder / "mlflow"))
                client = stack.enter_context(theirs.driver())
            except PeerMissing as error:
                missing = str(error)
        _in_a_job(report, options, driver, client, missing)
        _in_batches(report, options, ours, driver, folder)
        _single_points(report, options, ours, driver, theirs, client, missing)
        _reading(report, options, ours, driver, client, missing)
    return report


def _in_a_job(
    report: Report, options: Options, ours: Driver, theirs: Driver | None, missing: str
) -> None:
    logged: list[float] = []
    plain: list[float] = []
    peer: list[float] = []
    for _ in range(1 if options.quick else 5):
        submitted = ours.ask(
            "submit", folder=str(JOBS), script="log_speed.py", arguments=[str(ROUNDS), str(CALLS)]
        )
        assert isinstance(submitted, dict)
        states = ours.ask("wait", ids=[submitted["id"]])
        assert states == {submitted["id"]: "Completed"}, states
        assert ours.ask("count_points", id=submitted["id"]) == ROUNDS * CALLS
        found = json.loads(str(ours.ask("file", id=submitted["id"], name="outputs/times.json")))
        logged += found["ours"]
        plain += found["plain"]
        if theirs is not None:
            answer = theirs.ask("log", count=10 if options.quick else 45)
            assert isinstance(answer, list)
            peer += answer[5:]  # the first ones of a run are slower and are not counted
    call, line = Times(logged), Times(plain)
    note = f"run.log {call}; plain {line}; each of n is a mean of {CALLS} calls"
    report.at_most("run.log against json.dumps and a flushed write", call.p50 / line.p50, 3, note)
    promise = "run.log is faster than mlflow.log_metric against its server by"
    if peer:
        them = Times(peer)
        report.at_least(promise, them.p50 / call.p50, 500, f"mlflow {them}")
    else:
        report.not_measured(promise, missing)


def _in_batches(report: Report, options: Options, ours: Yard, driver: Driver, folder: Path) -> None:
    batches = 3 if options.quick else 30
    streamed: list[float] = []
    posted: list[float] = []
    raw: list[float] = []
    run, other = str(driver.ask("interactive")), str(driver.ask("interactive"))
    stream = f"/api/v1/runs/{run}/streams/events/0.jsonl?offset="
    chance = random.Random(1)
    database = _raw_database(folder / "raw.db")
    offset = 0
    with Connection(ours.url, ours.headers) as connection:
        for batch in range(batches):
            rows = [
                (run, "loss", step, 1.7e9 + step / 8, chance.random())
                for step in range(batch * BATCH, (batch + 1) * BATCH)
            ]
            chunk, body = _as_events(rows), _as_points(rows)
            streamed.append(_timed(connection.post, f"{stream}{offset}", chunk))
            offset += len(chunk)
            posted.append(_timed(connection.post, f"/api/v1/runs/{other}/metrics", body))
            raw.append(_timed(_insert, database, rows))
    database.close()
    for one in (run, other):
        driver.ask("complete", id=one)
        assert driver.ask("count_points", id=one) == batches * BATCH, "the points are not all there"
    rate = {
        "raw": BATCH / Times(raw).p50,
        "stream": BATCH / Times(streamed).p50,
        "post": BATCH / Times(posted).p50,
    }
    report.at_least(
        "ingest of a job's events in batches against raw SQLite",
        rate["stream"] / rate["raw"],
        0.4,
        f"{rate['stream']:,.0f} against {rate['raw']:,.0f} points/s; batches of {BATCH:,}, one "
        f"commit each, n={batches}; both WAL, synchronous FULL",
    )
    report.shown(
        "the same as JSON points over POST …/metrics",
        rate["post"] / rate["raw"],
        f"{rate['post']:,.0f} points/s; we keep a batch packed, raw SQLite a row for each point",
    )


Points = list[tuple[str, str, int, float, float]]  # run, key, step, time, value


def _as_events(rows: Points) -> bytes:
    """The lines that a job would have written."""
    return "".join(
        f'{{"e":"metric","t":{time},"n":"{key}","v":{value},"s":{step}}}\n'
        for _, key, step, time, value in rows
    ).encode()


def _as_points(rows: Points) -> bytes:
    return json.dumps(
        [
            {"name": key, "value": value, "step": step, "time": time}
            for _, key, step, time, value in rows
        ]
    ).encode()


def _raw_database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE points (run TEXT, key TEXT, step INTEGER, time REAL, value REAL)"
    )
    return database


def _insert(database: sqlite3.Connection, rows: Points) -> None:
    with database:
        database.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?)", rows)


def _single_points(
    report: Report,
    options: Options,
    ours: Yard,
    driver: Driver,
    theirs: MlflowServer | None,
    client: Driver | None,
    missing: str,
) -> None:
    seconds = 1.0 if options.quick else 4.0
    run = str(driver.ask("interactive"))
    body = json.dumps([{"name": "loss", "value": 0.5, "time": 1.7e9}]).encode()
    peer_run = str(client.ask("create_run")) if client else ""
    peer_body = json.dumps(
        {"run_id": peer_run, "key": "loss", "value": 0.5, "timestamp": 1_700_000_000_000, "step": 1}
    ).encode()
    mine: list[float] = []
    them: list[float] = []
    for _ in range(2 if options.quick else 4):  # the first of each warms up and is not kept
        mine.append(_rate(ours.url, f"/api/v1/runs/{run}/metrics", body, ours.headers, seconds))
        if theirs is not None:
            headers = {"Content-Type": "application/json"}
            path = "/api/2.0/mlflow/runs/log-metric"
            them.append(_rate(theirs.url, path, peer_body, headers, seconds))
    driver.ask("complete", id=run)
    rate = Times(mine[1:]).p50
    promise = f"single-point HTTP writes from {CLIENTS} clients against MLflow's"
    if them:
        other = Times(them[1:]).p50
        report.at_least(promise, rate / other, 10, f"{rate:,.0f}/s against {other:,.0f}/s")
    else:
        report.shown("single-point HTTP writes", rate, missing, unit="/s")


def _rate(url: str, path: str, body: bytes, headers: dict[str, str], seconds: float) -> float:
    """Writes a second of several clients, each on one kept connection."""

    def one(_: int) -> int:
        done = 0
        with Connection(url, headers) as connection:
            while time.perf_counter() < until:
                connection.post(path, body)
                done += 1
        return done

    until = time.perf_counter() + seconds
    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = sum(pool.map(one, range(CLIENTS)))
    return done / (time.perf_counter() - begun)


def _reading(
    report: Report,
    options: Options,
    ours: Yard,
    driver: Driver,
    client: Driver | None,
    missing: str,
) -> None:
    count = 20_000
    run = str(driver.ask("interactive"))
    with Connection(ours.url, ours.headers) as connection:
        for first in range(0, count, BATCH):
            points = [
                {"name": "loss", "value": 0.5, "step": step, "time": 1.7e9 + step}
                for step in range(first, first + BATCH)
            ]
            connection.post(f"/api/v1/runs/{run}/metrics", json.dumps(points).encode())
    filled = str(client.ask("fill", count=count)) if client else ""
    mine: list[float] = []
    them: list[float] = []
    for _ in range(2 if options.quick else 7):
        mine.append(driver.seconds("time_metrics", id=run, expected=count))
        if client is not None:
            them.append(client.seconds("history", run=filled, expected=count))
    promise = "get_metrics of 20,000 points is faster than get_metric_history by"
    if them:
        ratio = Times(them).p50 / Times(mine).p50
        report.at_least(promise, ratio, 20, f"ours {Times(mine)}; mlflow {Times(them)}")
    else:
        report.not_measured(promise, missing)


def _timed(action: Callable[..., object], *arguments: object) -> float:
    begun = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begun
