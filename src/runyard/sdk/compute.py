"""`ComputeTarget` and `AmlCompute`: clusters that runs are sent to."""

import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from runyard.domain.compute import RESERVED, ComputePatch, ComputeRecord, ComputeSpec, VmSize
from runyard.domain.errors import Denied, NotFound, RunyardError, Unavailable
from runyard.domain.runs import LOCAL, RunPage
from runyard.domain.states import ACTIVE, RunState
from runyard.sdk.compute_settings import (
    AmlComputeProvisioningConfiguration,
    ComputeTargetProvisioningConfiguration,
    ScaleSettings,
)
from runyard.sdk.compute_status import SUCCEEDED, AmlComputeStatus
from runyard.sdk.exceptions import (
    ComputeTargetException,
    UserErrorException,
    as_v1,
    error_text,
)
from runyard.sdk.run_details import label_queries
from runyard.sdk.session import Session, segment

if TYPE_CHECKING:
    from runyard.sdk.run import Run
    from runyard.sdk.workspace import Workspace

T = TypeVar("T")

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0


class ComputeTarget:
    """A place that runs are sent to. `ComputeTarget(ws, name)` gives what stands behind it."""

    _compute_type = "AmlCompute"

    def __new__(cls, workspace: "Workspace", name: str) -> "ComputeTarget":
        return load_target(workspace, name)

    # What a target knows of itself; all from the last look at the server.

    workspace: "Workspace"
    _record: ComputeRecord

    @staticmethod
    def create(
        workspace: "Workspace",
        name: str,
        provisioning_configuration: ComputeTargetProvisioningConfiguration,
    ) -> Any:  # v1 code goes on with what the configuration was for
        """Make a cluster. It can be used at once; its nodes come up when runs need them."""
        if name in RESERVED:
            raise UserErrorException(
                f"Please specify a different target name. {name} is a reserved name."
            )
        if not isinstance(provisioning_configuration, ComputeTargetProvisioningConfiguration):
            raise ComputeTargetException(
                error_text(
                    f"A {type(provisioning_configuration).__name__} cannot be provisioned.",
                    why="Clusters are the compute targets that can be made here.",
                    fix="Pass AmlCompute.provisioning_configuration(vm_size=…, max_nodes=…)",
                )
            )
        return _make(workspace, name, provisioning_configuration.to_spec())

    @staticmethod
    def attach(workspace: "Workspace", name: str, attach_configuration: object) -> "ComputeTarget":
        """Use a cluster that exists, once it was asked whether it takes jobs."""
        from runyard.sdk.cluster_compute import ClusterAttachConfiguration
        from runyard.sdk.named_compute import attach_spec

        named = attach_spec(attach_configuration)
        if named is not None:
            return _make(workspace, name, named)
        if not isinstance(attach_configuration, ClusterAttachConfiguration):
            raise ComputeTargetException(
                error_text(
                    f"'{name}' cannot be attached.",
                    why=f"Runyard does not take over machines described by a "
                    f"{type(attach_configuration).__name__}.",
                    fix="Attach a cluster of Ray or Slurm with RayCompute.attach_configuration(…) "
                    "or SlurmCompute.attach_configuration(…), make one with "
                    "AmlCompute.provisioning_configuration(max_nodes=4), or use 'local'.",
                )
            )
        record = _ask(
            workspace._session,
            "POST",
            f"{_path(workspace, name)}/attach",
            body=attach_configuration.to_spec(),
            answer=ComputeRecord,
        )
        for text in record.warnings:
            warnings.warn(text, stacklevel=2)
        return target_of(workspace, record)

    @staticmethod
    def list(workspace: "Workspace") -> "_Targets":
        """All targets of the workspace."""
        found = _ask(
            workspace._session,
            "GET",
            f"{workspace._path}/computes",
            answer=tuple[ComputeRecord, ...],
        )
        return [target_of(workspace, record) for record in found]

    @property
    def name(self) -> str:
        """The target's name."""
        return self._record.name

    @property
    def id(self) -> str:
        """The target's id, in the form of an Azure resource id."""
        return f"{self.workspace.id}/computes/{self.name}"

    @property
    def type(self) -> str:
        """v1's word for the kind of target."""
        return self._compute_type

    @property
    def location(self) -> str:
        """Where it is."""
        return self._record.details.get("location") or self.workspace.location

    cluster_location = location

    @property
    def tags(self) -> dict[str, str | None]:
        """Its tags."""
        return dict(self._record.tags)

    @property
    def description(self) -> str:
        """What it is for."""
        return self._record.description

    @property
    def created_on(self) -> str:
        """When it was made."""
        return self._record.created.isoformat()

    @property
    def modified_on(self) -> str:
        """When its scale was changed last."""
        return self._record.modified.isoformat()

    @property
    def provisioning_state(self) -> str:
        """`Succeeded`: a cluster that exists can be used."""
        return SUCCEEDED

    @property
    def provisioning_errors(self) -> "_Errors":
        """None: nothing can go wrong with a share of a machine."""
        return None

    @property
    def cluster_resource_id(self) -> None:
        """None: nothing in Azure stands behind it."""
        return

    @property
    def is_attached(self) -> bool:
        """True: the cluster was there before; False: it was made here."""
        return self._record.attached

    def wait_for_completion(
        self, show_output: bool = False, is_delete_operation: bool = False
    ) -> None:
        """Wait until the target can be used, or is gone."""
        raise NotImplementedError  # of the concrete class

    def refresh_state(self) -> None:
        """Look at the server again."""
        self._record = _load(self.workspace, self.name)

    def delete(self) -> None:
        """Remove the target; refused while unfinished runs need it."""
        self._remove(force=False)

    def _remove(self, *, force: bool) -> None:
        _ask(
            self.workspace._session,
            "DELETE",
            _path(self.workspace, self.name) + ("?force=true" if force else ""),
            answer=dict[str, object],
        )

    def detach(self) -> None:
        """Refuse: what was made here is deleted."""
        raise ComputeTargetException(
            f"Detach is not supported for {self.type} object. Try to use delete instead."
        )

    def list_nodes(self) -> "_Nodes":
        """Every node: its id, its state and the run it works on."""
        self.refresh_state()
        return [
            {
                "nodeId": node.id,
                "nodeState": str(node.state),
                "port": None,
                "publicIpAddress": None,
                "privateIpAddress": None if self._record.engine else "127.0.0.1",
                "host": node.host,
                "runId": node.run,
                "cores": node.cores,
                "gpus": [*node.gpus],
            }
            for node in self._record.nodes
        ]

    def get_active_runs(
        self,
        type: str | None = None,
        tags: Mapping[str, object] | str | None = None,
        properties: Mapping[str, object] | str | None = None,
        status: str | None = None,
    ) -> "Generator[Run, None, None]":
        """The unfinished runs on this target, newest first."""
        from runyard.sdk.experiment import Experiment
        from runyard.sdk.run import run_of

        states = [str(state) for state in ACTIVE] if status is None else [str(RunState(status))]
        after: str | None = None
        while True:
            page = self.workspace._session.request(
                "GET",
                "/api/v1/runs",
                query={
                    "workspace": self.workspace.name,
                    "kind": type,
                    "state": states,
                    "tag": label_queries(tags),
                    "property": label_queries(properties),
                    "after": after,
                },
                answer=RunPage,
            )
            for record in page.runs:
                script = record.spec.script
                if script is not None and script.target.lower() == self.name.lower():
                    name = record.spec.experiment
                    yield run_of(Experiment(self.workspace, name, _create_in_cloud=False), record)
            after = page.next
            if after is None:
                return

    def serialize(self) -> dict[str, object]:
        """The target under v1's keys."""
        return {"id": self.id, "name": self.name, "location": self.location, "tags": self.tags}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name}, id={self.id}, "
            f"type={self.type}, provisioning_state={self.provisioning_state}, "
            f"location={self.location}, tags={self.tags})"
        )


class AmlCompute(ComputeTarget):
    """A cluster whose nodes come up when runs need them and go when they idle."""

    def __new__(cls, workspace: "Workspace", name: str) -> "AmlCompute":
        target = load_target(workspace, name)
        if not isinstance(target, AmlCompute):
            raise ComputeTargetException(f"'{name}' is no AmlCompute: it is of type {target.type}.")
        return target

    @classmethod
    def _of(cls, workspace: "Workspace", record: ComputeRecord) -> "AmlCompute":
        target: AmlCompute = object.__new__(AmlCompute)
        target.workspace = workspace
        target._record = record
        return target

    @staticmethod
    def provisioning_configuration(
        vm_size: str = "",
        vm_priority: str = "dedicated",
        min_nodes: int = 0,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int | str = 1800,
        admin_username: str | None = None,
        admin_user_password: str | None = None,
        admin_user_ssh_key: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        tags: Mapping[str, str | None] | None = None,
        description: str | None = None,
        remote_login_port_public_access: str = "NotSpecified",
        identity_type: str | None = None,
        identity_id: Sequence[str] | None = None,
        location: str | None = None,
        enable_node_public_ip: bool = True,
    ) -> AmlComputeProvisioningConfiguration:
        """What to pass to `ComputeTarget.create`; wrong values are refused here."""
        return AmlComputeProvisioningConfiguration(
            vm_size,
            vm_priority,
            min_nodes,
            max_nodes,
            idle_seconds_before_scaledown,
            admin_username,
            admin_user_password,
            admin_user_ssh_key,
            vnet_resourcegroup_name,
            vnet_name,
            subnet_name,
            tags,
            description,
            remote_login_port_public_access,
            identity_type,
            identity_id,
            location,
            enable_node_public_ip,
        )

    @property
    def vm_size(self) -> str:
        """The size of its nodes."""
        return self._record.size.name.upper()

    @property
    def vm_priority(self) -> str:
        """`dedicated` or `lowpriority`."""
        return str(self._record.priority)

    @property
    def scale_settings(self) -> ScaleSettings:
        """How it grows and shrinks."""
        record = self._record
        return ScaleSettings(record.min_nodes, record.max_nodes, record.idle_seconds)

    @property
    def status(self) -> AmlComputeStatus:
        """The status at the last look; `get_status` looks again."""
        return AmlComputeStatus(self._record)

    def __getattr__(self, name: str) -> str | None:
        """What v1 shows of logins and networks, as it was given."""
        if name in _DETAILS:
            return self._record.details.get(name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def get_status(self) -> AmlComputeStatus:
        """The status now."""
        self.refresh_state()
        return self.status

    def wait_for_completion(  # type: ignore[override]  # v1's own order of parameters
        self,
        show_output: bool = False,
        min_node_count: int | None = None,
        timeout_in_minutes: float = 25,
        is_delete_operation: bool = False,
    ) -> None:
        """Wait for nodes: `min_node_count` of them, or as many as the cluster always keeps.

        A cluster grows only when runs need nodes, so waiting for more than its min_nodes ends
        with the timeout, as in v1.
        """
        say = _say if show_output else _keep_quiet
        if is_delete_operation:
            self._wait_until_gone(timeout_in_minutes, say)
            return
        reached = self._wait_for_nodes(min_node_count, timeout_in_minutes, say)
        say("\nAmlCompute wait for completion finished\n\n")
        if reached:
            say("Minimum number of nodes requested have been provisioned\n")
            return
        say("Wait timeout has been reached\n")
        say(
            f'Current provisioning state of AmlCompute is "{self.provisioning_state}" and '
            f'current node count is "{self.status.current_node_count}"\n'
        )

    def _wait_for_nodes(self, wanted: int | None, minutes: float, say: "_Say") -> bool:
        deadline, pause = time.monotonic() + minutes * 60, _FIRST_WAIT
        self.refresh_state()
        say(self.provisioning_state)
        if self._record.engine is not None:
            return True  # a cluster elsewhere gives nodes to runs, not in advance
        while len(self._record.nodes) < (wanted or self._record.min_nodes):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(_LONGEST_WAIT, pause * 2)
            self.refresh_state()
            say(".")
        return True

    def _wait_until_gone(self, minutes: float, say: "_Say") -> None:
        deadline, pause = time.monotonic() + minutes * 60, _FIRST_WAIT
        say("Deleting")
        while time.monotonic() < deadline:
            try:
                self.refresh_state()
            except ComputeTargetException:
                say(f'\n{SUCCEEDED}\nProvisioning operation finished, operation "{SUCCEEDED}"\n')
                return
            time.sleep(pause)
            pause = min(_LONGEST_WAIT, pause * 2)
            say(".")
        raise ComputeTargetException(f"The cluster '{self.name}' is still there.")

    def update(
        self,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
        idle_seconds_before_scaledown: int | str | None = None,
    ) -> None:
        """Change the scale; what is not given stays."""
        if min_nodes is None and max_nodes is None and idle_seconds_before_scaledown is None:
            return
        asked = ScaleSettings(min_nodes, max_nodes, idle_seconds_before_scaledown)
        patch = ComputePatch(
            min_nodes=None if min_nodes is None else asked.minimum_node_count,
            max_nodes=asked.maximum_node_count,
            idle_seconds=None
            if idle_seconds_before_scaledown is None
            else asked.idle_seconds_before_scaledown,
        )
        self._record = _ask(
            self.workspace._session,
            "PATCH",
            _path(self.workspace, self.name),
            body=patch,
            answer=ComputeRecord,
        )

    @staticmethod
    def supported_vmsizes(workspace: "Workspace", location: str | None = None) -> "_Nodes":
        """The sizes that nodes can have: name, vCPUs, GPUs and memory."""
        found = _ask(workspace._session, "GET", "/api/v1/vmsizes", answer=tuple[VmSize, ...])
        return [
            {
                "name": size.name,
                "vCPUs": size.cores,
                "gpus": size.gpus,
                "memoryGB": size.memory_gb,
                "maxResourceVolumeMB": size.disk_gb * 1024,
            }
            for size in found
        ]

    def serialize(self) -> dict[str, object]:
        """The cluster under v1's keys."""
        properties = {
            "description": self.description,
            "computeType": self.type,
            "computeLocation": self.location,
            "provisioningState": self.provisioning_state,
            "provisioningErrors": self.provisioning_errors,
            "properties": {
                "vmSize": self.vm_size,
                "vmPriority": self.vm_priority,
                "scaleSettings": self.scale_settings.serialize(),
            },
            "status": self.status.serialize(),
        }
        return {**super().serialize(), "identity": None, "properties": properties}


_Targets = list[ComputeTarget]
_Errors = list[object] | None
_Nodes = list[dict[str, object]]
_DETAILS = (
    "admin_username",
    "admin_user_password",
    "admin_user_ssh_key",
    "vnet_resourcegroup_name",
    "vnet_name",
    "subnet_name",
    "remote_login_port_public_access",
    "identity_type",
    "identity_id",
)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _keep_quiet(text: str) -> None:
    return


_Say = Callable[[str], None]


def _make(workspace: "Workspace", name: str, spec: ComputeSpec) -> ComputeTarget:
    """Have the server make a pool; the handle of what it stands for."""
    path = _path(workspace, name)
    record = _ask(workspace._session, "PUT", path, body=spec, answer=ComputeRecord)
    target = target_of(workspace, record)
    if isinstance(target, AmlCompute):
        for text in record.warnings:
            warnings.warn(text, stacklevel=3)
    return target


def load_target(workspace: "Workspace", name: str) -> ComputeTarget:
    """The handle of the target of that name."""
    return target_of(workspace, _load(workspace, name))


def target_of(workspace: "Workspace", record: ComputeRecord) -> ComputeTarget:
    """The handle of a target: of a cluster that was made here, or of one that was attached."""
    from runyard.sdk.named_compute import named_target

    if not record.attached:
        return named_target(workspace, record) or AmlCompute._of(workspace, record)
    from runyard.sdk.cluster_compute import attached_target

    return attached_target(workspace, record)


def default_target(workspace: "Workspace", kind: str) -> ComputeTarget | None:
    """The oldest cluster with GPUs (`kind` GPU) or without (CPU); None if there is none."""
    wants_gpus = kind.upper() == "GPU"
    found = [one for one in ComputeTarget.list(workspace)
             if one.type != "AKS" and bool(one._record.size.gpus) is wants_gpus]  # fmt: skip
    return found[0] if found else None


def _path(workspace: "Workspace", name: str) -> str:
    return f"{workspace._path}/computes/{segment(name)}"


def _load(workspace: "Workspace", name: str) -> ComputeRecord:
    try:
        return workspace._session.client.request(
            "GET", _path(workspace, name), answer=ComputeRecord
        )
    except NotFound as error:
        what = (
            f"ComputeTargetNotFound: Compute Target with name {name} not found in provided "
            "workspace"
        )
        if name.lower() == LOCAL:
            what = f"ComputeTargetNotFound: {error.what}"
        raise ComputeTargetException(
            error_text(what, why=error.why, fix=error.fix), error
        ) from None
    except RunyardError as error:
        raise _as_compute_error(error) from None


def _ask(
    session: Session, method: str, path: str, *, body: object | None = None, answer: type[T]
) -> T:
    try:
        return session.client.request(
            method, path, body=body, answer=answer, safe_to_repeat=method == "PUT"
        )
    except RunyardError as error:
        raise _as_compute_error(error) from None


def _as_compute_error(error: RunyardError) -> Exception:
    """v1 has one class for whatever is wrong with a compute target."""
    if isinstance(error, Denied | Unavailable):
        return as_v1(error)
    return ComputeTargetException(str(error), error)
