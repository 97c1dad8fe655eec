"""Deployments that cannot work: each says its true cause, wherever a user looks."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Model, Webservice, Workspace
from azureml.core.conda_dependencies import CondaDependencies
from azureml.core.model import InferenceConfig
from azureml.core.webservice import LocalWebservice
from azureml.exceptions import WebserviceException

pytestmark = pytest.mark.story

Script = Callable[..., InferenceConfig]
RUN = "def run(data):\n    return data\n"

# What is wrong: the entry script, and words of the message that says so.
SCRIPTS = {
    "init-raises": (
        "def init():\n    raise RuntimeError('the weights are too old')\n" + RUN,
        ("RuntimeError: the weights are too old", 'score.py", line 2, in init'),
    ),
    "missing-package": (
        "import lightgbmm\ndef init(): pass\n" + RUN,
        ("No module named 'lightgbmm'", 'score.py", line 1'),
    ),
    "syntax-error": (
        "def init(:\n    pass\n" + RUN,
        ("SyntaxError: invalid syntax", 'score.py", line 1'),
    ),
    "wrong-model-path": (
        "import os\ndef init():\n"
        "    open(os.path.join(os.environ['AZUREML_MODEL_DIR'], 'modell.pkl'))\n" + RUN,
        ("FileNotFoundError", "modell.pkl"),
    ),
    "wrong-model-name": (
        "from azureml.core.model import Model\ndef init():\n"
        "    Model.get_model_path('weihgts')\n" + RUN,
        ("weihgts", "weights"),
    ),
    "no-run": ("def init():\n    pass\n", ("score.py has no function run()",)),
    "no-init": (RUN, ("score.py has no function init()",)),
    "exits": ("import sys\ndef init():\n    sys.exit(7)\n" + RUN, ("SystemExit: 7",)),
    "crashes": (
        "import os, signal\ndef init():\n    os.kill(os.getpid(), signal.SIGSEGV)\n" + RUN,
        ("SIGSEGV", "crashed"),
    ),
}


def failure(service: Any, *words: str) -> None:
    """The service failed, and says these words wherever a user looks."""
    with pytest.raises(WebserviceException) as caught:
        service.wait_for_deployment()
    assert service.state in ("Failed", "failed")
    for word in words:
        assert word in str(caught.value)
        assert word in str(service.error)
    assert words[0] in service.get_logs()
    service.delete()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_broken_script_is_explained(ws: Workspace, script: Script, name: str) -> None:
    text, words = SCRIPTS[name]
    Path("weights.txt").write_text("1")
    model = Model.register(ws, "weights.txt", "weights")
    service = Model.deploy(ws, name, [model], script(text))
    failure(service, *words)


@pytest.mark.parametrize(
    ("path", "framework", "words"),
    [
        ("silent", Model.Framework.TENSORFLOW, ("The SavedModel has no signatures",)),
        ("old-sklearn.pkl", Model.Framework.SCIKITLEARN, ("saved with scikit-learn 0.1.2",)),
        ("iris.pkl", Model.Framework.ONNX, ("is not an ONNX file",)),
        ("weights.pkl", Model.Framework.SCIKITLEARN, ("holds a dict, which has no predict()",)),
    ],
    ids=["no-signatures", "another-sklearn", "not-onnx", "no-predict"],
)
def test_a_model_that_cannot_be_served_is_explained(
    ws: Workspace, made: Any, path: str, framework: str, words: tuple[str, ...]
) -> None:
    model = made.register_model("broken", f"outputs/{path}", model_framework=framework)
    failure(Model.deploy(ws, "broken", [model]), *words)


def test_an_environment_that_cannot_be_built_is_explained(ws: Workspace, script: Script) -> None:
    environment = Environment("impossible")
    environment.python.conda_dependencies = CondaDependencies.create(
        pip_packages=["no-such-package-anywhere==1.0"]
    )
    service = Model.deploy(ws, "impossible", [], script(environment=environment))
    failure(service, "no-such-package-anywhere")


def test_an_interpreter_that_is_not_there_is_explained(ws: Workspace, script: Script) -> None:
    environment = Environment("nowhere")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = "/nowhere/bin/python"
    service = Model.deploy(ws, "nowhere", [], script(environment=environment))
    failure(service, "/nowhere/bin/python")


def test_an_entry_script_that_is_not_there_is_refused(ws: Workspace) -> None:
    environment = Environment("here")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    Path("other.py").write_text("def init(): pass\n" + RUN)
    with pytest.raises(WebserviceException, match=r"score\.py"):
        InferenceConfig("score.py", source_directory=".", environment=environment)
    config = InferenceConfig("other.py", source_directory=".", environment=environment)
    Path("other.py").unlink()
    with pytest.raises(WebserviceException, match=r"other\.py"):
        Model.deploy(ws, "missing-script", [], config)
    assert "missing-script" not in ws.webservices


def test_a_port_in_use_is_refused(ws: Workspace, script: Script) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(WebserviceException, match=f"Port {port} is in use"):
            Model.deploy(
                ws, "taken-port", [], script(), LocalWebservice.deploy_configuration(port=port)
            )
    with pytest.raises(WebserviceException, match="WebserviceNotFound"):
        Webservice(ws, "taken-port")
