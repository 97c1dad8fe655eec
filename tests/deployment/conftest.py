"""One real server with real services, as users meet them, and a hand for its processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Experiment, Model, ScriptRunConfig, Workspace
from azureml.core.model import InferenceConfig
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings
from runyard.testing.home_processes import ECHO, HomeProcesses, kill

SETTINGS = {"RUNYARD_SAMPLE_SECONDS": "0"}


class Yard(HomeProcesses):
    """A server's home."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.settings = load_settings({"RUNYARD_HOME": str(home), **SETTINGS})

    def stop(self) -> None:
        """What `runyard down` does."""
        embedded.stop(self.settings)

    def start(self) -> None:
        """What anybody does who needs the server."""
        embedded.ensure_running(self.settings)


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """The platform; everything of it has ended when the tests are over."""
    one = Yard(tmp_path_factory.mktemp("home"))
    yield one
    open_session(one.settings).client.close()
    one.stop()
    kill(*one.processes(str(one.home)))


@pytest.fixture(scope="session")
def shared(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace of that server, for what several tests use."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RUNYARD_HOME": str(yard.home), **SETTINGS}.items():
            patch.setenv(name, value)
        patch.delenv("RUNYARD_URL", raising=False)
        return Workspace.create("deployment", exist_ok=True)


@pytest.fixture
def ws(shared: Workspace, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """The same, seen from a user's own folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in {"RUNYARD_HOME": str(yard.home), **SETTINGS}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return shared


def as_it_is(interpreter: str | Path) -> Environment:
    """An environment that is used as it is: nothing is built."""
    environment = Environment("as-it-is")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = str(interpreter)
    return environment


@pytest.fixture
def script() -> Callable[..., InferenceConfig]:
    """An entry script with this text, served by the Python of these tests."""

    def script(text: str = ECHO.replace("VERSION", "one"), **settings: Any) -> InferenceConfig:
        Path("score.py").write_text(text)
        settings.setdefault("environment", as_it_is(sys.executable))
        return InferenceConfig("score.py", **settings)

    return script


@pytest.fixture(scope="session")
def made(
    shared: Workspace,
    frameworks: Path,
    scoring_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """A finished run with real models in its outputs, in the environment that they need."""
    source = tmp_path_factory.mktemp("source")
    (source / "train.py").write_text(
        "import shutil, sys\nshutil.copytree(sys.argv[1], 'outputs', dirs_exist_ok=True)\n"
        "shutil.copy('old-sklearn.pkl', 'outputs')\n"
    )
    (source / "old-sklearn.pkl").write_bytes(of_another_version(scoring_models / "iris.pkl"))
    run = Experiment(shared, "making").submit(
        ScriptRunConfig(
            str(source),
            script="train.py",
            arguments=[str(scoring_models)],
            environment=as_it_is(frameworks),
        )
    )
    run.wait_for_completion()
    return run


def of_another_version(pickle: Path) -> bytes:
    """The pickle as an older scikit-learn might have made it: a name in it is gone by now."""
    content = pickle.read_bytes()
    version = b"_sklearn_version\x94\x8c\x05"
    assert version + b"1.9.1" in content
    content = content.replace(version + b"1.9.1", version + b"0.1.2")
    return content.replace(b"LogisticRegression", b"LogisticRegressioM")


@pytest.fixture(scope="session")
def iris(made: Any) -> Model:
    """A scikit-learn model that needs no script."""
    model: Model = made.register_model(
        "iris",
        "outputs/iris.pkl",
        model_framework=Model.Framework.SCIKITLEARN,
        model_framework_version="1.9.1",
    )
    return model
