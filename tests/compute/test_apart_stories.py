"""A real server whose nodes share nothing with it: outages, and nodes that cannot work."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Dataset, Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.runconfig import PyTorchConfiguration
from azureml.data import OutputFileDatasetConfig
from azureml.exceptions import UserErrorException
from runyard.domain.compute import AttachSpec, ComputeRecord
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.fake_server import wait_until

pytestmark = pytest.mark.story

SERVER = """
import sys
from runyard import engines
from runyard.testing.apart_engine import open_apart
engines.ENGINES["apart"] = open_apart
from runyard.server.main import main
sys.exit(main())
"""


class Server:
    """A server that has the engine `apart`, too; it can be killed and started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._given = {"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"}
        self.settings = load_settings(self._given)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it where it was before, and wait until it answers."""
        (self.home / "server.log").touch()
        with (self.home / "out").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVER],
                env={**os.environ, **self._given},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        pid = f'"pid":{self._process.pid}'.encode()
        wait_until(lambda: pid in _read(self.home / "server.json"))

    def kill(self) -> None:
        """End it without a chance to say good-bye."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it for good."""
        open_session(self.settings).client.close()
        embedded.stop(self.settings)
        assert self._process is not None
        self._process.wait(30)

    def attach(self, ws: Workspace, name: str, **variables: str) -> None:
        """Make a target of nodes that share nothing; the variables are for their agents."""
        spec = AttachSpec(kind="apart", options=variables)
        path = f"/api/v1/workspaces/{ws.name}/computes/{name}/attach"
        open_session(self.settings).client.request("POST", path, body=spec, answer=ComputeRecord)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().replace(b" ", b"")
    except FileNotFoundError:
        return b""


@pytest.fixture(scope="module")
def apart_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("home"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(apart_home: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_HOME", str(apart_home.home))
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return apart_home


@pytest.fixture
def ws(server: Server) -> Workspace:
    return Workspace.create("apart", exist_ok=True)


def submit(ws: Workspace, target: str, code: str, **settings: Any) -> Any:
    Path("train.py").write_text(code)
    own = Environment("own")
    own.python.user_managed_dependencies = True
    own.python.interpreter_path = sys.executable
    settings.setdefault("environment", own)
    config = ScriptRunConfig(".", "train.py", compute_target=target, **settings)
    return Experiment(ws, "apart").submit(config)


STEPS = """
import os, sys, time
from azureml.core import Run
run, rank, gates = Run.get_context(), os.environ["RANK"], sys.argv[1]
for step in range(30):
    print("step", step, flush=True)
    run.log("step of " + rank, step)
    if step in (10, 20):
        open("%s/%d-%s" % (gates, step, rank), "w").close()
        while not os.path.exists("%s/go-%d" % (gates, step)):
            time.sleep(0.02)
with open("outputs/of-" + rank, "w") as stream:
    stream.write("x" * 100000)
"""


def test_a_server_that_is_away_in_the_midst_of_a_run_misses_nothing(
    server: Server, ws: Workspace, tmp_path: Path
) -> None:
    server.attach(ws, "nodes")
    gang = PyTorchConfiguration("Gloo", process_count=2, node_count=2)
    settings = {"arguments": [str(tmp_path)], "distributed_job_config": gang}
    run = submit(ws, "nodes", STEPS, **settings)
    wait_until(lambda: all((tmp_path / f"10-{rank}").exists() for rank in range(2)))
    server.kill()
    (tmp_path / "go-10").touch()
    wait_until(lambda: all((tmp_path / f"20-{rank}").exists() for rank in range(2)))
    server.start()
    (tmp_path / "go-20").touch()
    run.wait_for_completion()
    steps = "".join(f"step {step}\n" for step in range(30))
    for rank in range(2):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        run.download_file(name, str(tmp_path / f"log-{rank}"))
        assert (tmp_path / f"log-{rank}").read_text() == steps
        assert run.get_metrics()[f"step of {rank}"] == list(range(30))
        run.download_file(f"outputs/of-{rank}", str(tmp_path / "kept"))
        assert (tmp_path / "kept").read_text() == "x" * 100000
    assert run.get_details()["status"] == "Completed"


@pytest.mark.parametrize(
    ("code", "variables", "words"),
    [
        (
            "ServerUnreachable",
            {"RUNYARD_NODE_URL": "http://127.0.0.1:1", "RUNYARD_NODE_PATIENCE": "0.5"},
            ["node-0", "http://127.0.0.1:1 cannot be reached from this node", "RUNYARD_PUBLIC_URL"],
        ),
        (
            "NodeRefused",
            {"RUNYARD_NODE_TOKEN": "of another server"},
            ["node-0", "the token is not valid there", "secret was not changed"],
        ),
        (
            "NodeFull",
            {"RUNYARD_NODE_FOLDER": "/dev/full/here"},
            ["node-0", "/dev/full/here cannot be written", "another folder"],
        ),
    ],
)
def test_a_node_that_cannot_work_for_a_run_says_why(
    server: Server, ws: Workspace, code: str, variables: dict[str, str], words: list[str]
) -> None:
    server.attach(ws, "bad", **variables)
    run = submit(ws, "bad", "print('never')")
    run.wait_for_completion(raise_on_error=False)
    error = run.get_details()["error"]["error"]
    assert error["code"] == code
    for one in words:
        assert one in error["message"], error["message"]


def test_data_reaches_nodes_that_share_nothing_and_comes_back(
    server: Server, ws: Workspace, tmp_path: Path
) -> None:
    server.attach(ws, "nodes")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("from the datastore")
    store = ws.get_default_datastore()
    store.upload(str(tmp_path / "in"), "given", overwrite=True)
    data = Dataset.File.from_files((store, "given"))
    output = OutputFileDatasetConfig("made", (store, "made/{run-id}"))
    code = (
        "import os, sys\n"
        "rank, given, made = os.environ['RANK'], sys.argv[1], sys.argv[2]\n"
        "print(open(given + '/a.txt').read())\n"
        "for name in ('same', 'of-' + rank):\n"
        "    open(os.path.join(made, name), 'w').write(rank)\n"
    )
    given = [data.as_named_input("given").as_mount(), output]
    gang = PyTorchConfiguration("Gloo", process_count=2, node_count=2)
    run = submit(ws, "nodes", code, arguments=given, distributed_job_config=gang)
    run.wait_for_completion()
    for rank in range(2):
        name = f"azureml-logs/70_driver_log_{rank}.txt"
        run.download_file(name, str(tmp_path / "log"))
        assert (tmp_path / "log").read_text() == "from the datastore\n"
    store.download(str(tmp_path / "back"), f"made/{run.id}")
    kept = {
        path.name: path.read_text() for path in (tmp_path / "back").rglob("*") if path.is_file()
    }
    assert kept == {"of-0": "0", "of-1": "1", "same": "0"}, "of the first node, as other outputs"


def test_an_environment_is_made_once_on_a_node_and_conda_packages_come_from_pypi(
    server: Server, ws: Workspace
) -> None:
    server.attach(ws, "nodes")
    environment = Environment("stones")
    packages = CondaDependencies.create(conda_packages=["six=1.16"], pip_packages=["toolz==1.0.0"])
    environment.python.conda_dependencies = packages
    code = "import six, toolz; print(six.__version__, toolz.__version__)"
    runs = [submit(ws, "nodes", code, environment=environment) for _ in range(3)]
    accounts = ""
    for run in runs:
        run.wait_for_completion()
        for name in ("azureml-logs/70_driver_log.txt", "azureml-logs/55_azureml-execution.txt"):
            run.download_file(name, name)
        assert Path("azureml-logs/70_driver_log.txt").read_text() == "1.16.0 1.0.0\n"
        accounts += Path("azureml-logs/55_azureml-execution.txt").read_text()
    assert accounts.count("the environment took") == 1
    packages.add_conda_package("gcc")
    environment.python.conda_dependencies = packages
    with pytest.raises(UserErrorException, match="of its conda packages PyPI does not have gcc"):
        submit(ws, "nodes", code, environment=environment)
