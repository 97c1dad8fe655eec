"""Compute targets over HTTP: attaching clusters, and what is shown of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from runyard.domain.compute import ComputeRecord

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
