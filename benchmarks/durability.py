"""Nothing is lost and nothing doubled while servers and agents are killed with -9."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.driver import Driver
from benchmarks.machine import scratch
from benchmarks.options import Options
from benchmarks.report import Report
from benchmarks.servers import Yard, yard

JOBS = Path(__file__).parent / "jobs"
WRITERS = 4
NAMES = 5  # metric names each job uses, see jobs/log_many.py
SEED = 2  # the same kills in every run of the benchmark


def measure(options: Options) -> Report:
    """First points under server kills, then whole runs under kills of anything."""
    report = Report("durability: kill -9")
    with scratch() as folder:
        with yard(folder / "points", RUNYARD_LOCAL_SLOTS=str(WRITERS)) as ours:
            _points(report, options, ours)
        with yard(folder / "runs", RUNYARD_LOCAL_SLOTS="4") as ours:
            _runs(report, options, ours)
    return report


def _points(report: Report, options: Options, ours: Yard) -> None:
    each = options.points // WRITERS
    # Longer than the kills take, so that every one of them falls into the logging.
    seconds = max(options.kills * 2.0 + 2, each / 50_000)
    with ours.driver() as driver:
        ids = [
            _submit(driver, "log_many.py", [str(each), str(seconds)])
            for _ in range(WRITERS)
        ]  # fmt: skip
        while set(_states(driver, ids).values()) - {"Running"}:
            time.sleep(0.1)
        begun = time.monotonic()
        hits = 0
        for kill in range(options.kills):
            _sleep_until(begun + 1.5 * (kill + 0.5))
            hits += "Running" in _states(driver, ids).values()
            ours.kill()
            ours.up()
        killed = time.monotonic() - begun
        ended = driver.ask("wait", ids=ids)
        assert isinstance(ended, dict)
        lost, doubled, different = 0, 0, 0
        for one in ids:
            metrics = driver.ask("metrics", id=one)
            assert isinstance(metrics, dict)
            for name in range(NAMES):
                expected = list(range(name, each, NAMES))
                found = metrics.get(f"value-{name}", [])
                lost += len(set(expected) - set(found))
                doubled += len(found) - len(set(found))
                different += found != expected
    note = (
        f"{options.points:,} points by {WRITERS} jobs, server killed {options.kills} times in "
        f"{killed:.0f} s; runs ended {', '.join(sorted(set(ended.values())))}"
    )
    report.at_most("points lost", lost, 0, note, unit="")
    report.at_least("kills while jobs were logging", hits, options.kills, unit="")
    report.at_most("points doubled", doubled, 0, unit="")
    report.at_most("series that differ from what was logged", different, 0, unit="")


def _runs(report: Report, options: Options, ours: Yard) -> None:
    chance = random.Random(SEED)
    wrong: list[str] = []
    with ours.driver() as driver:
        wanted: dict[str, tuple[int, int]] = {}
        stop = threading.Event()
        counts = {"server": 0, "agent": 0}
        killer = threading.Thread(target=_kill_at_random, args=(ours, chance, stop, counts))
        for number in range(options.runs):
            code = 3 if number % 5 == 4 else 0
            wanted[_submit(driver, "survive.py", [str(number), "2.0", str(code)])] = (number, code)
        killer.start()
        try:
            ended = driver.ask("wait", ids=list(wanted))
        finally:
            stop.set()
            killer.join()
        ours.up()
        assert isinstance(ended, dict)
        for one, (number, code) in wanted.items():
            problem = _problem(driver, one, number, code, str(ended[one]))
            if problem:
                wrong.append(f"{one}: {problem}")
    report.at_most(
        "runs that ended in the wrong state, or without their outputs or metrics",
        len(wrong),
        0,
        f"{options.runs} runs; killed: server {counts['server']} times, agents {counts['agent']}"
        + "".join(f"; {line}" for line in wrong[:5]),
        unit="",
    )


def _kill_at_random(
    ours: Yard, chance: random.Random, stop: threading.Event, counts: dict[str, int]
) -> None:
    """Kill an agent, the server, or the server and then an agent, again and again."""
    while not stop.wait(chance.uniform(0.2, 1.0)):
        server = chance.random() < 0.3
        if server:
            with suppress(ProcessLookupError):  # it may just be starting
                ours.kill()
                counts["server"] += 1
        agents = ours.agents()
        if agents and (not server or chance.random() < 0.5):
            with suppress(ProcessLookupError):  # it may just have finished
                os.kill(chance.choice(agents), signal.SIGKILL)
                counts["agent"] += 1
        if server:
            stop.wait(chance.uniform(0, 0.5))  # jobs go on without a server for a while
            ours.up()


def _problem(driver: Driver, run: str, number: int, code: int, state: str) -> str:
    """What is wrong with a finished run; empty if nothing is."""
    expected = "Failed" if code else "Completed"
    checks: list[tuple[str, Callable[[], bool]]] = [
        (f"is {state}, not {expected}: {driver.ask('error', id=run)}", lambda: state == expected),
        (
            "its output is missing or wrong",
            lambda: driver.ask("file", id=run, name="outputs/number.txt") == str(number),
        ),
        (
            "its metrics are not 0 to 9",
            lambda: driver.ask("metrics", id=run) == {"step": list(range(10))},
        ),
    ]
    for what, check in checks:
        try:
            if not check():
                return what
        except Exception as error:  # noqa: BLE001 - a check that cannot be made has failed
            return f"{what} ({str(error).strip().splitlines()[-1]})"
    return ""


def _submit(driver: Driver, script: str, arguments: list[str]) -> str:
    answer = driver.ask("submit", folder=str(JOBS), script=script, arguments=arguments)
    assert isinstance(answer, dict)
    return str(answer["id"])


def _states(driver: Driver, ids: list[str]) -> dict[str, str]:
    answer = driver.ask("statuses", ids=ids)
    assert isinstance(answer, dict)
    if failed := {one: state for one, state in answer.items() if state == "Failed"}:
        sys.exit(f"these runs failed before they were disturbed: {failed}")
    return answer


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
