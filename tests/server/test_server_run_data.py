"""What runs read and write: checked at submit, the same for all nodes, registered at the end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.conductor import data, runs
from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.data import DatasetRecord, ResolvedData
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import ErrorBody
from runyard.domain.files import manifest_digest
from runyard.domain.runs import RunPage, RunRecord
from runyard.domain.states import RunState
from runyard_runtime import wire

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

YARD = "/api/v1/workspaces/yard"


def dataset(server: LiveServer, path: str, name: str = "", **more: object) -> DatasetRecord:
    source = {"type": "datastore", "datastore": "workspaceblobstore", "path": path}
    body = {"name": name, "spec": {"sources": [source], **more}, "create_new_version": True}
    answer = server.request("POST", f"{YARD}/datasets", json=body)
    return msgspec.json.decode(answer.data, type=DatasetRecord)


def keep(server: LiveServer, *files: str) -> None:
    entries = [[path, server.keep(path.encode()), len(path)] for path in files]
    path = f"{YARD}/datastores/workspaceblobstore/files"
    assert server.request("POST", path, json=entries).status == 200


def submit(server: LiveServer, inputs: list[Any] = (), outputs: list[Any] = ()) -> Any:  # type: ignore[assignment]
    script = {
        "arguments": ["train.py"],
        "snapshot": manifest_digest(()),
        "environment": EnvironmentSpec(name="e"),
        "inputs": inputs,
        "outputs": outputs,
    }
    spec = {"workspace": "yard", "experiment": "data", "script": script}
    answer = server.request("POST", "/api/v1/runs", json={"spec": spec, "manifest": []})
    kind = RunRecord if answer.status == 200 else ErrorBody
    return msgspec.json.decode(answer.data, type=kind)


def files_of(server: LiveServer, run: RunRecord, name: str) -> list[str]:
    answer = server.request("GET", f"/api/v1/runs/{run.id}/inputs/{name}")
    assert answer.status == 200, answer.data
    return [file.path for file in msgspec.json.decode(answer.data, type=ResolvedData).files]


def finish(server: LiveServer, run: RunRecord, exit_code: int = 0) -> RunRecord:
    def change(run: RunRecord) -> RunRecord:
        return msgspec.structs.replace(run, state=RunState.RUNNING)

    runs.change(server.store, run.id, change)
    ended = (RankEnd(rank=0, exit_code=exit_code),)
    report = AgentReport(attempt=1, phase=wire.FINISHED, ranks=ended)
    for _ in range(2):  # agents repeat themselves
        runs.report(server.store, run.id, report, datetime.now(UTC))
    return server.store.records.get(RunRecord, run.id)


def test_all_nodes_and_restarts_see_the_same_files(server: LiveServer) -> None:
    keep(server, "same/1", "same/2")
    run = submit(server, [{"name": "x", "mode": "mount", "dataset": dataset(server, "same").id}])
    assert files_of(server, run, "x") == ["1", "2"]
    keep(server, "same/3")
    assert files_of(server, run, "x") == ["1", "2"]
    later = submit(server, [{"name": "x", "mode": "mount", "dataset": dataset(server, "same").id}])
    assert files_of(server, later, "x") == ["1", "2", "3"]
    answer = server.request("GET", f"/api/v1/runs/{run.id}/inputs/y")
    assert b"It has: x." in answer.data


def test_of_two_nodes_that_ask_at_once_the_second_gets_the_list_of_the_first(
    server: LiveServer,
) -> None:
    run = server.make_run()
    store = server.store

    def keep_list(found: bytes) -> bytes:
        # Both looked before either had kept anything.
        return data.keep_files(store, run, "x", found, lambda id, how: runs.change(store, id, how))

    assert keep_list(b'{"files":[]}') == b'{"files":[]}'
    assert keep_list(b'{"files":[["a",1,"blob:b"]]}') == b'{"files":[]}'


def test_a_reference_to_an_empty_datastore_is_an_empty_folder(server: LiveServer) -> None:
    def reference(path: str) -> dict[str, object]:
        source = {"type": "datastore", "datastore": "workspacefilestore", "path": path}
        return {"name": "ref", "mode": "mount", "source": source}

    assert files_of(server, submit(server, [reference("")]), "ref") == []
    run = submit(server, [reference("not/there")])
    assert server.request("GET", f"/api/v1/runs/{run.id}/inputs/ref").status == 404


def test_runs_are_found_by_the_dataset_they_read(server: LiveServer) -> None:
    keep(server, "line/1")
    used = dataset(server, "line", "lineage")
    inputs = [
        {"name": "a", "mode": "mount", "dataset": used.id},
        {"name": "b", "mode": "download", "dataset": used.id},
    ]
    run = submit(server, inputs)
    submit(server)
    key = f"runyard.dataset.{used.id}"
    assert msgspec.json.decode(run.properties[key]) == {
        "name": "lineage",
        "version": 1,
        "inputs": ["a", "b"],
    }
    page = msgspec.json.decode(
        server.request("GET", f"/api/v1/runs?property={key}").data, type=RunPage
    )
    assert [found.id for found in page.runs] == [run.id]


@pytest.mark.parametrize(
    ("inputs", "outputs", "code"),
    [
        ([{"name": "x", "mode": "mount", "dataset": "no-such-id"}], [], "not_found"),
        ([{"name": "path", "mode": "mount", "dataset": "ID"}], [], "invalid"),
        ([{"name": "x", "mode": "mount", "dataset": "ID"}] * 2, [], "invalid"),
        ([{"name": "x", "mode": "mount", "dataset": "TABLE"}], [], "invalid"),
        (
            [
                {
                    "name": "x",
                    "mode": "mount",
                    "source": {"type": "datastore", "datastore": "no", "path": "y"},
                }
            ],
            [],
            "not_found",
        ),
        (
            [
                {
                    "name": "x",
                    "mode": "mount",
                    "source": {
                        "type": "datastore",
                        "datastore": "workspaceblobstore",
                        "path": "../y",
                    },
                }
            ],
            [],
            "invalid",
        ),
        ([], [{"name": "o", "datastore": "no", "path": "y"}], "not_found"),
        ([], [{"name": "o", "datastore": "workspaceblobstore", "path": "../y"}], "invalid"),
    ],
)
def test_a_run_that_could_not_read_or_write_is_refused(
    server: LiveServer, inputs: list[dict[str, str]], outputs: list[Any], code: str
) -> None:
    keep(server, "fine/1")
    ids = {
        "ID": dataset(server, "fine").id,
        "TABLE": dataset(server, "fine", kind="tabular", reader="delimited").id,
    }
    named = [
        {**one, "dataset": ids.get(one["dataset"], one["dataset"])} if "dataset" in one else one
        for one in inputs
    ]
    refusal = submit(server, named, outputs)
    assert isinstance(refusal, ErrorBody)
    assert refusal.code == code


def test_outputs_are_registered_when_the_run_has_completed_and_once(server: LiveServer) -> None:
    output = {
        "name": "model",
        "datastore": "workspaceblobstore",
        "path": "results/{run-id}/{output-name}",
        "register_as": "models",
        "tags": {"by": "test"},
    }
    plain = {"name": "other", "datastore": "workspaceblobstore", "path": "x"}
    run = submit(server, outputs=[output, plain])
    after = finish(server, run)
    assert after.state is RunState.COMPLETED
    answer = server.request("GET", f"{YARD}/datasets?name=models")
    (found,) = msgspec.json.decode(answer.data, type=list[DatasetRecord])
    (source,) = found.spec.sources
    assert getattr(source, "path", "") == f"results/{run.id}/model"
    assert (found.number, found.tags) == (1, {"by": "test"})
    words = msgspec.json.decode(after.properties[f"runyard.output_dataset.{found.id}"])
    assert words == {"name": "models", "version": 1, "output": "model"}


def test_a_failed_run_registers_nothing(server: LiveServer) -> None:
    output = {"name": "o", "datastore": "workspaceblobstore", "path": "p", "register_as": "failed"}
    assert finish(server, submit(server, outputs=[output]), 1).state is RunState.FAILED
    assert server.request("GET", f"{YARD}/datasets?name=failed").data == b"[]"


def test_an_output_that_cannot_be_registered_is_a_warning(server: LiveServer) -> None:
    spec = {"name": "brief", "url": "memory://brief"}
    server.request("PUT", f"{YARD}/datastores/brief", json=spec)
    output = {"name": "o", "datastore": "brief", "path": "p", "register_as": "lost"}
    run = submit(server, outputs=[output])
    server.request("DELETE", f"{YARD}/datastores/brief")
    after = finish(server, run)
    assert after.state is RunState.COMPLETED
    assert "was not registered" in after.warnings[0]
