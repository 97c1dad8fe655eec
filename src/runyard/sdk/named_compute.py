"""`AksCompute` and `ComputeInstance`: machines of Azure that v1 code names, as shares of this one.

Services run beside the server whatever they were deployed to, and a run that is sent to a compute
instance gets a node like any other. So both are pools that remember what they were asked for as.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from runyard.domain.compute import ComputeRecord, ComputeSpec
from runyard.sdk.compute import ComputeTarget, load_target
from runyard.sdk.compute_settings import ComputeTargetProvisioningConfiguration
from runyard.sdk.compute_status import SUCCEEDED
from runyard.sdk.exceptions import ComputeTargetException, error_text
from runyard.sdk.not_here import refuse

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

KIND = "compute_type"  # among a pool's details: v1's word for what it stands for
_SIZE = "STANDARD_D3_V2"  # v1's default for both; a label here, so that any may be named
_SECRETS = ("ssl_key_pem_file", "ssl_cert_pem_file", "admin_user_ssh_public_key", "ssh_public_key")


class _Named(ComputeTargetProvisioningConfiguration):
    """What was asked of such a machine; kept to be shown, and nothing else."""

    def __init__(self, kind: str, nodes: object, vm_size: object, given: Mapping[str, Any]) -> None:
        self.vm_size = vm_size
        self.tags = given.get("tags")
        self.description = given.get("description")
        self._kind, self._nodes = kind, nodes
        self.__dict__.update(given)

    def validate_configuration(self) -> None:
        """Nothing can be wrong with a name."""

    def enable_ssl(self, *args: object, **kwargs: object) -> None:
        """Warn: services answer over plain HTTP, whatever is in front of them."""
        warnings.warn("enable_ssl() has no effect: services answer over plain HTTP.", stacklevel=2)

    def to_spec(self) -> ComputeSpec:
        """The pool that stands for it."""
        shown = {
            name: str(value)
            for name, value in self.__dict__.items()
            if value is not None and not name.startswith("_") and name not in _NOT_SHOWN
        }
        return ComputeSpec(
            vm_size=_SIZE,
            max_nodes=max(1, int(str(self._nodes or 1))),
            description=self.description or "",
            tags=dict(self.tags or {}),
            details={**shown, KIND: self._kind, "vm_size": str(self.vm_size or _SIZE).upper()},
        )


_NOT_SHOWN = ("tags", "description", "vm_size", *_SECRETS)


class _NamedTarget(ComputeTarget):
    """A pool that goes by the name of something else."""

    def __new__(cls, workspace: "Workspace", name: str) -> Any:
        target = load_target(workspace, name)
        if not isinstance(target, cls):
            raise ComputeTargetException(
                f"'{name}' is no {cls.__name__}: it is of type {target.type}."
            )
        return target

    _shown: ClassVar[tuple[str, ...]] = ()

    def __getattr__(self, name: str) -> str | None:
        """What v1 shows of it, as it was given."""
        if name in self._shown:
            return self._record.details.get(name)
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def wait_for_completion(
        self, show_output: bool = False, is_delete_operation: bool = False
    ) -> None:
        """Return at once: it can be used."""
        if show_output:
            sys.stdout.write(
                f'{SUCCEEDED}\nProvisioning operation finished, operation "{SUCCEEDED}"\n'
            )

    def get_status(self) -> Any:
        """v1's word for a target that can be used."""
        return SUCCEEDED

    def detach(self) -> None:
        """Forget it."""
        self.delete()


class AksCompute(_NamedTarget):
    """v1's Kubernetes cluster: a name to deploy services to. They run beside the server."""

    _compute_type = "AKS"
    _shown = (
        "cluster_purpose",
        "dns_service_ip",
        "docker_bridge_cidr",
        "load_balancer_subnet",
        "load_balancer_type",
        "service_cidr",
        "ssl_cname",
        "subnet_name",
        "vnet_name",
        "vnet_resourcegroup_name",
    )

    class ClusterPurpose:
        """What a Kubernetes cluster was for."""

        DEV_TEST = "DevTest"
        FAST_PROD = "FastProd"

    @staticmethod
    def provisioning_configuration(
        agent_count: int | None = None,
        vm_size: str | None = None,
        ssl_cname: str | None = None,
        ssl_cert_pem_file: str | None = None,
        ssl_key_pem_file: str | None = None,
        location: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        service_cidr: str | None = None,
        dns_service_ip: str | None = None,
        docker_bridge_cidr: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> _Named:
        """What to pass to `ComputeTarget.create`."""
        given = dict(locals())
        return _Named("AKS", given.pop("agent_count") or 3, given.pop("vm_size"), given)

    @staticmethod
    def attach_configuration(
        resource_group: str | None = None,
        cluster_name: str | None = None,
        resource_id: str | None = None,
        cluster_purpose: str | None = None,
        load_balancer_type: str | None = None,
        load_balancer_subnet: str | None = None,
    ) -> _Named:
        """What to pass to `ComputeTarget.attach`."""
        if not resource_id and not (resource_group and cluster_name):
            raise ComputeTargetException(
                error_text(
                    "Nothing says which cluster is to be attached.",
                    fix="Give its resource_id, or resource_group and cluster_name.",
                )
            )
        return _Named("AKS", 3, None, dict(locals()))

    @property
    def agent_count(self) -> int | None:
        """How many machines were asked for."""
        return self._record.max_nodes

    @property
    def agent_vm_size(self) -> str:
        """The size that was asked for."""
        return self._record.details["vm_size"]

    vm_size = agent_vm_size

    @property
    def cluster_fqdn(self) -> None:
        """None: there is no cluster."""
        return

    @property
    def ssl_configuration(self) -> None:
        """None: services answer over plain HTTP."""
        return

    @property
    def system_services(self) -> "_Services":
        """None of them run."""
        return []

    def update(self, update_configuration: object | None = None) -> None:
        """Nothing changes: certificates have no effect here."""

    def get_credentials(self) -> object:
        """Not in this release."""
        refuse("AksCompute.get_credentials()", "a Kubernetes cluster behind services")


class ComputeInstance(_NamedTarget):
    """v1's workstation in the cloud: a name to send runs to, one at a time."""

    _compute_type = "ComputeInstance"
    _shown = (
        "admin_username",
        "assigned_user_object_id",
        "ssh_public_access",
        "subnet_name",
        "vnet_name",
        "vnet_resourcegroup_name",
    )

    @staticmethod
    def provisioning_configuration(
        vm_size: str = "",
        ssh_public_access: bool = False,
        admin_user_ssh_public_key: str | None = None,
        vnet_resourcegroup_name: str | None = None,
        vnet_name: str | None = None,
        subnet_name: str | None = None,
        tags: Mapping[str, str | None] | None = None,
        description: str | None = None,
        assigned_user_object_id: str | None = None,
        assigned_user_tenant_id: str | None = None,
        **kwargs: object,
    ) -> _Named:
        """What to pass to `ComputeTarget.create`."""
        given = dict(locals())
        given.pop("kwargs")
        return _Named("ComputeInstance", 1, given.pop("vm_size"), given)

    @property
    def vm_size(self) -> str:
        """The size that was asked for."""
        return self._record.details["vm_size"]

    def get_status(self) -> "ComputeInstanceStatus":
        """How it is now."""
        self.refresh_state()
        return ComputeInstanceStatus(self._record)

    @property
    def status(self) -> "ComputeInstanceStatus":
        """How it was at the last look."""
        return ComputeInstanceStatus(self._record)

    def start(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Nothing to do: it takes runs whenever there are some."""

    def stop(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Nothing to do: between runs it takes nothing."""

    def restart(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Nothing to do."""

    def delete(self, wait_for_completion: bool = False, show_output: bool = False) -> None:
        """Remove it; refused while unfinished runs need it."""
        super().delete()

    @staticmethod
    def supported_vmsizes(workspace: "Workspace", location: str | None = None) -> "_Sizes":
        """The sizes it can have."""
        from runyard.sdk.compute import AmlCompute

        return AmlCompute.supported_vmsizes(workspace, location)


class ComputeInstanceStatus:
    """How a compute instance is."""

    def __init__(self, record: ComputeRecord) -> None:
        self.state = "Running"
        self.vm_size = record.details["vm_size"]
        self.provisioning_state = SUCCEEDED
        self.creation_time = record.created
        self.modified_time = record.modified
        self.errors: list[object] = []

    def serialize(self) -> dict[str, object]:
        """The status under v1's keys."""
        return {
            "errors": self.errors,
            "creationTime": self.creation_time.isoformat(),
            "modifiedTime": self.modified_time.isoformat(),
            "provisioningState": self.provisioning_state,
            "state": self.state,
            "vmSize": self.vm_size,
        }


_Services = list[object]
_Sizes = list[dict[str, object]]
_KINDS: dict[str, type[_NamedTarget]] = {"AKS": AksCompute, "ComputeInstance": ComputeInstance}


def named_target(workspace: "Workspace", record: ComputeRecord) -> ComputeTarget | None:
    """The handle of a pool that stands for something else; None: it is a cluster."""
    kind = _KINDS.get(record.details.get(KIND, ""))
    if kind is None:
        return None
    target: _NamedTarget = object.__new__(kind)
    target.workspace = workspace
    target._record = record
    return target


def attach_spec(configuration: object) -> ComputeSpec | None:
    """The pool that stands for what is attached; None if it is nothing of ours."""
    return configuration.to_spec() if isinstance(configuration, _Named) else None
