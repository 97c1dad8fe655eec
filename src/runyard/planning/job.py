"""What an agent is told: the plan document of `runyard_runtime.wire`. Pure."""

import msgspec

from runyard.domain.data import DataInput, DataOutput
from runyard.domain.files import Manifest
from runyard.domain.runs import RunRecord, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard_runtime import wire


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan needs to know of the server that makes it."""

    url: str
    address_file: str | None
    token: str
    agent_token: str
    runtime: str
    blobs: str | None
    grace_seconds: float
    sample_seconds: float
    cache: str | None = None  # the node's folder of fetched data
    cache_bytes: int = 0
    mounter: tuple[str, ...] = ()  # the command that mounts an input; none: they are laid out
    mirrors: dict[str, str] = {}
    allow_private: bool = False
    fetch_limit_bytes: int | None = None


def job_key(run: RunRecord) -> str:
    """The key of the run's present attempt: ours alone, safe in paths."""
    return f"{run.uid}-{run.attempt}"


def plan_job(
    run: RunRecord, workspace: WorkspaceRecord, manifest: Manifest, around: Surroundings
) -> bytes:
    """The plan of the run's present attempt. Its environment must be known."""
    script, environment = run.spec.script, run.environment
    if script is None or environment is None:
        raise AssertionError(f"run {run.id} has nothing to start")
    variables = {**script.environment.variables, **script.variables}
    return msgspec.json.encode(
        {
            "protocol": wire.PROTOCOL,
            "run_id": run.id,
            "uid": run.uid,
            "attempt": run.attempt,
            "workspace": workspace.name,
            "experiment": run.spec.experiment,
            "subscription_id": workspace.subscription_id,
            "resource_group": workspace.resource_group,
            "url": around.url,
            "address_file": around.address_file,
            "token": around.token,
            "agent_token": around.agent_token,
            "nodes": script.launcher.nodes,
            "hosts": None,
            "launcher": script.launcher,
            **_plan_nodes(run),
            "interpreter": environment.interpreter,
            "prefix": environment.prefix,
            "remove": environment.remove,
            "arguments": script.arguments,
            "is_command": script.is_command,
            "variables": variables,
            "runtime": around.runtime,
            "snapshot": manifest,
            "blobs": around.blobs,
            "max_run_duration_seconds": script.max_run_duration_seconds,
            "grace_seconds": around.grace_seconds,
            "sample_seconds": around.sample_seconds,
            **_plan_data(script, around),
        }
    )


def _plan_nodes(run: RunRecord) -> dict[str, object]:
    """What each node has; nothing where a run may use the whole machine."""
    if not run.nodes or any(node.cores is None for node in run.nodes):
        return {}
    return {
        "node_ids": [node.id for node in run.nodes],
        "cores": [node.cores for node in run.nodes],
        "gpus": [node.gpus or () for node in run.nodes],
    }


def _plan_data(script: ScriptSpec, around: Surroundings) -> dict[str, object]:
    """What the job is told of data. Scripts may ask for datasets that are not their inputs."""
    rules: dict[str, object] = {
        "cache": around.cache,
        "cache_bytes": around.cache_bytes,
        "fetching": {
            "mirrors": around.mirrors,
            "allow_private": around.allow_private,
            "max_bytes": around.fetch_limit_bytes,
        },
    }
    if not script.inputs and not script.outputs:
        return rules
    return {
        **rules,
        "inputs": [_plan_input(one) for one in script.inputs],
        "outputs": [_plan_output(one) for one in script.outputs],
        "mounter": around.mounter or None,
    }


def _plan_input(one: DataInput) -> dict[str, object]:
    return {
        "name": one.name,
        "mode": one.mode,
        "path_on_compute": one.path_on_compute,
        "dataset": one.dataset,
        "reference": one.source is not None,
        "overwrite": one.overwrite,
    }


def _plan_output(one: DataOutput) -> dict[str, object]:
    return {
        "name": one.name,
        "datastore": one.datastore,
        "path": one.path,  # as it was written: what holds {run-id} is the run's own
        "mode": one.mode,
        "path_on_compute": one.path_on_compute,
        "overwrite": one.overwrite,
        "globs": one.globs,
    }
