"""One real server, and what a user sees of a run that failed on it."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Experiment, ScriptRunConfig, Workspace
from azureml.core.runconfig import PyTorchConfiguration
from runyard.cli import commands
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings

SETTINGS = {"RUNYARD_SAMPLE_SECONDS": "0", "RUNYARD_LOCAL_SLOTS": "8"}

# Every script begins so. `meet` waits until all ranks have come that far, `forever` for the end.
PRELUDE = """\
import os, signal, socket, sys, time
rank = int(os.environ["RUNYARD_RANK"])
def forever():
    time.sleep(600)
def meet(name, ranks=2):
    open("outputs/%s-%d" % (name, rank), "w").close()
    while sum(one.startswith(name + "-") for one in os.listdir("outputs")) < ranks:
        time.sleep(0.01)
"""


@dataclass(frozen=True)
class Told:
    """What a user is told of a run that is over."""

    status: str
    error: dict[str, Any]  # of `run.get_details()`
    shown: str  # by `runyard show`
    files: list[str]

    def says(self, *words: str) -> None:
        """`runyard show` has these words, and the SDK says no less."""
        for one in words:
            assert one in self.shown, self.shown
        assert self.error["message"].partition("\n")[0] in self.shown, self.shown

    def says_nothing_of(self, *words: str) -> None:
        """`runyard show` has none of these words."""
        for one in words:
            assert one not in self.shown, self.shown


Submit = Callable[..., Any]
Tell = Callable[[Any], Told]


@pytest.fixture(scope="session")
def failures_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home folder of a server that is started when it is first needed."""
    home = tmp_path_factory.mktemp("home")
    settings = load_settings({"RUNYARD_HOME": str(home), **SETTINGS})
    yield home
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return folder


@pytest.fixture
def ws(project: Path, failures_home: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace of that server, seen from a user's folder."""
    monkeypatch.setenv("RUNYARD_HOME", str(failures_home))
    return Workspace.create("failures", exist_ok=True)


@pytest.fixture
def submit(ws: Workspace) -> Submit:
    """Submit code as a script: on two nodes with a rank each, unless `gang` says otherwise."""

    def submit(
        code: str | None,
        gang: object = PyTorchConfiguration("Gloo", process_count=2, node_count=2),
        python: str | Path = sys.executable,
        **settings: Any,
    ) -> Any:
        environment = Environment("as-it-is")
        environment.python.user_managed_dependencies = True
        environment.python.interpreter_path = str(python)
        settings.setdefault("max_run_duration_seconds", 120)  # one that hangs fails, too
        if code is not None:
            Path("train.py").write_text(PRELUDE + code)
            settings["script"] = "train.py"
        return Experiment(ws, "failing").submit(
            ScriptRunConfig(
                ".", environment=environment, distributed_job_config=gang or None, **settings
            )
        )

    return submit


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Wait for a run, and see what a user is told of it."""

    def tell(run: Any) -> Told:
        run.wait_for_completion(raise_on_error=False)
        capsys.readouterr()
        assert commands.run(["show", run.id]) == 0
        details = run.get_details()
        error = details.get("error", {}).get("error", {})
        shown = " ".join(capsys.readouterr().out.split())  # as if lines were endless
        return Told(details["status"], error, shown, run.get_file_names())

    return tell
