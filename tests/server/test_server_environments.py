"""Routes of environments: the registry, builds on demand, and what may be removed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.domain.environments import (
    EnvironmentBuild,
    EnvironmentDraft,
    EnvironmentOnDisk,
    EnvironmentRecord,
    EnvironmentSpec,
    EnvironmentUse,
)
from runyard.domain.errors import EngineFailed, ErrorBody
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.states import RunState

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import LiveServer

YARD = "/api/v1/workspaces/yard/environments"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def register(server: LiveServer, name: str, *pip: str) -> EnvironmentRecord:
    draft = EnvironmentDraft(spec=EnvironmentSpec(name=name, pip=pip), definition={"name": name})
    answer = server.request("POST", YARD, json=draft)
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=EnvironmentRecord)


def get(server: LiveServer, path: str) -> EnvironmentRecord:
    answer = server.request("GET", f"{YARD}/{path}")
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=EnvironmentRecord)


def refused(server: LiveServer, verb: str, path: str, json: object = None) -> ErrorBody:
    answer = server.request(verb, path, json=json)
    assert answer.status >= 400
    return msgspec.json.decode(answer.data, type=ErrorBody)


def test_versions_count_from_1_and_the_same_again_is_the_same_version(server: LiveServer) -> None:
    assert register(server, "counted", "six==1.16").spec.version == "1"
    assert register(server, "counted", "six==1.16").spec.version == "1"
    assert register(server, "counted", "six==1.17").spec.version == "2"
    assert register(server, "counted", "six==1.16").spec.version == "3"
    assert get(server, "counted").spec.version == "3"
    assert get(server, "counted?label=latest").spec.version == "3"
    assert get(server, "counted?version=2").spec.pip == ("six==1.17",)


def test_ten_who_register_at_once_get_ten_versions(server: LiveServer) -> None:
    with ThreadPoolExecutor(10) as pool:
        made = pool.map(lambda n: register(server, "crowded", f"six=={n}"), range(10))
    assert sorted(int(one.spec.version or 0) for one in made) == list(range(1, 11))


def test_a_label_belongs_to_one_version(server: LiveServer) -> None:
    for pin in ("six==1.15", "six==1.16"):
        register(server, "labelled", pin)
    for version in ("1", "2"):
        answer = server.request("PUT", f"{YARD}/labelled/versions/{version}/labels", json=["good"])
        assert answer.status == 200
        assert get(server, "labelled?label=good").spec.version == version
    assert get(server, "labelled?version=1").labels == ()
    error = refused(server, "PUT", f"{YARD}/labelled/versions/1/labels", ["latest"])
    assert "latest" in error.what


@pytest.mark.parametrize("name", ["AzureML-Mine", "Microsoft.x", "../up", "a/b", "", ".hidden"])
def test_reserved_and_impossible_names_are_refused(server: LiveServer, name: str) -> None:
    error = refused(server, "POST", YARD, EnvironmentDraft(spec=EnvironmentSpec(name=name)))
    assert error.code == "invalid"
    assert error.fix


def test_what_is_not_there_names_what_is(server: LiveServer) -> None:
    register(server, "present")
    assert "present" in refused(server, "GET", f"{YARD}/presnet").why
    assert "It has: 1." in refused(server, "GET", f"{YARD}/present?version=9").why
    assert refused(server, "GET", f"{YARD}/present?label=gone").code == "not_found"
    assert refused(server, "GET", f"{YARD}/present?label=a&version=1").code == "invalid"


def test_curated_ones_are_in_every_workspace(server: LiveServer) -> None:
    record = get(server, "AzureML-TensorFlow-2.2-GPU")
    assert record.curated
    assert "tensorflow-gpu==2.2.0" in record.spec.pip
    register(server, "listed")
    answer = server.request("GET", YARD)
    names = [one.name for one in msgspec.json.decode(answer.data, type=list[EnvironmentRecord])]
    assert {"listed", "AzureML-Minimal"} <= set(names)
    assert len(set(names)) == len(names)


def test_passwords_of_private_indexes_are_for_the_owner_alone(server: LiveServer) -> None:
    register(server, "private", "--extra-index-url https://me:secret@host/simple", "six")
    token = server.run_token(server.make_run().id)
    for path in (YARD, f"{YARD}/private", f"{YARD}/private/versions"):
        assert b"secret" in server.request("GET", path).data
        assert b"secret" not in server.request("GET", path, token=token).data


def build(server: LiveServer, name: str) -> EnvironmentBuild:
    answer = server.request("POST", "/api/v1/environments/builds", json=EnvironmentSpec(name=name))
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=EnvironmentBuild)


def look(server: LiveServer, state: EnvironmentBuild) -> EnvironmentBuild:
    path = f"/api/v1/environments/builds/{state.id}?offset={state.offset}"
    return msgspec.json.decode(server.request("GET", path).data, type=EnvironmentBuild)


def finished(server: LiveServer, state: EnvironmentBuild) -> tuple[EnvironmentBuild, str]:
    text, deadline = state.log, time.monotonic() + 10
    while not state.done:
        assert time.monotonic() < deadline
        state = look(server, state)
        text += state.log
    return state, text


def test_a_build_is_followed_to_its_end(own_server: LiveServer) -> None:
    own_server.builder.slow.add("slow")
    first, second = build(own_server, "slow"), build(own_server, "slow")
    assert not first.done
    assert first.id == second.id
    own_server.builder.finish.set()
    state, text = finished(own_server, first)
    assert state.environment is not None
    assert text == "building slow\nbuilt\n"
    assert own_server.builder.builds == 1, "who asked meanwhile joined"


def test_a_build_that_fails_says_why(own_server: LiveServer) -> None:
    own_server.builder.slow.add("bad")
    own_server.builder.error = EngineFailed("No such package.", fix="Spell it right.")
    own_server.builder.finish.set()
    state, _ = finished(own_server, build(own_server, "bad"))
    assert state.environment is None
    assert "Spell it right." in state.error


def test_a_build_nobody_asked_for_is_not_there(server: LiveServer) -> None:
    assert refused(server, "GET", "/api/v1/environments/builds/none").code == "not_found"


def keep(server: LiveServer, key: str, *, days_ago: float) -> Path:
    """A folder that counts as a built environment."""
    folder = server.settings.home / "environments" / key
    (folder / "bin").mkdir(parents=True)
    (folder / "runyard.json").write_text('{"python": "3.11.7", "lock": [], "size_bytes": 1000}')
    (folder / "last-used").touch()
    then = time.time() - days_ago * 86400
    os.utime(folder / "last-used", (then, then))
    return folder


def use(server: LiveServer, key: str, state: RunState) -> RunRecord:
    """A run whose environment has that key."""
    script = ScriptSpec(
        arguments=("train.py",), snapshot=EMPTY, environment=EnvironmentSpec(name=key)
    )
    run = server.make_run(script=script)
    with_key = EnvironmentUse(key=key, interpreter="/x", python="3.11.7")
    return server.change(
        run.id, lambda now: msgspec.structs.replace(now, environment=with_key, state=state)
    )


def evict(server: LiveServer, **wanted: object) -> list[str]:
    answer = server.request("POST", "/api/v1/environments/evict", json=wanted)
    assert answer.status == 200, answer.data
    return [one.key for one in msgspec.json.decode(answer.data, type=list[EnvironmentOnDisk])]


def test_eviction_spares_what_unfinished_runs_use(own_server: LiveServer) -> None:
    folders = {
        key: keep(own_server, key, days_ago=90)
        for key in ("running", "queued", "preparing", "completed", "nobody")
    }
    fresh = keep(own_server, "fresh", days_ago=0)
    run = use(own_server, "running", RunState.RUNNING)
    use(own_server, "queued", RunState.QUEUED)
    use(own_server, "completed", RunState.COMPLETED)
    waiting = use(own_server, "preparing", RunState.PREPARING)
    own_server.change(waiting.id, lambda now: msgspec.structs.replace(now, environment=None))

    listed = own_server.request("GET", "/api/v1/environments")
    shelf = {one.key: one for one in msgspec.json.decode(listed.data, type=list[EnvironmentOnDisk])}
    assert shelf["running"].runs == (run.id,)
    assert shelf["running"].size_bytes == 1000
    assert (datetime.now(UTC) - shelf["nobody"].last_used).days == 90

    assert evict(own_server, keep_days=30, dry_run=True) == ["completed", "nobody"]
    assert all(folder.exists() for folder in folders.values())
    assert sorted(evict(own_server, max_gb=0)) == ["completed", "nobody"]
    gone = {key for key, folder in folders.items() if not folder.exists()}
    assert gone == {"completed", "nobody"}
    assert fresh.exists()
    assert evict(own_server, keep_days=30) == []


@pytest.mark.parametrize("wanted", [{}, {"keep_days": -1}, {"max_gb": -1}, {"max_bg": 1}])
def test_an_eviction_without_a_measure_is_refused(
    server: LiveServer, wanted: dict[str, int]
) -> None:
    assert refused(server, "POST", "/api/v1/environments/evict", wanted).code == "invalid"
