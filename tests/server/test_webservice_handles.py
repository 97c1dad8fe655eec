"""v1's classes for services, against a real server; only the processes are imagined."""

from __future__ import annotations

import http.server
import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.conductor import runs, services
from runyard.domain.runs import RunError, RunSpec
from runyard.domain.services import ServiceAuth, ServiceRecord
from runyard.domain.workspaces import WorkspaceRecord
from runyard.sdk.client import Client
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import UserErrorException, WebserviceException
from runyard.sdk.images import ContainerImage, Image
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.resource_configuration import ResourceConfiguration
from runyard.sdk.service_calls import example_body
from runyard.sdk.session import Session
from runyard.sdk.webservice import Webservice
from runyard.sdk.webservice_kinds import AciWebservice, AksWebservice, LocalWebservice
from runyard.sdk.workspace import Workspace

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer, Stage

BROKEN = RunError(
    code="UserError",
    message="init() of score.py failed: KeyError: 'weights'",
    traceback="Traceback (most recent call last):\n  in score.py, line 3\nKeyError: 'weights'",
)
SCRIPT = "def init():\n    pass\n\ndef run(data):\n    return data\n"


@pytest.fixture
def ws(
    server: LiveServer, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    monkeypatch.chdir(tmp_path)
    session = Session(Client(server.url, "the-owner's-token"), server.settings)
    spec = {"name": "yard"}
    record = session.request("POST", "/api/v1/workspaces", body=spec, answer=WorkspaceRecord)
    return Workspace._of(session, record)


@pytest.fixture
def model(ws: Workspace, tmp_path: Path) -> Model:
    (tmp_path / "model.pkl").write_bytes(b"weights")
    return Model.register(
        ws, "model.pkl", "digits", model_framework="ScikitLearn", model_framework_version="1.5.0"
    )


@pytest.fixture
def script(tmp_path: Path) -> InferenceConfig:
    (tmp_path / "score.py").write_text(SCRIPT)
    environment = Environment("serving")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    return InferenceConfig("score.py", environment=environment)


def record_of(server: LiveServer, name: str) -> ServiceRecord:
    found = services.list_services(server.store, None)
    return next(service for service in found if service.name == name)


# ---- deploying -------------------------------------------------------------------------------


def test_deploy_returns_at_once_and_waiting_says_v1s_words(
    ws: Workspace, model: Model, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.held = True
    service = Model.deploy(ws, "digits-service", [model])
    assert isinstance(service, AciWebservice)
    assert service.state == "Transitioning"
    stage.release()
    capsys.readouterr()
    service.wait_for_deployment(show_output=True)
    printed = capsys.readouterr().out
    assert printed.startswith("Running")
    assert printed.endswith(
        'Succeeded\nACI service creation operation finished, operation "Succeeded"\n'
    )
    assert (service.state, service.error, service.compute_type) == ("Healthy", None, "ACI")
    assert [one.id for one in service.models] == [model.id]


class _Listening(io.StringIO):
    """A stdout that lets the stage go on when a text was printed."""

    def __init__(self, text: str, stage: Stage) -> None:
        super().__init__()
        self._text, self._stage = text, stage

    def write(self, text: str) -> int:
        if self._text in text and self._stage.held:
            self._stage.release()
        return super().write(text)


def test_waiting_says_what_is_waited_for_and_ends_when_it_is_over(
    ws: Workspace, model: Model, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.held = True
    service = Model.deploy(ws, "digits-service", [model])
    printed = _Listening("its workers are about to start", stage)
    monkeypatch.setattr(sys, "stdout", printed)
    service.wait_for_deployment(show_output=True)
    assert "its workers are about to start" in printed.getvalue()
    assert service.state == "Healthy"


def test_a_wait_may_end_before_the_service_is_there(
    ws: Workspace, model: Model, stage: Stage
) -> None:
    stage.held = True
    service = Model.deploy(ws, "digits-service", [model])
    with pytest.raises(WebserviceException, match=r"timeout of 0 seconds.*Transitioning"):
        service.wait_for_deployment(timeout_sec=0)


def test_a_failed_deployment_raises_with_the_real_traceback(
    ws: Workspace, model: Model, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.error = BROKEN
    service = Model.deploy(ws, "digits-service", [model])
    with pytest.raises(WebserviceException) as caught:
        service.wait_for_deployment(show_output=True)
    for text in (
        "non-successful terminal state, current service state: Failed",
        "get_logs()",
        "KeyError: 'weights'",
        "UserError",
    ):
        assert text in caught.value.message
    assert capsys.readouterr().out.endswith("\nFailed\n")
    assert service.state == "Failed"
    assert service.error is not None
    assert service.error["message"] == BROKEN.message
    assert "Traceback" in str(service.error["details"])


def test_a_name_that_is_taken_is_refused_and_overwrite_makes_the_next_revision(
    ws: Workspace, model: Model, server: LiveServer, stage: Stage
) -> None:
    Model.deploy(ws, "digits-service", [model]).wait_for_deployment()
    with pytest.raises(WebserviceException, match=r"exists already[\s\S]*overwrite=True"):
        Model.deploy(ws, "digits-service", [model])
    again = Model.deploy(ws, "digits-service", [model], overwrite=True)
    again.wait_for_deployment()
    serving = record_of(server, "digits-service").serving
    assert serving is not None
    assert serving.number == 2


def test_a_local_service_is_replaced_by_the_next_of_its_name_and_no_other_one_is(
    ws: Workspace, model: Model, server: LiveServer, stage: Stage
) -> None:
    config = LocalWebservice.deploy_configuration()
    for number in (1, 2):
        Model.deploy(ws, "digits-local", [model], None, config).wait_for_deployment()
        serving = record_of(server, "digits-local").serving
        assert serving is not None
        assert serving.number == number
    Model.deploy(ws, "digits-service", [model]).wait_for_deployment()
    for name, other in (("digits-service", config), ("digits-local", None)):
        with pytest.raises(WebserviceException, match="exists already"):
            Model.deploy(ws, name, [model], None, other)


def test_new_keys_and_another_auth_are_waited_for(
    ws: Workspace, model: Model, server: LiveServer, stage: Stage
) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.wait_for_deployment()
    assert isinstance(service, AciWebservice)
    for change in (lambda: service.regen_key("Primary"), lambda: _change_auth(service)):
        stage.held = True
        done = threading.Thread(target=change)
        done.start()
        while record_of(server, "digits-service").settled:
            time.sleep(0.01)
        assert done.is_alive()
        stage.release()
        done.join(timeout=30)
        assert service._record.settled


def _change_auth(service: AciWebservice) -> None:
    service.update(auth_enabled=True)
    service.wait_for_deployment()


@pytest.mark.parametrize("name", ["a", "Digits", "1abc", "digits-", "x" * 33, "a_b", 7])
def test_a_malformed_name_is_refused_before_anything_is_sent(
    ws: Workspace, model: Model, name: str
) -> None:
    with pytest.raises(WebserviceException, match="cannot be the name of a service"):
        Model.deploy(ws, name, [model])


def test_what_cannot_be_served_without_a_script_is_a_user_error(
    ws: Workspace, model: Model, tmp_path: Path
) -> None:
    with pytest.raises(UserErrorException, match="one model, not 2"):
        Model.deploy(ws, "two-models", [model, model])
    with pytest.raises(UserErrorException, match="one model, not 0"):
        Model.deploy(ws, "no-models", [])
    custom = Model.register(ws, "model.pkl", "custom")
    with pytest.raises(UserErrorException, match="without an entry script"):
        Model.deploy(ws, "custom-model", [custom])
    with pytest.raises(WebserviceException, match="is not a model"):
        Model.deploy(ws, "not-a-model", ["digits"])  # type: ignore[list-item]


def test_a_models_own_wishes_hold_where_the_configuration_has_none(
    ws: Workspace, server: LiveServer, tmp_path: Path
) -> None:
    (tmp_path / "model.pkl").write_bytes(b"weights")
    model = Model.register(
        ws,
        "model.pkl",
        "modest",
        model_framework="ScikitLearn",
        resource_configuration=ResourceConfiguration(cpu=1, memory_in_gb=0.5),
    )
    config = AciWebservice.deploy_configuration(memory_gb=2)
    Model.deploy(ws, "modest-service", [model], deployment_config=config).wait_for_deployment()
    serving = record_of(server, "modest-service").serving
    assert serving is not None
    assert (serving.spec.cores, serving.spec.memory_gb) == (1, 2)


def test_a_script_goes_alone_or_with_its_folder(
    ws: Workspace, model: Model, script: InferenceConfig, server: LiveServer, tmp_path: Path
) -> None:
    Model.deploy(ws, "alone-service", [model], script).wait_for_deployment()
    (tmp_path / "code" / "inner").mkdir(parents=True)
    (tmp_path / "code" / "inner" / "score.py").write_text(SCRIPT)
    (tmp_path / "code" / "words.txt").write_text("hello")
    whole = InferenceConfig(
        "inner/score.py", source_directory="code", environment=script.environment
    )
    Model.deploy(ws, "folder-service", [model], whole).wait_for_deployment()
    for name, entry, files in (
        ("alone-service", "score.py", ["score.py"]),
        ("folder-service", "inner/score.py", ["inner/score.py", "words.txt"]),
    ):
        serving = record_of(server, name).serving
        assert serving is not None
        assert serving.spec.snapshot is not None
        assert (serving.spec.scorer, serving.spec.entry_script) == ("script", entry)
        tree = json.loads(b"".join(server.store.blobs.open(serving.spec.snapshot)))
        assert sorted(one[0] if isinstance(one, list) else one["path"] for one in tree) == files


def test_a_script_without_an_environment_gets_the_models_framework(
    ws: Workspace, model: Model, script: InferenceConfig, server: LiveServer
) -> None:
    Model.deploy(ws, "bare-script", [model], InferenceConfig("score.py")).wait_for_deployment()
    serving = record_of(server, "bare-script").serving
    assert serving is not None
    assert serving.spec.environment is not None
    assert "scikit-learn==1.5.0" in serving.spec.environment.pip


# ---- finding ---------------------------------------------------------------------------------


def test_a_service_is_found_by_its_name_as_the_class_it_was_deployed_as(
    ws: Workspace, model: Model
) -> None:
    config = AksWebservice.deploy_configuration(num_replicas=3, cpu_cores=1, tags={"stage": "try"})
    Model.deploy(ws, "many-replicas", [model], None, config).wait_for_deployment()
    found = Webservice(ws, "many-replicas")
    assert isinstance(found, AksWebservice)
    assert isinstance(AksWebservice(ws, "many-replicas"), AksWebservice)
    assert (found.auth_enabled, found.num_replicas, found.cpu_cores) == (True, 3, 1)
    assert list(ws.webservices) == ["many-replicas"]
    assert [one.name for one in Webservice.list(ws, compute_type="AKS")] == ["many-replicas"]
    assert Webservice.list(ws, compute_type="ACI") == []
    assert len(Webservice.list(ws, model_name="digits")) == 1
    assert Webservice.list(ws, model_name="other") == []
    assert len(Webservice.list(ws, tags=[["stage", "try"]])) == 1
    assert Webservice.list(ws, tags=[["stage", "prod"]]) == []
    with pytest.raises(AttributeError):
        _ = found.nonsense


def test_a_service_that_is_not_there_is_named_with_those_that_are(
    ws: Workspace, model: Model
) -> None:
    Model.deploy(ws, "digits-service", [model])
    with pytest.raises(WebserviceException, match=r"WebserviceNotFound[\s\S]*digits-service"):
        Webservice(ws, "other-service")


def test_a_service_can_be_written_down_and_found_again(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.wait_for_deployment()
    told = service.serialize()
    assert (told["name"], told["state"], told["computeType"]) == (
        "digits-service",
        "Healthy",
        "ACI",
    )
    assert json.dumps(told)
    assert Webservice.deserialize(ws, told).name == "digits-service"
    assert "digits-service" in repr(service)


# ---- calling ---------------------------------------------------------------------------------


class _Front(http.server.BaseHTTPRequestHandler):
    """Answers as a service would: what it was sent, or what is wrong with it."""

    secret = ""

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.secret and self.headers.get("Authorization") != f"Bearer {self.secret}":
            self._answer(401, b'{"error": "a key is needed"}')
        elif data == b"bad":
            self._answer(400, b'{"error": "expected a list of rows"}')
        elif data == b"text":
            self._answer(200, b"not JSON")
        else:
            self._answer(200, json.dumps({"path": self.path, "sent": data.decode()}).encode())

    def do_GET(self) -> None:
        if self.secret and self.headers.get("Authorization") != f"Bearer {self.secret}":
            self._answer(401, b'{"error": "a key is needed"}')
        else:
            self._answer(200, b'{"definitions": {"ServiceInput": {"example": {"data": [1]}}}}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def front() -> Iterator[type[_Front]]:
    class Front(_Front):
        port = 0

    listening = http.server.HTTPServer(("127.0.0.1", 0), Front)
    Front.port = listening.server_address[1]
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    yield Front
    listening.shutdown()
    thread.join()
    listening.server_close()


def _at(server: LiveServer, service: Webservice, front: type[_Front]) -> Webservice:
    """The service with the port of something that answers."""
    port = front.port  # type: ignore[attr-defined]
    found = services.list_services(server.store, None)
    record = next(one for one in found if one.name == service.name)
    server.store.records.replace(msgspec.structs.replace(record, port=port))
    service.update_deployment_state()
    return service


def test_run_posts_to_the_scoring_uri_and_parses_the_answer(
    ws: Workspace, model: Model, server: LiveServer, front: type[_Front]
) -> None:
    service = _at(server, Model.deploy(ws, "digits-service", [model]), front)
    assert service.scoring_uri == f"http://127.0.0.1:{service._record.port}/score"
    assert service.swagger_uri.endswith("/swagger.json")
    assert service.run('{"data": [1]}') == {"path": "/score", "sent": '{"data": [1]}'}
    assert service.run(b"bytes")["sent"] == "bytes"
    assert service.run({"data": [1]})["sent"] == '{"data": [1]}'
    assert service.run("text") == "not JSON"
    with pytest.raises(WebserviceException, match=r"Response Code: 400[\s\S]*a list of rows"):
        service.run("bad")
    with pytest.raises(WebserviceException, match="cannot be sent"):
        service.run(object())


def test_run_shows_the_key_and_asks_for_a_new_one_when_it_was_changed(
    ws: Workspace, model: Model, server: LiveServer, front: type[_Front]
) -> None:
    config = AciWebservice.deploy_configuration(auth_enabled=True, primary_key="first")
    service = _at(server, Model.deploy(ws, "keyed-service", [model], None, config), front)
    front.secret = "first"
    assert service.get_keys()[0] == "first"
    assert service.run("1")["sent"] == "1"
    Webservice(ws, "keyed-service").regen_key("Primary", set_key="second")
    front.secret = "second"
    assert service.run("2")["sent"] == "2"
    front.secret = "third"
    service._patience_seconds = 0
    with pytest.raises(WebserviceException, match="Response Code: 401"):
        service.run("3")


def test_a_service_that_does_not_answer_says_what_to_do(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    with pytest.raises(WebserviceException, match=r"does not answer[\s\S]*get_logs"):
        service.run("{}")


def test_an_example_of_a_body_is_what_the_service_says(front: type[_Front]) -> None:
    front.secret = "first"
    address = f"http://127.0.0.1:{front.port}/swagger.json"  # type: ignore[attr-defined]
    assert example_body(address, "first") == '{"data": [1]}'
    assert example_body(address, "wrong") == ""
    assert example_body("http://127.0.0.1:1/swagger.json") == ""


def test_keys_are_changed_one_at_a_time(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "keyed-service", [model], None, AksWebservice.deploy_configuration())
    primary, secondary = service.get_keys()
    service.regen_key("Secondary")
    assert service.get_keys()[0] == primary
    assert service.get_keys()[1] != secondary
    service.regen_key("primary", set_key="mine")
    assert service.get_keys()[0] == "mine"
    with pytest.raises(WebserviceException, match="Valid options are: Primary, Secondary"):
        service.regen_key("Third")
    with pytest.raises(WebserviceException, match="printable"):
        service.regen_key("Primary", set_key="two words")


def test_tokens_are_for_services_that_use_them(ws: Workspace, model: Model) -> None:
    config = AksWebservice.deploy_configuration(auth_enabled=False, token_auth_enabled=True)
    service = Model.deploy(ws, "token-service", [model], None, config)
    assert (service.auth_enabled, service.token_auth_enabled) == (False, True)
    token, refresh = service.get_token()
    whole = service.get_access_token()
    assert token
    assert whole.access_token
    assert refresh < whole.expiry_on
    other = Model.deploy(ws, "open-service", [model])
    with pytest.raises(WebserviceException, match="does not use tokens"):
        other.get_token()


def test_logs_of_a_failed_revision_are_there(
    ws: Workspace, model: Model, server: LiveServer, stage: Stage
) -> None:
    stage.error = BROKEN
    service = Model.deploy(ws, "digits-service", [model])
    spec = RunSpec(workspace="yard", experiment="services", id="workers-1")
    server.store.records.insert(runs.new_run(spec, datetime.now(UTC)))
    server.store.streams.append_log("workers-1", "user_logs/std_log.txt", 0, b"one\ntwo\n")
    assert service.get_logs().endswith("one\ntwo\n")
    assert "one" not in service.get_logs(num_lines=1)


# ---- changing --------------------------------------------------------------------------------


def test_an_update_serves_another_model(ws: Workspace, model: Model, server: LiveServer) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.wait_for_deployment()
    second = Model.register(ws, "model.pkl", "digits", model_framework="ScikitLearn")
    service.update(models=[second], tags={"stage": "next"}, description="better")
    assert service.state == "Transitioning"
    service.wait_for_deployment()
    assert [one.id for one in service.models] == [second.id]
    assert (service.tags, service.description) == ({"stage": "next"}, "better")
    with pytest.raises(WebserviceException, match="No parameters provided"):
        service.update()


def test_an_update_that_fails_raises_and_the_old_revision_goes_on(
    ws: Workspace, model: Model, script: InferenceConfig, stage: Stage
) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.wait_for_deployment()
    stage.error = BROKEN
    service.update(inference_config=script)
    with pytest.raises(WebserviceException, match=r"Revision 1 goes on[\s\S]*KeyError: 'weights'"):
        service.wait_for_deployment()
    assert service.state == "Healthy"
    assert service.error is not None
    service.update(auth_enabled=True)
    service.wait_for_deployment()  # that was done; the failure was told already
    stage.error = None
    service.update(inference_config=script)
    service.wait_for_deployment()
    assert service.error is None


def test_replicas_and_access_of_an_aks_service_can_be_changed(
    ws: Workspace, model: Model, server: LiveServer
) -> None:
    config = AksWebservice.deploy_configuration(num_replicas=1)
    service = Model.deploy(ws, "many-replicas", [model], None, config)
    service.wait_for_deployment()
    service.update(num_replicas=2, cpu_cores=0.5, auth_enabled=False, scoring_timeout_ms=5000)
    service.wait_for_deployment()
    record = record_of(server, "many-replicas")
    assert record.serving is not None
    assert (record.serving.spec.replicas, record.serving.spec.cores) == (2, 0.5)
    assert record.access.auth is ServiceAuth.NONE
    assert record.access.timeout_seconds == 5.5
    before = record.made
    service.update(auth_enabled=True)
    assert record_of(server, "many-replicas").made == before  # no new processes for that
    with pytest.raises(WebserviceException, match="must be positive"):
        service.update(num_replicas=0)


def test_a_local_service_has_its_words_and_reloads_the_script_as_it_is_now(
    ws: Workspace,
    model: Model,
    script: InferenceConfig,
    server: LiveServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = LocalWebservice.deploy_configuration()
    service = Model.deploy(ws, "local-service", [model], script, config)
    assert isinstance(service, LocalWebservice)
    assert service.state == "deploying"
    capsys.readouterr()
    service.wait_for_deployment(show_output=True)
    assert f"Local webservice is running at {service.base_url}" in capsys.readouterr().out
    assert (service.state, service.port > 0) == ("running", True)
    first = record_of(server, "local-service").serving
    (tmp_path / "score.py").write_text(SCRIPT + "\n# changed\n")
    service.reload(wait=True)
    second = record_of(server, "local-service").serving
    assert first is not None
    assert second is not None
    assert first.spec.snapshot != second.spec.snapshot
    found = Webservice(ws, "local-service")
    found.reload()  # another process has no script to take along
    assert record_of(server, "local-service").made == 3
    with pytest.raises(WebserviceException, match="keeps its port"):
        service.update(
            deployment_config=LocalWebservice.deploy_configuration(port=service.port + 1)
        )
    service.delete(delete_cache=False)


def test_tags_and_properties_are_added_and_tags_removed(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.add_tags({"a": 1, "b": None})
    service.remove_tags(["a"])
    service.add_properties({"made": "today"})
    assert service.tags == {"b": None}
    assert service.properties == {"made": "today"}


def test_delete_returns_when_the_service_is_gone(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    service.delete()
    assert ws.webservices == {}
    service.delete()  # once more does no harm


def test_a_model_that_is_served_cannot_be_deleted(ws: Workspace, model: Model) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    with pytest.raises(WebserviceException, match=r"being served[\s\S]*digits-service"):
        model.delete()
    service.delete()
    model.delete()


# ---- 2019's images ---------------------------------------------------------------------------


def test_an_image_of_2019_is_made_and_deployed(
    ws: Workspace,
    model: Model,
    script: InferenceConfig,
    server: LiveServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "env.yml").write_text("dependencies:\n- python=3.6.2\n- pip:\n  - numpy\n")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "one.txt").write_text("one")
    config = ContainerImage.image_configuration(
        execution_script="score.py",
        runtime="python",
        conda_file="env.yml",
        dependencies=["words"],
        tags={"area": "digits"},
    )
    image = ContainerImage.create(
        workspace=ws, name="digits-image", models=[model], image_config=config
    )
    image.wait_for_creation(show_output=True)
    assert (image.id, image.creation_state) == ("digits-image:1", "Succeeded")
    assert 'image digits-image:1, operation "Succeeded"' in capsys.readouterr().out
    assert list(ws.images) == ["digits-image"]
    assert [one.id for one in Image.list(ws, tags=["area"])] == ["digits-image:1"]
    assert Image.list(ws, tags=[["area", "letters"]]) == Image.list(ws, image_name="other") == []
    assert [one.id for one in Image.list(ws, model_name=model.name)] == ["digits-image:1"]
    service = Webservice.deploy_from_image(
        ws, "from-image", image, AciWebservice.deploy_configuration(cpu_cores=1)
    )
    service.wait_for_deployment()
    other = Webservice.deploy_from_model(
        workspace=ws,
        name="from-model",
        deployment_config=AciWebservice.deploy_configuration(),
        models=[model],
        image_config=config,
    )
    other.wait_for_deployment()
    (tmp_path / "score.py").write_text("changed")  # what was kept is deployed, not what lies here
    kept = Image(ws, id="digits-image:1")
    assert (kept.tags, [one.id for one in kept.models]) == ({"area": "digits"}, [model.id])
    Webservice.deploy_from_image(ws, "from-kept", kept).wait_for_deployment()
    for name in ("from-image", "from-model", "from-kept"):
        serving = record_of(server, name).serving
        assert serving is not None
        assert serving.spec.environment is not None
        assert serving.spec.environment.pip == ("numpy",)
        assert serving.spec.environment.python == "3.6.2"
        assert serving.spec.snapshot is not None
        tree = b"".join(server.store.blobs.open(serving.spec.snapshot)).decode()
        assert "words/one.txt" in tree
        assert "score.py" in tree
    image.delete()
    with pytest.raises(WebserviceException, match="ImageNotFound"):
        type(image)(ws, "digits-image")
    assert Image.list(ws) == []
    again = Image.create(ws, "digits-image", [model], config)
    assert again.version == 2  # no number is used twice


# ---- two handles -----------------------------------------------------------------------------


def test_two_handles_do_not_undo_each_others_changes(
    ws: Workspace, server: LiveServer, model: Model
) -> None:
    config = AksWebservice.deploy_configuration(auth_enabled=False, tags={"a": "1"})
    one = Model.deploy(ws, "digits-service", [model], None, config)
    other = Webservice(ws, "digits-service")
    assert isinstance(one, AksWebservice)
    assert isinstance(other, AksWebservice)
    one.update(auth_enabled=True, num_replicas=2)
    one.add_tags({"b": "2"})
    other.update(scoring_timeout_ms=5000, cpu_cores=1.5)
    other.add_tags({"c": "3"})
    other.remove_tags(["a"])
    record = record_of(server, "digits-service")
    assert record.access.auth is ServiceAuth.KEY
    assert record.tags == {"b": "2", "c": "3"}
    assert record.serving is not None
    assert (record.serving.spec.replicas, record.serving.spec.cores) == (2, 1.5)


def test_turning_keys_off_leaves_tokens_that_another_handle_turned_on(
    ws: Workspace, server: LiveServer, model: Model
) -> None:
    config = AksWebservice.deploy_configuration()
    one = Model.deploy(ws, "digits-service", [model], None, config)
    other = Webservice(ws, "digits-service")
    assert isinstance(one, AksWebservice)
    assert isinstance(other, AksWebservice)
    one.update(token_auth_enabled=True)
    other.update(auth_enabled=False)
    assert record_of(server, "digits-service").access.auth is ServiceAuth.TOKEN


def test_a_service_is_gone_when_another_one_has_its_name(
    ws: Workspace, server: LiveServer, model: Model, stage: Stage
) -> None:
    service = Model.deploy(ws, "digits-service", [model])
    stage.held = True
    deleting = threading.Thread(target=service.delete, daemon=True)
    deleting.start()
    while not record_of(server, "digits-service").deleting:
        threading.Event().wait(0.01)
    stage.release()
    Model.deploy(ws, "digits-service", [model])
    deleting.join(30)
    assert not deleting.is_alive()
    assert not record_of(server, "digits-service").deleting
