"""`Workspace`: the place that holds experiments and runs."""

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runyard.domain.errors import RunyardError
from runyard.domain.workspaces import ExperimentRecord, WorkspaceRecord, WorkspaceSpec
from runyard.sdk.config_file import (
    CONFIG_NAME,
    config_for,
    load_config,
    settings_for,
    write_config,
)
from runyard.sdk.current_workspace import note_workspace
from runyard.sdk.exceptions import WorkspaceException, as_v1
from runyard.sdk.not_here import missing_attribute, refuse
from runyard.sdk.session import Session, border, open_session, segment

if TYPE_CHECKING:
    from runyard.sdk.abstract_dataset import AbstractDataset
    from runyard.sdk.compute import ComputeTarget
    from runyard.sdk.datastore import Datastore
    from runyard.sdk.environment import Environment
    from runyard.sdk.experiment import Experiment
    from runyard.sdk.images import Image
    from runyard.sdk.model import Model
    from runyard.sdk.run import Run
    from runyard.sdk.webservice import Webservice

# Keys of `get_details` for what Azure keeps beside a workspace; there is nothing behind them here.
_AZURES_OWN = (
    "applicationInsights",
    "containerRegistry",
    "identityPrincipalId",
    "identityTenantId",
    "identityType",
    "keyVault",
    "storageAccount",
)

# Attributes of v1's class that wait for a later release, and what they belong to.
_NOT_YET = {
    "add_private_endpoint": "private endpoints",
    "delete_connection": "connections",
    "delete_private_endpoint_connection": "private endpoints",
    "diagnose_workspace": "diagnosis of a workspace; see: runyard doctor",
    "get_connection": "connections",
    "linked_services": "linked services",
    "list_connections": "connections",
    "list_keys": "keys of Azure's resources",
    "private_endpoints": "private endpoints",
    "set_connection": "connections",
    "sync_keys": "keys of Azure's resources",
    "update": "changes to a workspace",
    "update_dependencies": "resources of Azure",
}


class Workspace:
    """A place that holds experiments, and all that belongs to them.

    Naming a workspace is enough to have it: one that the server does not know yet is made.
    """

    def __init__(
        self,
        subscription_id: str,
        resource_group: str,
        workspace_name: str,
        auth: object | None = None,
        _location: str | None = None,
        _disable_service_check: bool = False,
        _workspace_id: str | None = None,
        sku: str = "basic",
        tags: Mapping[str, str | None] | None = None,
        _cloud: str = "AzureCloud",
    ) -> None:
        session = open_session()
        spec = WorkspaceSpec(
            name=workspace_name,
            subscription_id=subscription_id or "",
            resource_group=resource_group or "",
            location=_location or "local",
            tags=dict(tags or {}),
        )
        self._attach(session, _create(session, spec), auth=auth, sku=sku)

    def _attach(
        self,
        session: Session,
        record: WorkspaceRecord,
        *,
        auth: object | None = None,
        sku: str = "basic",
    ) -> None:
        self._session = session
        self._record = record
        self._auth = auth
        self._sku = sku
        note_workspace(self)

    @classmethod
    def _of(
        cls, session: Session, record: WorkspaceRecord, *, auth: object | None = None
    ) -> "Workspace":
        """The handle of a record that was already read."""
        workspace = cls.__new__(cls)
        workspace._attach(session, record, auth=auth)
        return workspace

    @staticmethod
    def from_config(
        path: str | os.PathLike[str] | None = None,
        auth: object | None = None,
        _logger: object | None = None,
        _file_name: str | None = None,
    ) -> "Workspace":
        """The workspace that the nearest `config.json` names, looking upwards from `path`."""
        config = load_config(path, _file_name)
        with border():
            settings = settings_for(config)
        session = open_session(settings)
        spec = WorkspaceSpec(
            name=config.workspace_name,
            subscription_id=config.subscription_id,
            resource_group=config.resource_group,
        )
        return Workspace._of(session, _create(session, spec), auth=auth)

    @staticmethod
    def create(
        name: str,
        auth: object | None = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        create_resource_group: bool = True,
        sku: str = "basic",
        tags: Mapping[str, str | None] | None = None,
        friendly_name: str | None = None,
        storage_account: str | None = None,
        key_vault: str | None = None,
        app_insights: str | None = None,
        container_registry: str | None = None,
        exist_ok: bool = False,
        show_output: bool = True,
        **kwargs: object,
    ) -> "Workspace":
        """Make a workspace. What only Azure has (storage accounts, vaults) is left aside."""
        session = open_session()
        spec = WorkspaceSpec(
            name=name,
            subscription_id=subscription_id or "",
            resource_group=resource_group or "",
            location=location or "local",
            friendly_name=friendly_name or "",
            exist_ok=exist_ok,
            tags=dict(tags or {}),
        )
        return Workspace._of(session, _create(session, spec), auth=auth)

    @staticmethod
    def get(
        name: str,
        auth: object | None = None,
        subscription_id: str | None = None,
        resource_group: str | None = None,
        location: str | None = None,
        cloud: str = "AzureCloud",
        id: str | None = None,
    ) -> "Workspace":
        """The workspace of that name; `WorkspaceException` if there is none."""
        session = open_session()
        try:
            record = session.client.request(
                "GET", f"/api/v1/workspaces/{segment(name)}", answer=WorkspaceRecord
            )
        except RunyardError as error:
            raise _as_workspace_error(error) from None
        return Workspace._of(session, record, auth=auth)

    @staticmethod
    def setup() -> "Workspace":
        """The workspace of the nearest configuration file: v1's first spelling of that."""
        return Workspace.from_config()

    @staticmethod
    def list(
        subscription_id: str | None = None,
        auth: object | None = None,
        resource_group: str | None = None,
    ) -> "_ByName":
        """All workspaces by name. As in v1 the values are lists; ours have one element."""
        session = open_session()
        found: dict[str, list[Workspace]] = {}
        for record in session.request(
            "GET", "/api/v1/workspaces", answer=tuple[WorkspaceRecord, ...]
        ):
            if subscription_id and record.subscription_id not in ("", subscription_id):
                continue
            if resource_group and record.resource_group not in ("", resource_group):
                continue
            found.setdefault(record.name, []).append(Workspace._of(session, record, auth=auth))
        return found

    def write_config(
        self, path: str | os.PathLike[str] | None = None, file_name: str | None = None
    ) -> None:
        """Write `.azureml/config.json` below `path`, so that `from_config` finds this workspace."""
        record = self._record
        config = config_for(
            record.name, record.subscription_id, record.resource_group, self._session.settings
        )
        folder = Path(os.fspath(path) if path is not None else ".").expanduser()
        write_config(config, folder / ".azureml" / (file_name or CONFIG_NAME))

    def get_details(self) -> dict[str, object]:
        """What is known of the workspace, under v1's keys."""
        record = self._record
        return {
            "id": self.id,
            "name": record.name,
            "location": record.location,
            "type": "Microsoft.MachineLearningServices/workspaces",
            "tags": dict(record.tags),
            "sku": self._sku,
            "workspaceid": record.id,
            "description": record.description,
            "friendlyName": record.friendly_name or record.name,
            "creationTime": record.created.isoformat(),
            "provisioningState": "Succeeded",
            "serverUrl": self._session.client.url,
            "discoveryUrl": self.discovery_url,
            **dict.fromkeys(_AZURES_OWN, ""),
        }

    def delete(
        self,
        delete_dependent_resources: bool = False,
        no_wait: bool = False,
    ) -> None:
        """Remove the workspace from the server; it must have no experiments."""
        self._session.request("DELETE", self._path, answer=dict[str, object])

    def get_run(self, run_id: str) -> "Run":
        """The run of that id."""
        from runyard.sdk.run import Run

        return Run.get(self, run_id)

    @property
    def name(self) -> str:
        """The workspace's name."""
        return self._record.name

    @property
    def id(self) -> str:
        """The workspace's id, in the form of an Azure resource id."""
        record = self._record
        return (
            f"/subscriptions/{record.subscription_id}/resourceGroups/{record.resource_group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{record.name}"
        )

    @property
    def subscription_id(self) -> str:
        """The Azure subscription the configuration named; a label here."""
        return self._record.subscription_id

    @property
    def resource_group(self) -> str:
        """The Azure resource group the configuration named; a label here."""
        return self._record.resource_group

    @property
    def location(self) -> str:
        """Where the workspace is."""
        return self._record.location

    @property
    def discovery_url(self) -> str:
        """Where the server is."""
        return self._session.client.url

    @property
    def sku(self) -> str:
        """v1's edition of the workspace; a label here."""
        return self._sku

    @property
    def tags(self) -> dict[str, str | None]:
        """The workspace's tags."""
        return dict(self._record.tags)

    @property
    def experiments(self) -> "dict[str, Experiment]":
        """All experiments by name."""
        from runyard.sdk.experiment import Experiment

        found = self._session.request(
            "GET", f"{self._path}/experiments", answer=tuple[ExperimentRecord, ...]
        )
        return {record.name: Experiment._of(self, record) for record in found}

    @property
    def environments(self) -> "Mapping[str, Environment]":
        """The registered environments by name."""
        from runyard.sdk.environment import Environment

        return Environment.list(self)

    @property
    def datastores(self) -> "dict[str, Datastore]":
        """All datastores by name."""
        from runyard.sdk.datastore import list_datastores

        return list_datastores(self)

    @property
    def datasets(self) -> "dict[str, AbstractDataset]":
        """The newest version of every registered dataset, by name."""
        from runyard.sdk.dataset import Dataset

        return Dataset.get_all(self)

    @property
    def models(self) -> "dict[str, Model]":
        """The newest version of every model, by name."""
        from runyard.sdk.model import Model

        return {model.name: model for model in Model.list(self, latest=True)}

    @property
    def webservices(self) -> "dict[str, Webservice]":
        """All services by name."""
        from runyard.sdk.webservice import Webservice

        return {service.name: service for service in Webservice.list(self)}

    @property
    def images(self) -> "dict[str, Image]":
        """The newest image of every name."""
        from runyard.sdk.images import Image

        return {image.name: image for image in Image.list(self)}

    def get_default_datastore(self) -> "Datastore":
        """The datastore that is meant when none is named; at first 'workspaceblobstore'."""
        from runyard.sdk.datastore import Datastore

        return Datastore(self)

    def set_default_datastore(self, name: str) -> None:
        """Choose the datastore that is meant when none is named."""
        from runyard.sdk.datastore import Datastore

        Datastore(self, name).set_as_default()

    def get_default_keyvault(self) -> object:
        """Not in this release."""
        refuse("ws.get_default_keyvault()", "the secret store", "Use an environment variable.")

    @property
    def compute_targets(self) -> "dict[str, ComputeTarget]":
        """All clusters by name."""
        from runyard.sdk.compute import ComputeTarget

        return {target.name: target for target in ComputeTarget.list(self)}

    def get_default_compute_target(self, type: str) -> "ComputeTarget | None":
        """The oldest cluster with GPUs (type "GPU") or without ("CPU"); None if there is none."""
        from runyard.sdk.compute import default_target

        return default_target(self, type)

    def get_mlflow_tracking_uri(self, with_auth: bool = False) -> str:
        """Not in this release."""
        refuse(
            "ws.get_mlflow_tracking_uri()",
            "the MLflow protocol",
            "Log with run.log(...) of Run.get_context().",
        )

    @property
    def _path(self) -> str:
        return f"/api/v1/workspaces/{segment(self.name)}"

    def __getattr__(self, name: str) -> object:
        raise missing_attribute(self, name, _NOT_YET)

    def __repr__(self) -> str:
        record = self._record
        return (
            f"Workspace.create(name={record.name!r}, "
            f"subscription_id={record.subscription_id!r}, "
            f"resource_group={record.resource_group!r})"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


_ByName = dict[str, list[Workspace]]


def _create(session: Session, spec: WorkspaceSpec) -> WorkspaceRecord:
    try:
        return session.client.request(
            "POST",
            "/api/v1/workspaces",
            body=spec,
            answer=WorkspaceRecord,
            safe_to_repeat=spec.exist_ok,
        )
    except RunyardError as error:
        raise _as_workspace_error(error) from None


def _as_workspace_error(error: RunyardError) -> Exception:
    """v1 has a class of its own for workspaces that are not there, or are there already."""
    if error.code in ("not_found", "conflict"):
        return WorkspaceException(str(error), error)
    return as_v1(error)
