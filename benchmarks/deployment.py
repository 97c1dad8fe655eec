"""Deployments through the whole platform: how soon they answer or fail, and what they bear."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.driver import Driver
from benchmarks.machine import alive, scratch, wait_until
from benchmarks.options import Options
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report, Times, short
from benchmarks.servers import Yard, yard
from benchmarks.serving import BODY, FRAMEWORKS, predict_once, prepare
from runyard.testing.front_service import Load, own_numbers
from runyard.testing.home_processes import ECHO, HomeProcesses

_RUN = "\ndef run(data):\n    return data\n"
_NO_RUN = "def init():\n    pass\n"
_LONGEST = 10.0  # seconds until a deployment that cannot work has said why


@dataclass(frozen=True)
class Broken:
    """A deployment that cannot work, and what must be said of it."""

    words: str
    script: str | None = None
    model: str = ""  # the registered one; without a script it is served as it is
    packages: tuple[str, ...] = ()
    port: int = 0


SCRIPTS = {
    "init() raises": Broken("weights too old", "def init():\n    raise OSError('weights too old')"),
    "a package is missing": Broken("No module named 'lightgbmm'", "import lightgbmm"),
    "a syntax error": Broken("SyntaxError", "def init(:\n    pass"),
    "a wrong model path": Broken("no/model.pkl", "def init():\n    open('no/model.pkl')"),
    "no run()": Broken("has no function run()", _NO_RUN),
    "sys.exit() in init()": Broken("SystemExit: 7", "def init():\n    raise SystemExit(7)"),
    "an environment that cannot be built": Broken(
        "no-such-package-anywhere", "", packages=("no-such-package-anywhere==1.0",)
    ),
}
MODELS = {
    "a SavedModel without signatures": Broken("has no signatures", model="silent"),
    "not an ONNX file": Broken("is not an ONNX file", model="not-onnx"),
    "a pickle that is no model": Broken("has no predict()", model="no-model"),
}
# name of the model: (what serves it, whose environment, how its file is made there)
MAKERS = {
    "silent": ("tensorflow", "import tensorflow as tf; tf.saved_model.save(tf.Module(), 'silent')"),
    "not-onnx": ("onnx", "open('not-onnx', 'wb').write(b'not at all')"),
    "no-model": ("sklearn", "import joblib; joblib.dump({'a': 1}, 'no-model')"),
}


def measure(options: Options) -> Report:
    """First answers, then failures, then load."""
    report = Report("deployment: through server, agents, front end and worker")
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        one = stack.enter_context(yard(folder / "yard"))
        driver = stack.enter_context(
            Driver(sys.executable, "ours_deployment", one.environ, one.folder)
        )
        for kind in ("sklearn",) if options.quick else FRAMEWORKS:
            _first_answer(report, options, driver, kind, folder)
        _broken(report, options, driver, folder)
        _load(report, driver, one)
    return report


def _first_answer(
    report: Report, options: Options, driver: Driver, kind: str, folder: Path
) -> None:
    promise = f"{kind}: deploy → first answer, against a bare script that predicts once"
    environment, file = FRAMEWORKS[kind]
    try:
        python = peer(environment) / "python"
    except PeerMissing as error:
        report.not_measured(promise, str(error))
        return
    place = folder / kind
    place.mkdir()
    prepare(python, kind, place)
    driver.ask("register", name=kind, python=str(python), path=str(place / file), kind=kind)
    mine: list[float] = []
    bare: list[float] = []
    for _ in range(1 + options.starts):  # the first makes what is made once, and is not kept
        mine.append(driver.seconds("deploy_and_ask", model=kind, body=BODY))
        bare.append(predict_once(python, kind, place)[0])
    ours, theirs = Times(mine[1:]), Times(bare[1:])
    report.at_most(promise, ours.p50 / theirs.p50, 1.5, f"ours {ours}; bare {theirs}")


def _broken(report: Report, options: Options, driver: Driver, folder: Path) -> None:
    cases = dict(SCRIPTS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cases["a port in use"] = Broken(f"Port {port} is in use", "", port=port)
        if not options.quick:
            for name, (kind, code) in MAKERS.items():
                _make(driver, folder, name, kind, code)
            cases |= MODELS
        longest = 0.0
        told = []
        for title, case in cases.items():
            seconds, said = _fail(driver, case)
            if case.words not in said:
                raise RuntimeError(f"{title}: {case.words!r} is not in what was said:\n{said}")
            longest = max(longest, seconds)
            told.append(f"{title} {short(seconds)}")
    report.at_most(
        f"{len(cases)} deployments that cannot work: the true cause is known, the longest",
        longest, _LONGEST, "; ".join(told), unit="s",
    )  # fmt: skip


def _make(driver: Driver, folder: Path, name: str, kind: str, code: str) -> None:
    python = peer(FRAMEWORKS[kind][0]) / "python"
    subprocess.run([str(python), "-c", code], cwd=folder, check=True, capture_output=True)
    driver.ask("register", name=name, python=str(python), path=str(folder / name), kind=kind)


def _fail(driver: Driver, case: Broken) -> tuple[float, str]:
    script = case.script
    if script is not None and script != _NO_RUN:
        script += _RUN
    answer = driver.ask(
        "fail", script=script, model=case.model, python=sys.executable,
        packages=list(case.packages), port=case.port,
    )  # fmt: skip
    assert isinstance(answer, list)
    return float(answer[0]), str(answer[1])


def _load(report: Report, driver: Driver, one: Yard) -> None:
    """Requests that failed while the service was updated and its processes were killed."""
    known = driver.ask("echo", script=ECHO.replace("VERSION", "one"), python=sys.executable)
    assert isinstance(known, dict)
    port = urlsplit(known["uri"]).port
    assert port is not None
    processes = HomeProcesses(one.home)

    def update() -> None:
        driver.ask("echo", script=ECHO.replace("VERSION", "two"), python=sys.executable)

    def kill_worker() -> None:
        _kill(int(_answered_by(port).split()[1]))

    def kill_agent() -> None:
        _kill(processes.agent(known["front"]))

    def kill_server() -> None:
        one.kill()
        one.up()

    for title, deed in (
        ("an update", update),
        ("kill -9 of the worker", kill_worker),
        ("kill -9 of the front end's agent", kill_agent),
        ("kill -9 of the server", kill_server),
    ):
        done, failed, slowest = _during(port, deed)
        report.at_most(
            f"{title} under load: requests that failed", failed, 0,
            f"of {done}; the slowest of all took {short(slowest)}", unit="requests",
        )  # fmt: skip
    report.shown(
        "kill -9 of the front end: nobody answers for",
        _gap(processes, known["uid"], port),
        unit="s",
    )
    driver.ask("delete", name="echo")


def _during(port: int, deed: Callable[[], None]) -> tuple[int, int, float]:
    """(answers, failures, the slowest in seconds) of eight clients while something happens."""
    load = Load(port, 8, own_numbers)
    try:
        load.wait_more(200)
        deed()
        time.sleep(2)  # what follows from it happens in this time
        load.wait_more(200)
    finally:
        load.stop()
    return load.done, len(load.failures), load.slowest


def _gap(processes: HomeProcesses, uid: str, port: int) -> float:
    """Seconds without an answer after the front end was killed."""
    for pid in processes.processes(uid):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"runyard.serving.front" in words and b"python" in words[0]:
                os.kill(pid, signal.SIGKILL)
    return wait_until(lambda: bool(_answered_by(port)), timeout=60)


def _answered_by(port: int) -> str:
    """Which worker answers; "" if nobody does."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("POST", "/score", b"[1]")
        return link.getresponse().headers.get("X-Worker", "")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        link.close()


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), timeout=10)
