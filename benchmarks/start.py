"""How soon a trivial script is over: from the submit call to a terminal status in one's hands."""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import clean_environ, scratch
from benchmarks.options import Options
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report, Times
from benchmarks.servers import MlflowServer, mlflow_server, ray_driver, yard

PROJECT = """\
name: bench
entry_points:
  main:
    command: "python script.py"
"""


def measure(options: Options) -> Report:
    """Ours and a bare subprocess in turn, the peers sprinkled between them."""
    report = Report("start: a trivial script, warm, submit → terminal status seen by the caller")
    unasked = "peers were not asked for"
    missing = {} if options.peers else {"ray": unasked, "mlflow": unasked}
    with scratch() as folder, ExitStack() as stack:
        project = folder / "project"
        project.mkdir()
        (project / "script.py").write_text("print('hello')\n")
        (project / "MLproject").write_text(PROJECT)
        source = folder / "source"
        source.mkdir()
        (source / "script.py").write_text("print('hello')\n")

        ours = stack.enter_context(stack.enter_context(yard(folder / "yard")).driver())
        actions: dict[str, Callable[[], float]] = {
            "bare": lambda: bare(source),
            "ours": lambda: ours.seconds("submit_and_wait", folder=str(source)),
        }
        if options.peers:
            try:
                ray = stack.enter_context(ray_driver(folder / "ray"))
                actions["ray"] = lambda: ray.seconds("job", folder=str(source))
            except PeerMissing as error:
                missing["ray"] = str(error)
            try:
                server = stack.enter_context(mlflow_server(folder / "mlflow"))
                client = stack.enter_context(server.driver())
                actions["mlflow"] = lambda: mlflow_run(server, project)
                actions["mlflow api"] = lambda: client.seconds("project", folder=str(project))
            except PeerMissing as error:
                missing["mlflow"] = str(error)
        times = in_turn(actions, options)
    _judge(report, times, missing)
    return report


def in_turn(actions: dict[str, Callable[[], float]], options: Options) -> dict[str, Times]:
    """The times of every action, taken in turn, so that the machine's noise hits all alike."""
    for action in actions.values():
        action()  # the first warms up and is not kept
    found: dict[str, list[float]] = {name: [] for name in actions}
    every = max(1, options.submits // options.slow_submits)
    for repetition in range(options.submits):
        for name, action in actions.items():
            if name in ("bare", "ours") or repetition % every == 0:
                found[name].append(action())
    return {name: Times(seconds) for name, seconds in found.items()}


def bare(folder: Path) -> float:
    """Seconds of `python script.py` without any platform."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=clean_environ(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begun


def mlflow_run(server: MlflowServer, project: Path) -> float:
    """Seconds of the command `mlflow run`."""
    folder = peer("mlflow")
    environ = server.environ | {"PATH": f"{folder}:{server.environ.get('PATH', '')}"}
    begun = time.perf_counter()
    subprocess.run(
        [str(folder / "mlflow"), "run", "--env-manager", "local", str(project)],
        env=environ,
        cwd=server.folder,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - begun


def _judge(report: Report, times: dict[str, Times], missing: dict[str, str]) -> None:
    ours, floor = times["ours"], times["bare"]
    both = f"ours {ours}; bare {floor}"
    report.at_most("p50 against a bare `python script.py`", ours.p50 / floor.p50, 20, both)
    report.shown("p95 against a bare `python script.py`", ours.p95 / floor.p95)
    for name, label, bounded in (
        ("ray", "p50 against Ray Jobs (its Python client)", True),
        ("mlflow", "p50 against the command `mlflow run`", True),
        ("mlflow api", "p50 against mlflow.projects.run in a warm process", False),
    ):
        if name in times:
            ratio = ours.p50 / times[name].p50
            note = f"ours {ours}; {name} {times[name]}"
            if bounded:
                report.at_most(label, ratio, 0.25, note)
            else:
                report.shown(label, ratio, note)
        elif name in missing:
            report.not_measured(label, missing[name])
