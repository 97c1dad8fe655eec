"""Compute targets over HTTP: attaching clusters, and what is shown of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.domain.compute import ComputeRecord, EngineRef, NodeResources
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import EngineFailed, Unsupported
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.states import RunState

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

COMPUTES = "/api/v1/workspaces/yard/computes"
TOKEN = "a-token-of-the-cluster"


def test_an_attached_cluster_is_shown_without_its_token(server: LiveServer) -> None:
    spec = {
        "kind": "ray",
        "options": {"address": "http://127.0.0.1:8265"},
        "secrets": {"token": TOKEN},
        "resources": {"cores": 2},
    }
    made = server.request("POST", f"{COMPUTES}/shown/attach", json=spec)
    assert made.status == 200
    seen = [
        made.data,
        server.request("GET", COMPUTES).data,
        server.request("GET", f"{COMPUTES}/shown").data,
        server.request("PATCH", f"{COMPUTES}/shown", json={"max_nodes": 3}).data,
    ]
    kept = server.store.records.get(ComputeRecord, msgspec.json.decode(made.data)["id"])
    assert kept.engine is not None
    assert kept.engine.secret
    for answer in seen:
        assert TOKEN.encode() not in answer
        assert kept.engine.secret.encode() not in answer
    record = msgspec.json.decode(seen[-1], type=ComputeRecord)
    assert (record.attached, record.max_nodes, record.warnings) == (True, 3, ())


def test_a_cluster_elsewhere_cannot_report_to_a_server_that_listens_to_itself(
    server: LiveServer,
) -> None:
    spec = {"kind": "ray", "options": {"address": "http://head.example:8265"}}
    answer = server.request("POST", f"{COMPUTES}/far/attach", json=spec)
    record = msgspec.json.decode(answer.data, type=ComputeRecord)
    assert "RUNYARD_PUBLIC_URL" in record.warnings[0]


def test_a_cluster_that_does_not_take_jobs_is_not_attached(server: LiveServer) -> None:
    answer = server.request("POST", f"{COMPUTES}/bad/attach", json={"kind": "pbs"})
    assert answer.status != 200
    assert b"no engine 'pbs'" in answer.data
    assert server.request("GET", f"{COMPUTES}/bad").status == 404


def test_a_cluster_that_cannot_be_used_now_is_shown_with_the_reason(server: LiveServer) -> None:
    server.request("POST", f"{COMPUTES}/away/attach", json={"kind": "slurm", "options": {}})
    server.conductor.trouble = "Slurm's controller does not answer."
    answer = server.request("GET", f"{COMPUTES}/away")
    shown = msgspec.json.decode(answer.data, type=ComputeRecord)
    assert shown.warnings[-1].endswith("cannot be used now: Slurm's controller does not answer.")
    listed = msgspec.json.decode(server.request("GET", COMPUTES).data, type=list[ComputeRecord])
    assert shown in listed
    server.conductor.trouble = ""
    again = msgspec.json.decode(server.request("GET", f"{COMPUTES}/away").data, type=ComputeRecord)
    assert again.warnings == shown.warnings[:-1]


def test_a_target_is_removed_by_force_with_its_unfinished_runs(server: LiveServer) -> None:
    server.request("POST", f"{COMPUTES}/dead/attach", json={"kind": "slurm", "options": {}})
    script = ScriptSpec(
        arguments=("train.py",), snapshot="", environment=EnvironmentSpec(name="e"), target="dead"
    )
    run = server.make_run(script=script)
    server.change(
        run.id, lambda one: msgspec.structs.replace(one, state=RunState.RUNNING, job="j-1")
    )
    refused = server.request("DELETE", f"{COMPUTES}/dead")
    assert refused.status == 409
    assert b"runyard compute rm --force dead" in refused.data
    assert server.request("DELETE", f"{COMPUTES}/dead?force=true").status == 200
    assert server.request("GET", f"{COMPUTES}/dead").status == 404
    ended = server.store.records.get(RunRecord, run.id)
    assert ended.state is RunState.CANCELED
    assert ended.error is not None
    assert ended.error.code == "GivenUp"
    assert run.id in server.conductor.woken


def test_a_cluster_can_be_asked_when_it_is_shown(server: LiveServer) -> None:
    server.request("POST", f"{COMPUTES}/asked/attach", json={"kind": "slurm", "options": {}})
    server.conductor.refusal = EngineFailed("The partition is down.")
    assert b"partition" not in server.request("GET", f"{COMPUTES}/asked").data
    for path in (f"{COMPUTES}/asked?ask=true", f"{COMPUTES}?ask=true"):
        assert b"cannot be used now: The partition is down." in server.request("GET", path).data
    server.conductor.refusal = None


def test_a_plain_target_is_made_if_its_cluster_has_such_nodes(
    cluster_server: LiveServer,
) -> None:
    server = cluster_server
    server.conductor.refusal = Unsupported("No node has so much.")
    spec = {"vm_size": "STANDARD_NC6", "max_nodes": 2}
    refused = server.request("PUT", f"{COMPUTES}/aml", json=spec)
    assert b"No node has so much" in refused.data
    assert b"RUNYARD_COMPUTE_OPTIONS" in refused.data
    assert server.request("GET", f"{COMPUTES}/aml").status == 404
    assert server.conductor.asked == [NodeResources(cores=6, memory_gb=56, gpus=1)]
    server.conductor.refusal = None
    made = server.request("PUT", f"{COMPUTES}/aml", json=spec)
    record = msgspec.json.decode(made.data, type=ComputeRecord)
    assert record.engine == EngineRef(kind="slurm", options={"partition": "gpu"})
    assert "RUNYARD_PUBLIC_URL" in record.warnings[0]
