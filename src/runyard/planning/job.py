"""What an agent is told: the plan document of `runyard_runtime.wire`. Pure."""

import msgspec

from runyard.domain.files import Manifest
from runyard.domain.runs import RunRecord
from runyard.domain.workspaces import WorkspaceRecord
from runyard_runtime import wire


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan needs to know of the server that makes it."""

    url: str
    address_file: str | None
    token: str
    runtime: str
    blobs: str | None
    grace_seconds: float
    sample_seconds: float


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
            "nodes": script.launcher.nodes,
            "hosts": None,
            "launcher": script.launcher,
            "interpreter": environment.interpreter,
            "arguments": script.arguments,
            "is_command": script.is_command,
            "variables": variables,
            "runtime": around.runtime,
            "snapshot": manifest,
            "blobs": around.blobs,
            "max_run_duration_seconds": script.max_run_duration_seconds,
            "grace_seconds": around.grace_seconds,
            "sample_seconds": around.sample_seconds,
        }
    )
