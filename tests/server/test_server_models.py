"""Models through the API and on the pages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import ErrorBody
from runyard.domain.models import ModelLineage, ModelPage, ModelRecord
from runyard.domain.services import Revision, ServiceRecord, ServiceSpec

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

MODELS = "/api/v1/models"


def ask(server: LiveServer, verb: str, path: str, kind: Any, json: object = None) -> Any:
    answer = server.request(verb, path, json=json)
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=kind)


def refused(server: LiveServer, verb: str, path: str, json: object = None) -> ErrorBody:
    answer = server.request(verb, path, json=json)
    assert answer.status >= 400, answer.data
    return msgspec.json.decode(answer.data, type=ErrorBody)


def draft(server: LiveServer, name: str, **more: object) -> dict[str, object]:
    rows = [["model.pkl", server.keep(b"weights"), 7]]
    return {"workspace": "yard", "name": name, "manifest": rows, **more}


def register(server: LiveServer, name: str, **more: object) -> ModelRecord:
    record = ask(server, "POST", MODELS, ModelRecord, draft(server, name, **more))
    assert isinstance(record, ModelRecord)
    return record


def test_a_model_goes_through_its_whole_life(server: LiveServer) -> None:
    made = register(server, "life", framework="onnx", tags={"stage": "new"}, properties={"p": "1"})
    assert (made.number, made.size, made.framework) == (1, 7, "Onnx")
    path = f"{MODELS}/{made.id}"
    assert ask(server, "GET", path, ModelRecord) == made
    data = server.request("GET", f"{path}/files/model.pkl")
    assert (data.status, data.data) == (200, b"weights")
    assert data.headers["content-disposition"].startswith("attachment")
    part = server.request("GET", f"{path}/files/model.pkl", headers={"Range": "bytes=2-3"})
    assert (part.status, part.data) == (206, b"ig")
    changed = ask(server, "PATCH", path, ModelRecord, {"set_tags": {"stage": "good"}})
    assert changed.tags == {"stage": "good"}
    assert ask(server, "GET", f"{path}/lineage", ModelLineage) == ModelLineage()
    assert ask(server, "DELETE", path, dict[str, object]) == {}
    assert refused(server, "GET", path).code == "not_found"
    assert register(server, "life").number == 2


def test_a_file_of_a_model_that_is_not_there(server: LiveServer) -> None:
    made = register(server, "files")
    error = refused(server, "GET", f"{MODELS}/{made.id}/files/other")
    assert (error.code, error.why) == ("not_found", "It has: model.pkl.")


def test_files_of_a_run_become_a_model_without_travelling(server: LiveServer) -> None:
    run = server.make_run()
    server.keep_file(run.id, "outputs/model/a b", b"1")
    server.keep_file(run.id, "outputs/model/ü", b"2")
    body = {"workspace": "yard", "name": "of-run", "run": run.id, "path": "outputs/model"}
    made = ask(server, "POST", MODELS, ModelRecord, body)
    assert [entry.path for entry in made.manifest] == ["model/a b", "model/ü"]
    file = server.request("GET", f"{MODELS}/{made.id}/files/{quote('model/ü')}")
    assert file.data == b"2"
    page = ask(server, "GET", f"{MODELS}?run={run.id}", ModelPage)
    assert [one.id for one in page.models] == [made.id]
    error = refused(server, "POST", MODELS, {**body, "path": "outputs/x"})
    assert error.code == "no_model_files"
    assert "outputs/model/a b" in error.why


def test_missing_contents_are_named(server: LiveServer) -> None:
    rows = [["m", "ab" * 32, 1]]
    error = refused(server, "POST", MODELS, {"workspace": "yard", "name": "m", "manifest": rows})
    assert (error.code, error.digests) == ("blobs_missing", ("ab" * 32,))


def test_lists_are_narrowed_by_the_query(server: LiveServer) -> None:
    first = register(server, "listed", tags={"q": "a=b"})
    second = register(server, "listed", framework="PyTorch", properties={"key": "v"})

    def numbers(query: str) -> list[int]:
        page = ask(server, "GET", f"{MODELS}?workspace=yard&name=listed{query}", ModelPage)
        return [one.number for one in page.models]

    assert numbers("") == [second.number, first.number]
    assert numbers("&latest=true") == [second.number]
    assert numbers("&number=1") == [1]
    assert numbers("&tag=q") == numbers("&tag=q%3Da%3Db") == [first.number]
    assert numbers("&property=key%3Dv&framework=pytorch") == [second.number]
    page = ask(server, "GET", f"{MODELS}?name=listed&limit=1", ModelPage)
    assert page.next is not None
    assert numbers(f"&after={page.next}") == [first.number]
    assert refused(server, "GET", f"{MODELS}?number=1").code == "invalid"
    assert refused(server, "GET", f"{MODELS}?nonsense=1").code == "invalid"


def test_two_who_register_the_same_name_at_once_get_two_versions(server: LiveServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: register(server, "race"), range(16)))
    assert sorted(one.number for one in made) == list(range(1, 17))


def test_jobs_register_in_their_workspace_and_remove_nothing(server: LiveServer) -> None:
    run = server.make_run()
    token = server.run_token(run.id)
    answer = server.request("POST", MODELS, json=draft(server, "by-job"), token=token)
    assert answer.status == 200
    made = msgspec.json.decode(answer.data, type=ModelRecord)
    path = f"{MODELS}/{made.id}"
    patch = {"set_tags": {"a": "b"}}
    assert server.request("PATCH", path, json=patch, token=token).status == 200
    assert server.request("DELETE", path, token=token).status == 403
    foreign = server.run_token(server.make_run(workspace="elsewhere").id)
    for verb, place, json in (
        ("POST", MODELS, draft(server, "by-job")),
        ("GET", path, None),
        ("GET", f"{path}/files/model.pkl", None),
        ("GET", f"{path}/lineage", None),
        ("PATCH", path, patch),
        ("GET", f"{MODELS}?workspace=yard", None),
    ):
        assert server.request(verb, place, json=json, token=foreign).status == 403, (verb, place)
    listed = server.request("GET", MODELS, token=foreign)
    assert msgspec.json.decode(listed.data, type=ModelPage).models == ()


def test_a_workspace_with_models_is_not_removed(server: LiveServer) -> None:
    ask(server, "POST", "/api/v1/workspaces", object, {"name": "full"})
    made = register(server, "m", workspace="full")
    error = refused(server, "DELETE", "/api/v1/workspaces/full")
    assert (error.code, error.why) == ("conflict", "It has the model 'm'.")
    ask(server, "DELETE", f"{MODELS}/{made.id}", object)
    ask(server, "DELETE", "/api/v1/workspaces/full", object)


def test_a_model_that_a_service_uses_stays(server: LiveServer) -> None:
    made = register(server, "served")
    spec = ServiceSpec(models=(made.id,), environment=EnvironmentSpec(name="env"))
    revision = Revision(number=1, spec=spec, created=made.created)
    service = server.store.records.insert(
        ServiceRecord(
            id="s",
            uid="s",
            workspace="yard",
            name="digits-api",
            created=made.created,
            modified=made.created,
            serving=revision,
        )
    )
    error = refused(server, "DELETE", f"{MODELS}/{made.id}")
    assert (error.code, error.why) == ("conflict", "Services that use it: digits-api.")
    server.store.records.delete(service)
    ask(server, "DELETE", f"{MODELS}/{made.id}", object)


def page_of(server: LiveServer, path: str) -> str:
    answer = server.request("GET", path)
    assert answer.status == 200, answer.data
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    return answer.data.decode()


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "'><svg/onload=alert(1)>"])
def test_pages_show_models_and_run_nothing_of_them(server: LiveServer, text: str) -> None:
    run = server.make_run()
    server.keep_file(run.id, f"outputs/m/{text}", b"1")
    body = {
        "workspace": "yard",
        "name": "shown",
        "run": run.id,
        "path": "outputs/m",
        "description": text,
        "tags": {text: text},
        "properties": {text: text},
        "framework": text,
        "framework_version": text,
        "resources": {"cpu": 2, "memory_gb": 0.5, "gpu": 0},
    }
    made = ask(server, "POST", MODELS, ModelRecord, body)
    for path in (f"/models/{made.id}", "/models?workspace=yard", "/models?name=shown"):
        html = page_of(server, path)
        assert text not in html
        assert f"shown:{made.number}" in html
        assert "alert(1)" in html  # shown, as text
    one = page_of(server, f"/models/{made.id}")
    assert "2 CPU" in one
    assert f'href="/runs/{run.id}"' in one
    assert f'href="/models/{made.id}"' in page_of(server, f"/runs/{run.id}")
    assert f'href="/models/{made.id}"' in page_of(server, f"/runs/{run.id}?part=live")


def test_the_list_shows_the_latest_and_leads_to_the_others(server: LiveServer) -> None:
    first, second = register(server, "several"), register(server, "several")
    html = page_of(server, "/models?workspace=yard")
    assert f"/models/{second.id}" in html
    assert f"/models/{first.id}" not in html
    assert "/models?workspace=yard&amp;name=several" in html
    versions = page_of(server, "/models?workspace=yard&name=several")
    assert f"/models/{first.id}" in versions
    assert "No models here yet" in page_of(server, "/models?name=nothing")
    assert server.request("GET", "/models/nothing").status == 404


def test_a_link_with_a_ticket_opens_the_pages_of_models(server: LiveServer) -> None:
    answer = server.request("GET", f"/models?ticket={server.ticket()}&name=x", token=None)
    assert (answer.status, answer.headers["location"]) == (303, "/models?name=x")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    made = register(server, "opened")
    for path in ("/models", f"/models/{made.id}", f"{MODELS}/{made.id}/files/model.pkl"):
        opened = server.request("GET", path, token=None, headers={"Cookie": cookie})
        assert opened.status == 200, path
