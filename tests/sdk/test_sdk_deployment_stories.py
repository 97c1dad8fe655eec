"""From a model to a service that answers, as v1 code does it: real server, front end and worker."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from azureml.core.model import InferenceConfig, Model
from azureml.core.webservice import AciWebservice, LocalWebservice, Webservice
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import WebserviceException
from runyard.sdk.workspace import Workspace

SCORE = """
import json
import os

from azureml.core.model import Model


def init():
    global table
    with open(Model.get_model_path("words")) as source:
        table = json.load(source)
    print("models are in", os.environ["AZUREML_MODEL_DIR"])


def run(data):
    return {"meaning": table[json.loads(data)["word"]], "by": "VERSION"}
"""
BROKEN = "def init():\n    raise KeyError('weights')\n\ndef run(data):\n    return data\n"


@pytest.fixture
def here() -> Environment:
    """The interpreter of these tests, as it is: nothing is built."""
    environment = Environment("here")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    return environment


@pytest.fixture
def words(ws: Workspace, project: Path) -> Iterator[Model]:
    (project / "words.json").write_text('{"yes": 1, "no": 0}')
    (project / "score.py").write_text(SCORE.replace("VERSION", "one"))
    (project / "broken.py").write_text(BROKEN)
    yield Model.register(ws, "words.json", "words")
    for service in ws.webservices.values():
        service.delete()


def test_a_script_is_deployed_called_updated_and_deleted(
    ws: Workspace,
    words: Model,
    here: Environment,
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    service = Model.deploy(
        ws,
        "words-service",
        [words],
        InferenceConfig("score.py", environment=here),
        AciWebservice.deploy_configuration(cpu_cores=1, auth_enabled=True),
    )
    service.wait_for_deployment(show_output=True)
    printed = capsys.readouterr().out
    assert 'ACI service creation operation finished, operation "Succeeded"' in printed
    assert service.run(json.dumps({"word": "yes"})) == {"meaning": 1, "by": "one"}
    assert "models are in" in service.get_logs()

    key, _ = service.get_keys()
    body = json.dumps({"word": "no"})
    for headers, status in (({"Authorization": f"Bearer {key}"}, 200), ({}, 401)):
        answer = urllib3.request("POST", service.scoring_uri, body=body, headers=headers)
        assert answer.status == status
    with pytest.raises(WebserviceException, match="KeyError: 'maybe'"):
        service.run(json.dumps({"word": "maybe"}))

    service.update(inference_config=InferenceConfig("broken.py", environment=here))
    with pytest.raises(WebserviceException, match=r"Revision 1 goes on[\s\S]*KeyError: 'weights'"):
        service.wait_for_deployment()
    assert service.run(body)["by"] == "one"

    (project / "score.py").write_text(SCORE.replace("VERSION", "two"))
    service.update(inference_config=InferenceConfig("score.py", environment=here))
    service.wait_for_deployment()
    assert service.run(body)["by"] == "two"
    assert service.error is None

    service.delete()
    assert "words-service" not in ws.webservices
    with pytest.raises(WebserviceException, match="WebserviceNotFound"):
        Webservice(ws, "words-service")


def test_a_script_whose_init_fails_says_so_with_its_traceback(
    ws: Workspace, words: Model, here: Environment
) -> None:
    config = InferenceConfig("broken.py", environment=here)
    service = Model.deploy(ws, "broken-service", [words], config)
    with pytest.raises(WebserviceException, match="KeyError: 'weights'"):
        service.wait_for_deployment()
    assert service.state == "Failed"
    assert "broken.py" in str(service.error)
    assert "raise KeyError('weights')" in service.get_logs()


def test_a_local_service_reloads_what_was_edited(
    ws: Workspace, words: Model, here: Environment, project: Path
) -> None:
    config = InferenceConfig("score.py", source_directory=".", environment=here)
    service = Model.deploy(
        ws, "local-words", [words], config, LocalWebservice.deploy_configuration()
    )
    service.wait_for_deployment()
    assert service.state == "running"
    assert service.run({"word": "yes"})["by"] == "one"
    (project / "score.py").write_text(SCORE.replace("VERSION", "edited"))
    assert isinstance(service, LocalWebservice)
    service.reload(wait=True)
    assert service.run({"word": "yes"})["by"] == "edited"
