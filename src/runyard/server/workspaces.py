"""Routes of workspaces and experiments."""

import uuid

from runyard.conductor import computes, runs
from runyard.data import catalog
from runyard.domain.errors import Conflict, NotFound
from runyard.domain.models import ModelRecord
from runyard.domain.services import ServiceRecord
from runyard.domain.workspaces import (
    ExperimentRecord,
    WorkspaceRecord,
    WorkspaceSpec,
    check_workspace_name,
)
from runyard.server.platform import utc_now
from runyard.server.routing import Call, NoQuery
from runyard.stores.base import Store, Where, find_all


def create_workspace(call: Call[WorkspaceSpec, NoQuery]) -> WorkspaceRecord:
    """Make a workspace, or find the one of that name."""
    spec, store = call.body, call.platform.store
    check_workspace_name(spec.name)
    found, _ = store.records.find(WorkspaceRecord, Where(name=spec.name), limit=1)
    if found:
        return _existing(found[0], spec)
    record = WorkspaceRecord(
        # The id follows from the name, so that two who make it at once make the same one.
        id=str(uuid.uuid5(uuid.NAMESPACE_URL, spec.name)),
        name=spec.name,
        created=utc_now(),
        subscription_id=spec.subscription_id,
        resource_group=spec.resource_group,
        location=spec.location,
        friendly_name=spec.friendly_name,
        tags=spec.tags,
    )
    try:
        made = store.records.insert(record)
    except Conflict:
        return _existing(store.records.get(WorkspaceRecord, record.id), spec)
    catalog.list_datastores(store, made)  # makes the two that every workspace has
    return made


def _existing(workspace: WorkspaceRecord, spec: WorkspaceSpec) -> WorkspaceRecord:
    if spec.exist_ok:
        return workspace
    raise Conflict(
        f"Workspace '{workspace.name}' exists already.",
        fix="Choose another name, or pass exist_ok=True.",
    )


def list_workspaces(call: Call[None, NoQuery]) -> list[WorkspaceRecord]:
    """All workspaces that the caller may see, newest first."""
    where = Where(name=call.grant.workspace or None)
    return list(find_all(call.platform.store.records, WorkspaceRecord, where))


def get_workspace(call: Call[None, NoQuery]) -> WorkspaceRecord:
    """One workspace, by its name."""
    return runs.load_workspace(call.platform.store, call.params["workspace"])


def delete_workspace(call: Call[None, NoQuery]) -> None:
    """Remove an empty workspace."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    experiments, _ = store.records.find(ExperimentRecord, Where(workspace=workspace.name), limit=1)
    if experiments:
        raise Conflict(
            f"Workspace '{workspace.name}' is not empty.",
            why=f"It has the experiment '{experiments[0].name}'.",
            fix="Keep it; what was run in it would be lost.",
        )
    models, _ = store.records.find(ModelRecord, Where(workspace=workspace.name), limit=1)
    if models:
        raise Conflict(
            f"Workspace '{workspace.name}' is not empty.",
            why=f"It has the model '{models[0].name}'.",
            fix="Delete its models first, or keep it.",
        )
    services, _ = store.records.find(ServiceRecord, Where(workspace=workspace.name), limit=1)
    if services:
        raise Conflict(
            f"Workspace '{workspace.name}' is not empty.",
            why=f"It has the service '{services[0].name}'.",
            fix=f"Delete its services first: runyard service rm {services[0].name}",
        )
    catalog.clear_workspace(store, workspace)
    computes.clear_workspace(store, workspace)
    store.records.delete(workspace)


def ensure_experiment(call: Call[None, NoQuery]) -> ExperimentRecord:
    """Find an experiment, or make it."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    return runs.ensure_experiment(store, workspace, call.params["experiment"], utc_now())


def list_experiments(call: Call[None, NoQuery]) -> list[ExperimentRecord]:
    """All experiments of a workspace, newest first."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    return list(find_all(store.records, ExperimentRecord, Where(workspace=workspace.name)))


def get_experiment(call: Call[None, NoQuery]) -> ExperimentRecord:
    """One experiment, by its name."""
    return load_experiment(call.platform.store, call.params["workspace"], call.params["experiment"])


def load_experiment(store: Store, workspace: str, name: str) -> ExperimentRecord:
    """The experiment of that name, or `NotFound`."""
    runs.load_workspace(store, workspace)
    found, _ = store.records.find(ExperimentRecord, Where(workspace=workspace, name=name), limit=1)
    if not found:
        raise NotFound(
            f"Experiment '{name}' does not exist in workspace '{workspace}'.",
            fix="It is made when something is submitted to it.",
        )
    return found[0]
