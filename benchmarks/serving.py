"""How fast a service answers: the same model file behind us, a bare FastAPI app, and peers."""

import json
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from benchmarks.machine import clean_environ, end_tree, free_port, resident_mb, scratch, wait_until
from benchmarks.options import Options
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report, Times, short
from benchmarks.servers import BIN, answers, spawn
from runyard.serving.front_config import FILE_NAME, FrontConfig, Revision

SERVICES = Path(__file__).parent / "services"
RUNTIME = Path(__file__).parents[1] / "runtime" / "src"
CONNECTIONS = (1, 16, 64)
ROW = [0.01] * 10
BODY = json.dumps({"data": [ROW]})
_OPENER = build_opener(ProxyHandler({}))

# framework: (its environment, the model's file in its folder)
FRAMEWORKS = {
    "sklearn": ("fastapi", "model.joblib"),
    "onnx": ("fastapi", "model.onnx"),
    "tensorflow": ("fastapi-tensorflow", "model"),
}


@dataclass(frozen=True)
class Server:
    """Where a server answers, and what it wants to be asked."""

    url: str
    body: str = BODY


@dataclass(frozen=True)
class Load:
    """What wrk measured; times in seconds."""

    rate: float
    p50: float
    p99: float


def measure(options: Options) -> Report:
    """Rounds of all servers in turn, with 1, 16 and 64 connections."""
    report = Report("serving: one model file, one row per request, one worker each")
    if shutil.which("wrk") is None:
        report.not_measured("requests per second", "wrk is not installed: apt install wrk")
        return report
    for kind, (environment, file) in FRAMEWORKS.items():
        if options.quick and kind != "sklearn":
            continue
        try:
            python = peer(environment) / "python"
        except PeerMissing as error:
            report.not_measured(f"{kind}: requests per second", str(error))
            continue
        with scratch() as folder:
            prepare(python, kind, folder)
            _rates(report, options, kind, python, folder, file)
            _ready(report, options, kind, python, folder, file)
    with scratch() as folder:
        _idle(report, folder)
    return report


def prepare(python: Path, kind: str, folder: Path) -> None:
    command = [str(python), "-W", "ignore", str(SERVICES / "make_model.py"), kind, str(folder)]
    subprocess.run(command, env=clean_environ(), check=True, capture_output=True)


def _rates(
    report: Report, options: Options, kind: str, python: Path, folder: Path, file: str
) -> None:
    expected = _numbers(predict_once(python, kind, folder)[1])
    with ExitStack() as stack:
        servers = {
            "ours": stack.enter_context(ours(kind, python, folder, file)),
            "FastAPI": stack.enter_context(fastapi(kind, python, folder)),
        }
        missing = {}
        for name, make in PEERS.items() if kind == "sklearn" else ():
            try:
                if not options.peers:
                    raise PeerMissing("peers were not asked for")
                servers[name] = stack.enter_context(make(folder))
            except (PeerMissing, TimeoutError) as error:
                missing[name] = str(error)
        for name, server in servers.items():
            found = _numbers(_ask(server))
            if abs(found[0] - expected[0]) > 1e-4 * abs(expected[0]):
                raise RuntimeError(f"{name} answers {found}, the model says {expected}")
        loads = _in_turn(servers, options, folder)
    _judge(report, kind, loads)
    for name, why in missing.items():
        report.not_measured(f"{kind}: requests per second against {name}", why)


def _in_turn(
    servers: dict[str, Server], options: Options, folder: Path
) -> dict[tuple[str, int], Load]:
    rounds, seconds = (1, 1) if options.quick else (3, 3)
    found: dict[tuple[str, int], list[Load]] = {}
    for server in servers.values():
        wrk(server, 16, 1, folder)  # warms up and is not kept
    for _ in range(rounds):
        for connections in CONNECTIONS:
            for name, server in servers.items():
                load = wrk(server, connections, seconds, folder)
                found.setdefault((name, connections), []).append(load)
    return {
        key: Load(*(statistics.median(values) for values in zip(*map(_fields, loads), strict=True)))
        for key, loads in found.items()
    }


def _fields(load: Load) -> tuple[float, float, float]:
    return load.rate, load.p50, load.p99


def _judge(report: Report, kind: str, loads: dict[tuple[str, int], Load]) -> None:
    names = [name for name in dict.fromkeys(name for name, _ in loads) if name != "ours"]
    for name in names:
        for connections in CONNECTIONS:
            mine, theirs = loads["ours", connections], loads[name, connections]
            where = f"{kind}, {connections} connection{'s' if connections > 1 else ''}"
            bound = 1.0 if name != "FastAPI" else 0.9 if connections == 1 else 1.5
            note = f"ours {_shown(mine)}; {name} {_shown(theirs)}"
            rate = f"{where}: requests per second against {name}"
            report.at_least(rate, mine.rate / theirs.rate, bound, note)
            if name == "FastAPI" and connections > 1:
                report.at_most(f"{where}: p99 against {name}", mine.p99 / theirs.p99, 1.0)


def _shown(load: Load) -> str:
    return f"{load.rate:,.0f}/s, p50 {short(load.p50)}, p99 {short(load.p99)}"


def wrk(server: Server, connections: int, seconds: int, folder: Path) -> Load:
    """Ask for some seconds; RuntimeError if an answer was not a success."""
    script = folder / "ask.lua"
    script.write_text(
        f"wrk.method = 'POST'\nwrk.body = '{server.body}'\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
    )
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "--latency"]
    text = subprocess.run(
        [*command, "-s", str(script), server.url], capture_output=True, text=True, check=True
    ).stdout
    if "Non-2xx" in text:
        raise RuntimeError(f"{server.url}: {text}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert rate is not None, text
    return Load(float(rate[1]), _percentile(text, 50), _percentile(text, 99))


def _percentile(text: str, which: int) -> float:
    found = re.search(rf"^\s+{which}%\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[found[2]]


def _ready(
    report: Report, options: Options, kind: str, python: Path, folder: Path, file: str
) -> None:
    """From the start of worker and front end to the first answer, against a bare script."""
    mine: list[float] = []
    bare: list[float] = []
    for round_ in range(1 + (1 if options.quick else options.starts)):
        seconds = predict_once(python, kind, folder)[0]
        begun = time.perf_counter()
        with ours(kind, python, folder, file, name=f"ready-{round_}") as server:
            _ask(server)
            mine.append(time.perf_counter() - begun)
        bare.append(seconds)
    us, them = Times(mine[1:]), Times(bare[1:])
    note = f"ours {us}; bare {them}"
    report.at_most(
        f"{kind}: first answer against a bare script that predicts once",
        us.p50 / them.p50, 1.5, note,
    )  # fmt: skip


def predict_once(python: Path, kind: str, folder: Path) -> tuple[float, str]:
    begun = time.perf_counter()
    text = subprocess.run(
        [str(python), str(SERVICES / "predict_once.py"), kind, str(folder)],
        env=clean_environ(), check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return time.perf_counter() - begun, text


def _idle(report: Report, folder: Path) -> None:
    """Memory and time to listen of a front end alone."""
    with _front(folder, ("none.sock",)) as (pid, port, seconds):
        time.sleep(1)  # let it settle before it is weighed
        report.at_most("front end: resident memory, idle", resident_mb(pid), 60, unit="MB")
        report.shown("front end: seconds until it answers", seconds, unit="s")
        answers(f"http://127.0.0.1:{port}/")


@contextmanager
def ours(
    kind: str, python: Path, folder: Path, file: str, name: str = "service"
) -> Iterator[Server]:
    """Our front end and one worker in the model's environment."""
    place = folder / name
    place.mkdir()
    socket, model = place / "w0.sock", folder / file
    spec = {
        "scorer": kind,
        "models": [
            {"name": "m", "version": 1, "path": str(model), "is_folder": model.is_dir()},
        ],
        "models_dir": str(folder),
        "sockets": [str(socket)],
        "max_batch": 64,
    }
    (place / "scoring.json").write_text(json.dumps(spec))
    command = [str(python), "-m", "runyard_runtime.scoring", str(place / "scoring.json"), "0"]
    environ = clean_environ(PYTHONPATH=str(RUNTIME))
    with _process(command, environ, place), _front(place, (str(socket),)) as (_, port, _):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/healthz"), timeout=120)
        yield Server(f"{url}/score")


@contextmanager
def _front(place: Path, sockets: tuple[str, ...]) -> Iterator[tuple[int, int, float]]:
    """A front end that answers: its pid, its port, how long that took."""
    port = free_port()
    config = FrontConfig(
        name="bench", port=port, revisions=(Revision(revision=1, sockets=sockets),)
    )
    (place / FILE_NAME).write_bytes(msgspec.json.encode(config))
    command = [str(BIN / "python"), "-m", "runyard.serving.front", str(place)]
    begun = time.perf_counter()
    with _process(command, clean_environ(), place) as pid:
        live = f"http://127.0.0.1:{port}/v2/health/live"
        wait_until(lambda: answers(live), timeout=30, pause=0.002)
        yield pid, port, time.perf_counter() - begun


@contextmanager
def fastapi(kind: str, python: Path, folder: Path) -> Iterator[Server]:
    """The bare app under uvicorn with uvloop and httptools."""
    port = free_port()
    command = [str(python), "-m", "uvicorn", "fastapi_app:app", "--port", str(port),
               "--no-access-log", "--log-level", "warning"]  # fmt: skip
    with _app(command, folder, kind, f"http://127.0.0.1:{port}/healthz"):
        yield Server(f"http://127.0.0.1:{port}/score")


@contextmanager
def mlflow(folder: Path) -> Iterator[Server]:
    """`mlflow models serve`."""
    port, there = free_port(), peer("mlflow")
    prepare(there / "python", "mlflow", folder)
    command = [str(there / "mlflow"), "models", "serve", "--model-uri", str(folder / "mlflow"),
               "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip
    with _app(command, folder, "sklearn", f"http://127.0.0.1:{port}/ping"):
        body = json.dumps({"inputs": [ROW]})
        yield Server(f"http://127.0.0.1:{port}/invocations", body)


@contextmanager
def litserve(folder: Path) -> Iterator[Server]:
    """LitServe with one worker."""
    port = free_port()
    command = [str(peer("litserve") / "python"), "litserve_app.py", str(port)]
    with _app(command, folder, "sklearn", f"http://127.0.0.1:{port}/health"):
        yield Server(f"http://127.0.0.1:{port}/score")


@contextmanager
def bentoml(folder: Path) -> Iterator[Server]:
    """`bentoml serve` with one worker."""
    port, there = free_port(), peer("bentoml")
    command = [str(there / "bentoml"), "serve", "bentoml_app:Score", "--port", str(port)]
    with _app(command, folder, "sklearn", f"http://127.0.0.1:{port}/readyz"):
        yield Server(f"http://127.0.0.1:{port}/score")


PEERS: dict[str, Callable[[Path], "contextmanager[Server]"]] = {  # type: ignore[valid-type]
    "mlflow models serve": mlflow,
    "LitServe": litserve,
    "BentoML": bentoml,
}


@contextmanager
def _app(command: list[str], folder: Path, kind: str, ready: str) -> Iterator[None]:
    """A server whose code is in `services/`, until it is ready and while it is used."""
    path = f"{Path(command[0]).parent}:{clean_environ().get('PATH', '')}"
    environ = clean_environ(
        BENCH_KIND=kind,
        BENCH_MODEL=str(folder),
        BENTOML_HOME=str(folder / "bentoml"),
        BENTOML_DO_NOT_TRACK="True",
        PYTHONPATH=str(SERVICES),
        PATH=path,
    )
    with _process(command, environ, SERVICES, log=folder / "server.log"):
        wait_until(lambda: answers(ready), timeout=120, pause=0.05)
        yield


@contextmanager
def _process(
    command: list[str], environ: dict[str, str], cwd: Path, log: Path | None = None
) -> Iterator[int]:
    if log is None:
        process = spawn(command, environ, cwd)
    else:
        with log.open("ab") as output:
            process = subprocess.Popen(command, env=environ, cwd=cwd, stdout=output, stderr=output)
    try:
        yield process.pid
    finally:
        end_tree(process.pid)
        process.wait()


def _ask(server: Server) -> str:
    request = Request(
        server.url, server.body.encode(), headers={"Content-Type": "application/json"}
    )
    with _OPENER.open(request, timeout=60) as response:
        text: str = response.read().decode()
        return text


def _numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)]
