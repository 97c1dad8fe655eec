"""The servers that are measured: ours in a fresh home, MLflow's and Ray's in fresh folders."""

import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from benchmarks.driver import Driver
from benchmarks.machine import alive, clean_environ, end_marked, end_tree, free_port, wait_until
from benchmarks.peers import peer

BIN = Path(sys.executable).parent
_OPENER = build_opener(ProxyHandler({}))  # loopback never goes through a proxy


def answers(url: str) -> bool:
    """True if a GET of the address is answered with success."""
    with suppress(OSError, http.client.HTTPException), _OPENER.open(url, timeout=5) as response:
        return bool(response.status == 200)
    return False


class Yard:
    """Our platform in a home folder of its own. `up` and `down` are the user's own commands."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.environ = clean_environ(RUNYARD_HOME=str(self.home), **settings)

    def command(self, *arguments: str) -> str:
        """What `runyard …` prints."""
        result = subprocess.run(
            [str(BIN / "runyard"), *arguments],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise RuntimeError(f"runyard {' '.join(arguments)}: {result.stdout}{result.stderr}")
        return result.stdout

    def init(self) -> None:
        """Make the workspace, which also starts the server."""
        self.command("init", "bench")

    def up(self) -> None:
        """Start the server in the background unless it runs."""
        self.command("up", "--detach")

    def down(self) -> None:
        """Stop the server if it runs."""
        with suppress(RuntimeError):
            self.command("down")
        with suppress(OSError, ValueError, KeyError):
            pid = self.pid
            wait_until(lambda: not alive(pid), timeout=30)

    def clear(self) -> None:
        """Stop the server, and end jobs that a benchmark left behind when it was broken off."""
        self.down()
        end_marked(str(self.home))

    def _address(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.home / "server.json").read_text())
        return found

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(str(self._address()["pid"]))

    @property
    def url(self) -> str:
        """The server's address."""
        return str(self._address()["url"])

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        token = (self.home / "token").read_text().strip()
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def kill(self) -> None:
        """End the server as a power cut would, and wait until it is gone.

        `ProcessLookupError` if it was not there to be killed.
        """
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), timeout=10)

    def driver(self) -> Driver:
        """A warm process that uses the SDK."""
        return Driver(sys.executable, "ours", self.environ, self.folder)

    def agents(self) -> list[int]:
        """The agents that run now.

        They note their pid in their folder. A list of processes would not do: the keeper of a
        rank is a fork of its agent and looks the same, but is not what we mean to kill.
        """
        found = []
        for file in self.home.glob("jobs/*/agent-*/pid"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                pid = int(json.loads(file.read_text())["pid"])
                if (
                    alive(pid)
                    and b"runyard_runtime.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    found.append(pid)
        return found


@contextmanager
def yard(folder: Path, **settings: str) -> Iterator[Yard]:
    """Our platform with one workspace, running; stopped afterwards."""
    one = Yard(folder, **settings)
    one.init()
    try:
        yield one
    finally:
        one.clear()


def spawn(command: list[str], environ: dict[str, str], cwd: Path) -> "subprocess.Popen[bytes]":
    """Start a server; what it prints goes to a file in `cwd`."""
    with (cwd / "server.log").open("ab") as output:
        return subprocess.Popen(command, env=environ, cwd=cwd, stdout=output, stderr=output)


def mlflow_command(folder: Path, port: int) -> list[str]:
    """MLflow's tracking server as its documentation starts it, on SQLite."""
    store = f"sqlite:///{folder / 'mlflow.db'}"
    return [str(peer("mlflow") / "mlflow"), "server", "--backend-store-uri", store,
            "--host", "127.0.0.1", "--port", str(port)]  # fmt: skip


class MlflowServer:
    """A running tracking server of MLflow."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.environ = clean_environ(MLFLOW_TRACKING_URI=self.url, GIT_PYTHON_REFRESH="quiet")

    def driver(self) -> Driver:
        """A warm process that uses MLflow's client."""
        return Driver(peer("mlflow") / "python", "with_mlflow", self.environ, self.folder)


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """MLflow's server on a fresh SQLite file; ended afterwards."""
    folder.mkdir()
    port = free_port()
    process = spawn(mlflow_command(folder, port), clean_environ(), folder)
    try:
        server = MlflowServer(folder, port)
        wait_until(lambda: answers(f"{server.url}/health"), timeout=180, pause=0.1)
        yield server
    finally:
        end_tree(process.pid)
        process.wait()


@contextmanager
def ray_driver(folder: Path) -> Iterator[Driver]:
    """A warm process that uses the job client of a fresh one-node Ray; both ended afterwards."""
    folder.mkdir()
    port = free_port()
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    environ = clean_environ(
        RAY_AUTH_MODE="token",  # Ray's own default, said here for its client too
        RAY_AUTH_TOKEN_PATH=str(token),
        RAY_API_SERVER_ADDRESS=f"http://127.0.0.1:{port}",
    )
    ray = peer("ray")
    environ["PATH"] = f"{ray}:{environ.get('PATH', '')}"
    command = [str(ray / "ray"), "start", "--head", "--block", "--disable-usage-stats",
               "--port", str(free_port()), "--dashboard-port", str(port),
               "--ray-client-server-port", str(free_port()),
               "--dashboard-agent-listen-port", str(free_port()),
               "--temp-dir", str(folder / "t")]  # fmt: skip
    process = spawn(command, environ, folder)
    try:
        wait_until(lambda: _listens(port), timeout=120, pause=0.1)
        with Driver(ray / "python", "with_ray", environ, folder) as driver:
            yield driver
    finally:
        process.send_signal(signal.SIGTERM)  # with --block Ray ends what it started
        with suppress(subprocess.TimeoutExpired):
            process.wait(40)
        end_tree(process.pid)
        process.wait()
        end_marked(str(token))  # its dashboard leaves processes behind


def _listens(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/api/version")
        return connection.getresponse().status in (200, 401, 403)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
