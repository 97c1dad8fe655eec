"""Clusters as v1 code uses them, over a real server."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import (
    AksCompute,
    AmlCompute,
    ComputeInstance,
    ComputeTarget,
    DatabricksCompute,
    RemoteCompute,
)
from azureml.core.compute_target import ComputeTargetException
from azureml.core.runconfig import RunConfiguration
from azureml.exceptions import UserErrorException
from runyard.cli import commands

# The machine of the tests is smaller than what they ask for; one test looks at the words.
pytestmark = pytest.mark.filterwarnings("ignore:.*share this machine")

STATUS_KEYS = {
    "currentNodeCount",
    "targetNodeCount",
    "nodeStateCounts",
    "allocationState",
    "allocationStateTransitionTime",
    "errors",
    "creationTime",
    "modifiedTime",
    "provisioningState",
    "provisioningStateTransitionTime",
    "scaleSettings",
    "vmPriority",
    "vmSize",
}

SCRIPT = """
import os
for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
    print(name, os.environ.get(name, "not set"))
"""


def until(check: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_the_pages_block_gets_or_creates_the_cluster(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ("Creating a new compute target...", "Found existing compute target"):
        # choose a name for your cluster
        cluster_name = "gpu-cluster"

        try:
            compute_target = ComputeTarget(workspace=ws, name=cluster_name)
            print("Found existing compute target")
        except ComputeTargetException:
            print("Creating a new compute target...")
            compute_config = AmlCompute.provisioning_configuration(
                vm_size="STANDARD_NC6", max_nodes=4
            )

            # create the cluster
            compute_target = ComputeTarget.create(ws, cluster_name, compute_config)

            compute_target.wait_for_completion(
                show_output=True, min_node_count=None, timeout_in_minutes=20
            )

        assert isinstance(compute_target, AmlCompute)
        # use get_status() to get a detailed status for the current cluster.
        print(compute_target.get_status().serialize())
        assert words in capsys.readouterr().out
        assert compute_target.provisioning_state == "Succeeded"
        assert compute_target.type == "AmlCompute"
    assert isinstance(compute_target, AmlCompute)
    assert set(compute_target.get_status().serialize()) == STATUS_KEYS


def test_waiting_prints_v1s_words(ws: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    config = AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=2)
    target = ComputeTarget.create(ws, "quick", config)
    target.wait_for_completion(show_output=True)
    assert capsys.readouterr().out == (
        "Succeeded\nAmlCompute wait for completion finished\n\n"
        "Minimum number of nodes requested have been provisioned\n"
    )
    target.wait_for_completion(show_output=True, min_node_count=1, timeout_in_minutes=0)
    assert capsys.readouterr().out == (
        "Succeeded\nAmlCompute wait for completion finished\n\nWait timeout has been reached\n"
        'Current provisioning state of AmlCompute is "Succeeded" and current node count is "0"\n'
    )
    target.wait_for_completion()
    assert capsys.readouterr().out == ""


def test_a_run_on_a_cluster_is_kept_to_its_nodes_share(ws: Workspace) -> None:
    Path("train.py").write_text(SCRIPT)
    config = AmlCompute.provisioning_configuration(
        "STANDARD_D2_V2", max_nodes=1, idle_seconds_before_scaledown="300"
    )
    target = ComputeTarget.create(ws, "kept", config)
    assert target.scale_settings.idle_seconds_before_scaledown == 300
    run = Experiment(ws, "on-a-cluster").submit(
        ScriptRunConfig(".", "train.py", compute_target=target)
    )
    run.wait_for_completion()
    run.download_file("azureml-logs/70_driver_log.txt", "log.txt")
    log = Path("log.txt").read_text()
    assert "OMP_NUM_THREADS not set" not in log
    assert "CUDA_VISIBLE_DEVICES \n" in log, "a size without GPUs sees none"
    assert run.properties["_azureml.ComputeTargetType"] == "amlcompute"
    assert run.get_details()["target"] == "kept"
    until(lambda: target.get_status().node_state_counts.idle_node_count == 1)
    assert target.status.node_state_counts.running_node_count == 0
    (node,) = target.list_nodes()
    assert (node["nodeId"], node["nodeState"], node["runId"]) == ("kept-1", "idle", None)


def test_targets_are_given_as_objects_or_names(ws: Workspace) -> None:
    target = ComputeTarget.create(
        ws, "named", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1)
    )
    config = RunConfiguration()
    assert config.target == "local"
    config.target = target
    assert config.target == "named"
    config.target = "named"
    assert ScriptRunConfig(".", "x.py", run_config=config).run_config.target == "named"
    with pytest.raises(UserErrorException, match="is not a compute target"):
        config.target = 3


def test_an_unknown_target_names_those_there_are(ws: Workspace) -> None:
    Path("train.py").write_text("pass")
    ComputeTarget.create(
        ws, "known", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1)
    )
    with pytest.raises(ComputeTargetException, match=r"ComputeTargetNotFound.*\n.*local.*known"):
        ComputeTarget(ws, "unknown")
    with pytest.raises(UserErrorException, match=r"does not exist.*\n.*local.*known"):
        Experiment(ws, "e").submit(ScriptRunConfig(".", "train.py", compute_target="unknown"))


def test_active_runs_are_those_of_the_cluster_and_keep_it_from_being_deleted(
    ws: Workspace,
) -> None:
    Path("train.py").write_text("import time; time.sleep(60)")
    target = ComputeTarget.create(
        ws, "busy", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1)
    )
    experiment = Experiment(ws, "two-of-them")
    first = experiment.submit(ScriptRunConfig(".", "train.py", compute_target=target))
    second = experiment.submit(ScriptRunConfig(".", "train.py", compute_target=target))
    assert {run.id for run in target.get_active_runs()} == {first.id, second.id}
    until(lambda: "waits for 1 node of 'busy'" in str(second.get_detailed_status()))
    with pytest.raises(ComputeTargetException, match="is in use"):
        target.delete()
    second.cancel()
    first.cancel()
    first.wait_for_completion(raise_on_error=False)
    assert list(target.get_active_runs()) == []
    target.delete()
    target.wait_for_completion(is_delete_operation=True)
    assert "busy" not in ws.compute_targets


def test_scale_can_be_changed(ws: Workspace) -> None:
    target = ComputeTarget.create(
        ws, "scaled", AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=1)
    )
    target.update(min_nodes=2, max_nodes=3)
    target.wait_for_completion(timeout_in_minutes=1)
    status = target.get_status().serialize()
    assert status["currentNodeCount"] == 2
    assert status["scaleSettings"] == {
        "minNodeCount": 2,
        "maxNodeCount": 3,
        "nodeIdleTimeBeforeScaleDown": "PT1800S",
    }
    with pytest.raises(ComputeTargetException, match="max nodes count"):
        target.update(max_nodes=1)
    target.update(min_nodes=0)


def test_the_workspace_lists_its_clusters(ws: Workspace) -> None:
    for name, size in (("a-cpu", "STANDARD_D2_V2"), ("a-gpu", "Standard_NC6")):
        config = AmlCompute.provisioning_configuration(size, "lowpriority", max_nodes=1)
        ComputeTarget.create(ws, name, config)
    targets = ws.compute_targets
    found = targets["a-gpu"]
    assert isinstance(found, AmlCompute)
    assert found.vm_size == "STANDARD_NC6"
    assert found.vm_priority == "lowpriority"
    assert {target.name for target in ComputeTarget.list(ws)} == set(targets)
    gpu = ws.get_default_compute_target("GPU")
    assert isinstance(gpu, AmlCompute)
    assert "NC6" in gpu.vm_size
    sizes = {size["name"]: size for size in AmlCompute.supported_vmsizes(workspace=ws)}
    assert sizes["STANDARD_NC6"]["gpus"] == 1


def test_a_small_machine_is_said_once_where_the_cluster_is_made(ws: Workspace) -> None:
    config = AmlCompute.provisioning_configuration("STANDARD_ND96ASR_V4", max_nodes=4)
    with pytest.warns(UserWarning, match="4 nodes of STANDARD_ND96ASR_V4 .* share this machine"):
        ComputeTarget.create(ws, "huge", config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ComputeTarget(ws, "huge").wait_for_completion()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "max nodes count is mandatory"),
        ({"max_nodes": -1}, "greater than or equal to 0"),
        ({"max_nodes": 1, "min_nodes": 2}, "equal to min nodes count"),
        ({"max_nodes": "many"}, "whole number"),
        ({"max_nodes": 1, "vm_priority": "cheap"}, "'dedicated' or 'lowpriority'"),
        ({"max_nodes": 1, "vnet_name": "net"}, "not all virtual net information"),
        ({"max_nodes": 1, "admin_username": "me"}, "no password or key"),
        ({"max_nodes": 1, "admin_user_ssh_key": "k"}, "admin username must be provided"),
        (
            {"max_nodes": 1, "admin_username": "me", "admin_user_password": "simple"},
            "must have 3 of the following",
        ),
        ({"max_nodes": 1, "identity_type": "Mine"}, "identity_type must be set"),
        ({"max_nodes": 1, "identity_id": ["x"]}, "identity_id cannot be set"),
    ],
)
def test_wrong_settings_are_refused_where_v1_refused_them(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ComputeTargetException, match=words):
        AmlCompute.provisioning_configuration(**settings)


def test_an_unknown_size_and_reserved_names_are_refused(ws: Workspace) -> None:
    config = AmlCompute.provisioning_configuration("STANDARD_NC7", max_nodes=1)
    with pytest.raises(ComputeTargetException, match="There is no VM size 'STANDARD_NC7'"):
        ComputeTarget.create(ws, "odd", config)
    good = AmlCompute.provisioning_configuration(max_nodes=1)
    with pytest.raises(UserErrorException, match="local is a reserved name"):
        ComputeTarget.create(ws, "local", good)


def test_a_kubernetes_cluster_is_a_name_to_deploy_to(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ComputeTargetException, match="ComputeTargetNotFound"):
        ComputeTarget(ws, "my-aks")
    asked = AksCompute.provisioning_configuration(
        agent_count=6, vm_size="Standard_F4s", cluster_purpose=AksCompute.ClusterPurpose.DEV_TEST
    )
    asked.vnet_name = "net"  # type: ignore[attr-defined]
    made = ComputeTarget.create(ws, "my-aks", asked)
    assert type(made) is AksCompute
    made.wait_for_completion(show_output=True)
    assert 'operation "Succeeded"' in capsys.readouterr().out
    found = ComputeTarget(ws, "my-aks")
    assert type(found) is AksCompute
    assert (found.type, found.provisioning_state, found.provisioning_errors) == (
        "AKS",
        "Succeeded",
        None,
    )
    assert (found.agent_count, found.agent_vm_size) == (6, "STANDARD_F4S")
    assert (found.cluster_purpose, found.vnet_name, found.subnet_name) == ("DevTest", "net", None)
    default = ws.get_default_compute_target("CPU")
    assert default is None or default.name != "my-aks"
    with pytest.raises(ComputeTargetException, match="it is of type AKS"):
        AmlCompute(ws, "my-aks")
    with pytest.raises(UserErrorException, match="get_credentials"):
        found.get_credentials()
    found.delete()
    assert "my-aks" not in ws.compute_targets


def test_a_kubernetes_cluster_that_exists_is_attached_as_a_name(ws: Workspace) -> None:
    with pytest.raises(ComputeTargetException, match="Give its resource_id"):
        AksCompute.attach_configuration(resource_group="rg")
    config = AksCompute.attach_configuration(resource_group="rg", cluster_name="theirs")
    attached = ComputeTarget.attach(ws, "theirs", config)
    assert type(attached) is AksCompute
    attached.detach()
    assert "theirs" not in ws.compute_targets


def test_a_compute_instance_is_a_target_of_one_node(ws: Workspace) -> None:
    config = ComputeInstance.provisioning_configuration(
        vm_size="STANDARD_D3_V2", ssh_public_access=False, tags={"team": "a"}
    )
    instance = ComputeInstance.create(ws, "desk", config)
    instance.wait_for_completion(show_output=True)
    found = ComputeInstance(ws, "desk")
    assert (found.type, found.vm_size, found.tags) == (
        "ComputeInstance",
        "STANDARD_D3_V2",
        {"team": "a"},
    )
    assert found._record.max_nodes == 1
    assert found.get_status().state == "Running"
    assert found.get_status().serialize()["provisioningState"] == "Succeeded"
    for change in (found.stop, found.start, found.restart):
        change(wait_for_completion=True, show_output=True)
    with pytest.raises(ComputeTargetException, match="is no AksCompute"):
        AksCompute(ws, "desk")
    found.delete(wait_for_completion=True, show_output=True)


@pytest.mark.parametrize("kind", [RemoteCompute, DatabricksCompute])
def test_targets_that_are_not_here_say_so_when_they_are_used(
    ws: Workspace, kind: type[ComputeTarget]
) -> None:
    for use in ("provisioning_configuration", "attach_configuration"):
        with pytest.raises(ComputeTargetException, match=f"{kind.__name__} is not supported"):
            getattr(kind, use)()
    with pytest.raises(ComputeTargetException, match="is not supported"):
        kind(ws, "one")
    with pytest.raises(ComputeTargetException, match="cannot be attached"):
        ComputeTarget.attach(ws, "one", object())


def test_the_command_line_makes_shows_and_removes_clusters(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    ws.write_config(".")

    def runyard(*words: str) -> str:
        code = commands.run(["compute", *words])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return shown.out

    assert "STANDARD_D2_V2: 2 cores" in runyard("create", "typed", "--size", "STANDARD_D2_V2")
    assert "typed" in runyard("ls")
    runyard("update", "typed", "--min-nodes", "1")
    AmlCompute(ws, "typed").wait_for_completion(timeout_in_minutes=1)
    assert "typed-1" in runyard("nodes", "typed")
    assert '"name": "typed"' in runyard("show", "typed", "--json")
    assert "removed typed" in runyard("rm", "typed")
    assert "typed" not in ws.compute_targets
