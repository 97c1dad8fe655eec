"""Routes and pages of services, over a real store; only the processes are imagined."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pytest

from runyard.conductor import runs, services
from runyard.domain.files import FileEntry, Manifest, manifest_digest
from runyard.domain.models import ModelRecord
from runyard.domain.runs import RunError, RunSpec
from runyard.domain.services import ServiceRecord, ServiceState
from runyard.serving.access import token_holds

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer, Stage

YARD = "/api/v1/workspaces/yard/services"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def model(server: LiveServer) -> Iterator[ModelRecord]:
    data = b"weights"
    record = ModelRecord(
        id="model-id",
        workspace="yard",
        name="digits",
        number=1,
        manifest=(FileEntry("model.pkl", server.keep(data), len(data)),),
        size=len(data),
        created=datetime.now(UTC),
        framework="ScikitLearn",
    )
    yield server.store.records.insert(record)
    server.store.records.delete(server.store.records.get(ModelRecord, "model-id"))


def draft(**more: object) -> dict[str, object]:
    return {"spec": {"models": ["model-id"]}, **more}


def put(server: LiveServer, name: str = "digits-service", **more: object) -> ServiceRecord:
    answer = server.request("PUT", f"{YARD}/{name}", json=draft(**more))
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=ServiceRecord)


def get(server: LiveServer, name: str = "digits-service", query: str = "") -> ServiceRecord:
    answer = server.request("GET", f"{YARD}/{name}{query}")
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=ServiceRecord)


# ---- routes ----------------------------------------------------------------------------------


def test_a_service_is_made_listed_and_deleted(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    made = put(server, description="d", tags={"a": "b"}, details={"location": "here"})
    assert made.state is ServiceState.TRANSITIONING
    found = get(server)
    assert (found.state, found.description, found.tags) == ("Healthy", "d", {"a": "b"})
    assert found.serving is not None
    assert found.serving.spec.scorer == "sklearn"
    listed = server.request("GET", YARD)
    assert [one["name"] for one in msgspec.json.decode(listed.data)] == ["digits-service"]
    assert server.request("DELETE", f"{YARD}/digits-service").status == 200
    assert server.request("GET", f"{YARD}/digits-service").status == 404


def test_no_answer_holds_the_secrets(server: LiveServer, stage: Stage, model: ModelRecord) -> None:
    assert put(server, primary_key="the-key").secret == ""
    for path in (YARD, f"{YARD}/digits-service"):
        text = server.request("GET", path).data.decode()
        assert "the-key" not in text
        assert msgspec.json.decode(text)  # and there is something
    assert get(server).secret == ""


def test_passwords_of_package_indexes_are_kept_for_the_next_revision_but_not_shown(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    pip = "--extra-index-url https://me:hush@host/simple"
    tree: Manifest = (FileEntry("score.py", server.keep(b"x = 1"), 5),)
    spec = {
        "models": [],
        "entry_script": "score.py",
        "snapshot": manifest_digest(tree),
        "environment": {"name": "e", "pip": [pip]},
    }
    put(server, spec=spec, manifest=msgspec.to_builtins(tree))
    for path in (YARD, f"{YARD}/digits-service", "/services/yard/digits-service"):
        assert b"hush" not in server.request("GET", path).data
    # Who changes the number of replicas sends what was shown, without the environment.
    more = {**spec, "environment": None, "replicas": 2}
    server.request("PATCH", f"{YARD}/digits-service", json={"spec": more})
    serving = services.list_services(server.store, None)[0].serving
    assert serving is not None
    assert serving.spec.environment is not None
    assert (serving.spec.replicas, serving.spec.environment.pip) == (2, (pip,))


def test_a_wait_ends_with_the_next_change(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    stage.held = True
    made = put(server)
    answers: list[ServiceRecord] = []
    waiting = threading.Thread(
        target=lambda: answers.append(get(server, query=f"?newer_than={made.version}&wait=30"))
    )
    waiting.start()
    stage.release()
    waiting.join(20)
    assert answers[0].version > made.version


def test_a_wait_for_a_service_that_goes_ends_with_not_found(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    stage.held = True
    made = put(server)
    statuses: list[int] = []
    path = f"{YARD}/digits-service?newer_than={made.version + 100}&wait=30"
    waiting = threading.Thread(target=lambda: statuses.append(server.request("GET", path).status))
    waiting.start()
    stage.held = False
    server.request("DELETE", f"{YARD}/digits-service")
    waiting.join(20)
    assert statuses == [404]


def test_a_taken_name_and_a_taken_port_are_conflicts(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server)
    again = server.request("PUT", f"{YARD}/digits-service", json=draft())
    assert again.status == 409
    assert "--overwrite" in again.data.decode()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = server.request("PUT", f"{YARD}/other-one", json=draft(access={"port": port}))
    assert busy.status == 409
    assert f"Port {port} is in use" in busy.data.decode()


@pytest.mark.parametrize("name", ["ab", "A-B", "x" * 33, "a..b", "%3Cscript%3E"])
def test_a_malformed_name_is_invalid(
    server: LiveServer, stage: Stage, model: ModelRecord, name: str
) -> None:
    answer = server.request("PUT", f"{YARD}/{name}", json=draft())
    assert answer.status in (400, 422)
    assert "cannot be the name of a service" in answer.data.decode()


def test_an_entry_script_must_be_among_the_files_and_they_must_have_arrived(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    data = b"def init(): pass\n"
    tree: Manifest = (FileEntry("score.py", "0" * 64, len(data)),)
    spec = {"models": [], "entry_script": "score.py", "snapshot": manifest_digest(tree)}
    body = {"spec": spec, "manifest": msgspec.to_builtins(tree)}
    missing = server.request("PUT", f"{YARD}/scripted", json=body)
    assert msgspec.json.decode(missing.data)["digests"] == ["0" * 64]
    tree = (FileEntry("score.py", server.keep(data), len(data)),)
    spec = {**spec, "snapshot": manifest_digest(tree), "entry_script": "other.py"}
    body = {"spec": spec, "manifest": msgspec.to_builtins(tree)}
    wrong = server.request("PUT", f"{YARD}/scripted", json=body)
    assert "'other.py' is not among the files" in wrong.data.decode()
    assert "score.py" in wrong.data.decode()
    body["spec"] = {**spec, "entry_script": "score.py"}
    assert server.request("PUT", f"{YARD}/scripted", json=body).status == 200


def test_a_change_of_access_makes_no_revision_and_a_spec_does(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server)
    path = f"{YARD}/digits-service"
    assert server.request("PATCH", path, json={"access": {"auth": "key"}}).status == 200
    assert get(server).made == 1
    stage.error = RunError(code="UserError", message="init() failed")
    spec = {"models": ["model-id"], "replicas": 2}
    assert server.request("PATCH", path, json={"spec": spec}).status == 200
    after = get(server)
    assert (after.made, after.state) == (2, "Healthy")
    assert after.serving is not None
    assert after.serving.number == 1
    assert after.error == stage.error
    other = server.request("PATCH", path, json={"access": {"port": 1}})
    assert "keeps its port" in other.data.decode()


def test_a_service_that_failed_can_be_started_again(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    stage.error = RunError(code="UserError", message="the disk was full")
    put(server)
    assert get(server).state == "Failed"
    stage.error = None
    assert server.request("POST", f"{YARD}/digits-service/restart").status == 200
    after = get(server)
    assert (after.state, after.error, after.failed) == ("Healthy", None, None)


def test_keys_and_tokens_are_the_owners(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server, access={"auth": "token"}, primary_key="one", secondary_key="two")
    path = f"{YARD}/digits-service"
    keys = msgspec.json.decode(server.request("GET", f"{path}/keys").data)
    assert keys == {"primary": "one", "secondary": "two"}
    changed = server.request("POST", f"{path}/keys/secondary", json={"key": "three"})
    assert msgspec.json.decode(changed.data)["secondary"] == "three"
    assert server.request("POST", f"{path}/keys/third", json={}).status in (400, 422)
    made = msgspec.json.decode(server.request("POST", f"{path}/token").data)
    record = services.list_services(server.store, None)[0]
    known = services.open_secrets(record, server.platform.secret)
    assert token_holds(known["tokens"], "digits-service", made["token"].encode(), time.time())
    run = server.make_run()
    for token in (server.ticket(), server.run_token(run.id)):
        assert server.request("GET", f"{path}/keys", token=token).status == 403
        assert server.request("POST", f"{path}/token", token=token).status == 403


def test_overwriting_keeps_the_keys_unless_new_ones_are_given(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server, primary_key="one", secondary_key="two")
    put(server, overwrite=True)
    path = f"{YARD}/digits-service/keys"
    assert msgspec.json.decode(server.request("GET", path).data)["primary"] == "one"
    put(server, overwrite=True, primary_key="new")
    after = msgspec.json.decode(server.request("GET", path).data)
    assert after == {"primary": "new", "secondary": "two"}


def test_a_workspace_with_a_service_is_not_deleted(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    server.request("POST", "/api/v1/workspaces", json={"name": "other"})
    workspace = runs.load_workspace(server.store, "other")
    record = services.list_services(server.store, None)
    assert record == []
    made = put(server)
    moved = msgspec.structs.replace(
        made, id=services.service_id(workspace, "digits-service"), workspace="other"
    )
    server.store.records.insert(msgspec.structs.replace(moved, version=0))
    refused = server.request("DELETE", "/api/v1/workspaces/other")
    assert refused.status == 409
    assert "digits-service" in refused.data.decode()


def test_a_model_that_is_served_is_not_deleted(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server)
    refused = server.request("DELETE", f"/api/v1/models/{model.id}")
    assert refused.status == 409
    assert "digits-service" in refused.data.decode()


# ---- pages -----------------------------------------------------------------------------------


@pytest.fixture
def echo(server: LiveServer) -> Iterator[int]:
    """The port of something that answers as a service would."""

    class Echo(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(b"got " + data)

        def do_GET(self) -> None:
            self._answer(b'{"definitions": {"ServiceInput": {"example": {"data": [[1.5]]}}}}')

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    listening = http.server.HTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    yield listening.server_address[1]
    listening.shutdown()
    thread.join()
    listening.server_close()


def at(server: LiveServer, port: int) -> None:
    record = services.list_services(server.store, None)[0]
    server.store.records.replace(msgspec.structs.replace(record, port=port))


def page(server: LiveServer, path: str) -> str:
    answer = server.request("GET", path)
    assert answer.status == 200, answer.data
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return answer.data.decode()


def test_the_page_of_a_service_says_everything_and_tries_it(
    server: LiveServer, stage: Stage, model: ModelRecord, echo: int
) -> None:
    put(server, tags={"stage": "production"})
    at(server, echo)
    text = page(server, "/services/yard/digits-service")
    label = f"digits:{model.number}"
    for word in ("Healthy", "production", "sklearn", label, f":{echo}/score", "[[1.5]]"):
        assert word in text
    assert "http-equiv" not in text
    tried = page(server, f"/services/yard/digits-service?body={quote(HOSTILE)}")
    assert "Status 200" in tried
    assert "got &lt;script&gt;" in tried
    assert HOSTILE not in tried


def test_a_service_with_keys_is_not_tried_by_whoever_sees_its_page(
    server: LiveServer, stage: Stage, model: ModelRecord, echo: int
) -> None:
    put(server, access={"auth": "key"})
    at(server, echo)
    text = page(server, "/services/yard/digits-service?body=hello")
    assert "got hello" not in text
    assert "Authorization: Bearer" in text


def test_the_pages_show_why_a_service_failed_and_run_nothing(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    stage.error = RunError(code="UserError", message=HOSTILE, traceback=f"Traceback\n{HOSTILE}")
    put(server, description=HOSTILE, tags={HOSTILE: HOSTILE})
    spec = RunSpec(workspace="yard", experiment="services", id="workers-1")
    server.store.records.insert(runs.new_run(spec, datetime.now(UTC)))
    server.store.streams.append_log("workers-1", "logs/a.txt", 0, HOSTILE.encode())
    for path in ("/services", "/services?workspace=yard", "/services/yard/digits-service"):
        text = page(server, path)
        assert HOSTILE not in text
        assert "Failed" in text
        assert "&lt;script&gt;" in text
    assert text.count("&lt;script&gt;") >= 5
    assert "digits-service" not in page(server, "/services?workspace=other")


def test_the_page_of_a_service_that_comes_up_looks_again_by_itself(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    stage.held = True
    put(server)
    text = page(server, "/services/yard/digits-service")
    assert 'http-equiv="refresh"' in text
    assert "its workers are about to start" in text


def test_pages_need_a_ticket_for_everything(
    server: LiveServer, stage: Stage, model: ModelRecord
) -> None:
    put(server)
    path = "/services/yard/digits-service"
    run = server.make_run()
    for page_path in ("/services", path):
        assert server.request("GET", page_path, token=None).status == 401
        assert server.request("GET", page_path, token=server.ticket()).status == 200
        ticket = server.ticket(run_id=run.id)
        assert server.request("GET", page_path, token=ticket).status in (401, 403)
    moved = server.request("GET", f"{path}?ticket={server.ticket()}", token=None)
    assert moved.status == 303
    assert moved.headers["Location"] == path
