"""What an agent is told: the plan document of `runyard_runtime.wire`. Pure."""

import msgspec

from runyard.domain.compute import Machine
from runyard.domain.data import DataInput, DataOutput
from runyard.domain.environments import EnvironmentUse
from runyard.domain.files import Manifest
from runyard.domain.runs import LauncherSpec, RunKind, RunRecord, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.planning.environments import PackageSource
from runyard.planning.lifecycle import seconds_before
from runyard_runtime import wire

_LONGEST_REASON = 500  # of the line that parts two attempts in a log


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
    machine: Machine | None = None  # what runs share that are on no cluster
    one_machine: bool = False  # all nodes of the engine are on one machine
    group_seconds: float | None = None  # for all nodes to come up; None: as the agents think
    shared_folder: bool = True  # all nodes of a job, and the server, see the same job folder
    packages: PackageSource = PackageSource()  # where nodes that share nothing get theirs


def job_key(run: RunRecord, attempt: int | None = None) -> str:
    """The key of an attempt of the run, by default the present one: ours alone, safe in paths."""
    return f"{run.uid}-{attempt or run.attempt}"


def plan_job(
    run: RunRecord, workspace: WorkspaceRecord, manifest: Manifest, around: Surroundings
) -> bytes:
    """The plan of the run's present attempt. Its environment must be known."""
    script, environment = run.spec.script, run.environment
    if script is None or environment is None:
        raise AssertionError(f"run {run.id} has nothing to start")
    variables = {
        **script.environment.variables,
        **script.variables,
        wire.ATTEMPT: str(run.attempt),
    }
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
            **_plan_nodes(run, script, around),
            "interpreter": environment.interpreter,
            "prefix": environment.prefix,
            "remove": environment.remove,
            "arguments": script.arguments,
            "is_command": script.is_command,
            "variables": variables,
            "runtime": around.runtime,
            "snapshot": manifest,
            "blobs": around.blobs,
            "max_run_duration_seconds": _time_left(run, script),
            "grace_seconds": around.grace_seconds,
            "sample_seconds": around.sample_seconds,
            **_plan_data(script, around),
            **({"restore": True} if run.attempt > 1 else {}),
            **({"restarted_after": _last_failure(run)} if run.attempts else {}),
            **({} if around.shared_folder else _plan_apart(script, environment, around)),
            # A service does not yield to jobs, and lives too long to be measured.
            **({"nice": 0, "sample_seconds": 0} if run.spec.kind is RunKind.SERVICE else {}),
        }
    )


def _last_failure(run: RunRecord) -> str:
    """Why the attempt before this one ended, in a line for the logs."""
    message = run.attempts[-1].error.message.strip().partition("\n")[0]
    return message[:_LONGEST_REASON]


def _plan_apart(
    script: ScriptSpec, environment: EnvironmentUse, around: Surroundings
) -> dict[str, object]:
    """What is different for nodes that see nothing of ours: they make and fetch it themselves."""
    spec = script.environment
    return {
        "address_file": None,
        "blobs": None,
        "cache": None,
        "mounter": None,
        "interpreter": None,
        "prefix": (),
        "remove": (),
        "environment": {
            "key": environment.key,
            "name": spec.name,
            "python": environment.python,
            "lock": environment.lock,
            "options": around.packages.options,
            "variables": around.packages.variables,
            "user_managed": spec.user_managed,
            "interpreter": spec.interpreter,
        },
    }


def _time_left(run: RunRecord, script: ScriptSpec) -> float | None:
    """How long the attempt may take: what the earlier ones left of the run's time."""
    limit = script.max_run_duration_seconds
    if limit is None or not run.attempts:
        return limit
    return max(1.0, limit - seconds_before(run))


def _plan_nodes(run: RunRecord, script: ScriptSpec, around: Surroundings) -> dict[str, object]:
    """What each node has; nothing where one process may use the whole machine."""
    shared: dict[str, object] = {"one_machine": True} if around.one_machine else {}
    if script.launcher.nodes > 1 and around.group_seconds is not None:
        shared["group_seconds"] = around.group_seconds
    if not around.shared_folder and script.launcher.nodes > 1:
        shared["board"] = "server"
    if not run.nodes or any(node.cores is None for node in run.nodes):
        return shared if script.launcher == LauncherSpec() else shared | _share(script, around)
    told = {
        **shared,
        "node_ids": [node.id for node in run.nodes],
        "cores": [node.cores for node in run.nodes],
    }
    if any(node.gpus is None for node in run.nodes):
        return told  # an engine elsewhere gives the node its GPUs, and says so to what runs there
    return {**told, "gpus": [node.gpus for node in run.nodes]}


def _share(script: ScriptSpec, around: Surroundings) -> dict[str, object]:
    """What several processes have each of a machine that is theirs: an equal part for each node."""
    machine, nodes = around.machine, script.launcher.nodes
    if machine is None:
        return {}
    told: dict[str, object] = {"cores": [max(1, machine.cores // nodes)] * nodes}
    if nodes > 1 and machine.gpus:
        each = len(machine.gpus) // nodes  # all nodes the same, because a framework expects that
        told["gpus"] = [machine.gpus[each * node : each * (node + 1)] for node in range(nodes)]
    return told


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
