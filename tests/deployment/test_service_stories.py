"""Services as users meet them: from a registered model to answers, changes and the end."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from azureml.core import Model, Webservice, Workspace
from azureml.core.model import InferenceConfig
from azureml.core.resource_configuration import ResourceConfiguration
from azureml.core.webservice import AciWebservice, AksWebservice
from azureml.exceptions import WebserviceException
from runyard.testing.front_service import wait_for
from runyard.testing.home_processes import ECHO, kill

if TYPE_CHECKING:
    from tests.deployment.conftest import Yard

pytestmark = pytest.mark.story

Script = Callable[..., InferenceConfig]
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3], [5.9, 3.0, 4.2, 1.5]]


def test_the_pages_own_lines_deploy_a_tensorflow_model(ws: Workspace, made: Any) -> None:
    run = made
    model = run.register_model(
        model_name="tf-mnist",
        model_path="outputs/arithmetic",
        model_framework=Model.Framework.TENSORFLOW,
        model_framework_version="2.0",
        resource_configuration=ResourceConfiguration(cpu=1, memory_in_gb=0.5),
    )
    service = Model.deploy(ws, "tensorflow-web-service", [model])
    service.wait_for_deployment(show_output=True)
    assert service.state == "Healthy"
    assert service.run(json.dumps({"instances": [[1, 2], [3, 4]]})) == {
        "predictions": [[2.0, 4.0], [6.0, 8.0]]
    }
    with pytest.raises(WebserviceException, match=r"shape \[any, 2\], but has \[1, 3\]"):
        service.run(json.dumps({"instances": [[1, 2, 3]]}))
    service.delete()


def test_two_services_at_once_and_both_are_listed(
    ws: Workspace, iris: Model, script: Script
) -> None:
    first = Model.deploy(ws, "iris-plain", [iris])
    second = Model.deploy(
        ws,
        "iris-scripted",
        [iris],
        script("import json, os\ndef init(): pass\ndef run(data): return os.listdir('.')"),
        AciWebservice.deploy_configuration(tags={"team": "flowers"}),
    )
    for service in (first, second):
        service.wait_for_deployment()
    assert first.run(json.dumps({"data": ROWS, "method": "predict"})) == {"predict": [0, 2, 1]}
    assert "azureml-models" in second.run("{}")
    assert {"iris-plain", "iris-scripted"} <= set(ws.webservices)
    listed = Webservice.list(ws, model_name="iris", tags=[["team", "flowers"]])
    assert [service.name for service in listed] == ["iris-scripted"]
    assert first.scoring_uri != second.scoring_uri
    for service in (first, second):
        service.delete()
    assert not {"iris-plain", "iris-scripted"} & set(ws.webservices)


def test_a_taken_name_is_refused_and_overwrite_takes_it(ws: Workspace, script: Script) -> None:
    service = Model.deploy(ws, "taken", [], script())
    service.wait_for_deployment()
    with pytest.raises(WebserviceException, match=r"'taken' exists already[\s\S]*overwrite=True"):
        Model.deploy(ws, "taken", [], script())
    config = script(ECHO.replace("VERSION", "two"))
    after = Model.deploy(ws, "taken", [], config, overwrite=True)
    after.wait_for_deployment()
    assert after.scoring_uri == service.scoring_uri
    assert worker_of(after).startswith("two ")
    with pytest.raises(WebserviceException, match="cannot be the name of a service"):
        Model.deploy(ws, "Not_A-Name", [], script())
    after.delete()


def test_keys_tokens_and_replicas(ws: Workspace, script: Script) -> None:
    service = Model.deploy(
        ws,
        "guarded",
        [],
        script(),
        AksWebservice.deploy_configuration(num_replicas=2, primary_key="open-sesame"),
    )
    service.wait_for_deployment()
    assert service.get_keys()[0] == "open-sesame"
    wait_for(lambda: workers_ready(service) == 2, "two workers being ready")
    assert status(service, "open-sesame") == 200
    assert status(service, "open-barley") == 401
    assert status(service) == 401

    service.regen_key("Primary")
    assert status(service, "open-sesame") == 401  # from the moment that it returns
    new, other = service.get_keys()
    assert new not in ("open-sesame", other)
    assert service.run("[3]") == [3]
    assert status(service, "open-sesame") == 401
    assert status(service, other) == 200

    assert isinstance(service, AksWebservice)
    service.update(token_auth_enabled=True, auth_enabled=False)
    service.wait_for_deployment()
    token, refresh_after = service.get_token()
    assert refresh_after is not None
    assert status(service, token) == 200
    assert service.run("[4]") == [4]
    assert status(service, other) == 401
    service.delete()


def test_a_service_goes_on_without_the_server_and_comes_back_after_a_power_cut(
    ws: Workspace, yard: "Yard", script: Script
) -> None:
    service = Model.deploy(ws, "lasting", [], script())
    service.wait_for_deployment()
    yard.stop()
    assert worker_of(service).startswith("one ")

    yard.start()
    yard.kill_server()
    uid = service._record.uid
    kill(*yard.processes(uid))
    assert not yard.processes(uid)
    yard.start()
    wait_for(lambda: try_worker(service).startswith("one "), "an answer")
    service.update_deployment_state()
    wait_for(lambda: Webservice(ws, "lasting").state == "Healthy", "the state being Healthy")
    service.delete()
    assert not yard.processes(uid)


def test_a_model_that_is_served_cannot_be_deleted(ws: Workspace, script: Script) -> None:
    Path("weights.txt").write_text("1")
    model = Model.register(ws, "weights.txt", "weights")
    service = Model.deploy(ws, "keeps-weights", [model], script())
    service.wait_for_deployment()
    with pytest.raises(Exception, match=r"weights:1[\s\S]*keeps-weights"):
        model.delete()
    service.delete()
    model.delete()


def worker_of(service: Any) -> str:
    """Which worker answers."""
    body = "[1]"
    key = service.get_keys()[0] if service.auth_enabled else ""
    headers = {"Authorization": f"Bearer {key}"}
    answer = urllib3.request("POST", service.scoring_uri, body=body, headers=headers)
    assert answer.status == 200, answer.data
    return str(answer.headers["X-Worker"])


def workers_ready(service: Any) -> int:
    """How many workers the front end has."""
    headers = {"Authorization": f"Bearer {service.get_keys()[0]}"}
    page = urllib3.request(
        "GET", service.scoring_uri.replace("/score", "/metrics"), headers=headers
    )
    found = re.search(rb"^runyard_workers_ready{.*} (\d+)", page.data, re.MULTILINE)
    return int(found[1]) if found else 0


def try_worker(service: Any) -> str:
    """The same, or nothing while nobody does."""
    try:
        answer = urllib3.request("POST", service.scoring_uri, body="[1]", retries=False)
    except urllib3.exceptions.HTTPError:
        return ""
    return str(answer.headers.get("X-Worker", ""))


def status(service: Any, secret: str = "") -> int:
    """How a request with that key or token is answered."""
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    found = urllib3.request("POST", service.scoring_uri, body="[1]", headers=headers)
    return int(found.status)
