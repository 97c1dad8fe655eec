"""What is asked of a cluster: v1's provisioning configuration, with its checks and words."""

import string
from collections.abc import Mapping, Sequence

from runyard.domain.compute import ComputeSpec, Priority
from runyard.sdk.exceptions import ComputeTargetException

_SPECIAL = "`~!@#$%^&*()=+_[]{}|;:./'\",<>?"


class ComputeTargetProvisioningConfiguration:
    """The base of what `ComputeTarget.create` takes."""

    location: str | None = None

    def to_spec(self) -> ComputeSpec:
        """The configuration as the server takes it."""
        raise NotImplementedError  # of the concrete class


class ScaleSettings:
    """How a cluster grows and shrinks."""

    def __init__(
        self,
        minimum_node_count: object,
        maximum_node_count: object,
        idle_seconds_before_scaledown: object,
    ) -> None:
        self.minimum_node_count = _whole("min_nodes", minimum_node_count or 0)
        self.maximum_node_count = (
            None if maximum_node_count is None else _whole("max_nodes", maximum_node_count)
        )
        # Notebooks pass '300' as a text.
        self.idle_seconds_before_scaledown = _whole(
            "idle_seconds_before_scaledown", idle_seconds_before_scaledown or 0
        )

    def serialize(self) -> dict[str, object]:
        """The settings under v1's keys; the duration is written as ISO 8601."""
        return {
            "minNodeCount": self.minimum_node_count,
            "maxNodeCount": self.maximum_node_count,
            "nodeIdleTimeBeforeScaleDown": f"PT{self.idle_seconds_before_scaledown}S",
        }

    def __repr__(self) -> str:
        return f"ScaleSettings({self.serialize()})"


class AmlComputeProvisioningConfiguration(ComputeTargetProvisioningConfiguration):
    """What is asked of a cluster. What only Azure has (networks, logins) is checked and kept."""

    def __init__(
        self,
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
    ) -> None:
        self.vm_size = vm_size
        self.vm_priority = vm_priority
        self.scale_settings = ScaleSettings(min_nodes, max_nodes, idle_seconds_before_scaledown)
        self.admin_username = admin_username
        self.admin_user_password = admin_user_password
        self.admin_user_ssh_key = admin_user_ssh_key
        self.vnet_resourcegroup_name = vnet_resourcegroup_name
        self.vnet_name = vnet_name
        self.subnet_name = subnet_name
        self.tags = tags
        self.description = description
        self.remote_login_port_public_access = remote_login_port_public_access
        self.identity_type = identity_type
        self.identity_id = identity_id
        self.location = location
        self.enable_node_public_ip = enable_node_public_ip
        self.validate_configuration()

    def validate_configuration(self) -> None:
        """Raise a `ComputeTargetException` where v1 did."""
        for complaint in (
            _login_complaint(self),
            _network_complaint(self),
            _scale_complaint(self.scale_settings),
            _identity_complaint(self.identity_type, self.identity_id),
        ):
            if complaint:
                raise ComputeTargetException(complaint)
        _priority(self.vm_priority)

    def to_spec(self) -> ComputeSpec:
        """The configuration as the server takes it. Passwords and keys stay here."""
        self.validate_configuration()  # attributes may have been set meanwhile
        scale = self.scale_settings
        assert scale.maximum_node_count is not None
        shown = {
            "admin_username": self.admin_username,
            "vnet_resourcegroup_name": self.vnet_resourcegroup_name,
            "vnet_name": self.vnet_name,
            "subnet_name": self.subnet_name,
            "remote_login_port_public_access": self.remote_login_port_public_access,
            "identity_type": self.identity_type,
            "location": self.location,
        }
        return ComputeSpec(
            vm_size=self.vm_size or "",
            priority=_priority(self.vm_priority),
            min_nodes=scale.minimum_node_count,
            max_nodes=scale.maximum_node_count,
            idle_seconds=scale.idle_seconds_before_scaledown,
            description=self.description or "",
            tags=dict(self.tags or {}),
            details={key: str(value) for key, value in shown.items() if value},
        )


def _whole(name: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ComputeTargetException(
            f"Invalid provisioning configuration, {name} must be a whole number, not {value!r}."
        ) from None


def _priority(word: str | None) -> Priority:
    known = {"": Priority.DEDICATED, "dedicated": Priority.DEDICATED, "lowpriority": Priority.LOW}
    plain = (word or "").lower().replace("_", "")
    if plain not in known:
        raise ComputeTargetException(
            f"Invalid provisioning configuration, vm_priority must be 'dedicated' or "
            f"'lowpriority', not {word!r}."
        )
    return known[plain]


def _login_complaint(config: AmlComputeProvisioningConfiguration) -> str:
    name, password, key = (
        config.admin_username,
        config.admin_user_password,
        config.admin_user_ssh_key,
    )
    if (password or key) and not name:
        return (
            "Invalid user credentials, admin username must be provided along with either a "
            "password or SSH key information."
        )
    if name and not password and not key:
        return (
            "Invalid user credentials, no password or key information provided. Please provide "
            "either a password or SSH key information."
        )
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits, _SPECIAL)
    if password and sum(bool(set(password) & set(kind)) for kind in kinds) < 3:
        return (
            "Invalid admin user password provided. The admin user password must have 3 of the "
            "following: 1 lowercase character, 1 uppercase character, 1 number, and 1 special "
            f"character {_SPECIAL}"
        )
    return ""


def _network_complaint(config: AmlComputeProvisioningConfiguration) -> str:
    parts = (config.vnet_name, config.vnet_resourcegroup_name, config.subnet_name)
    if any(parts) and not all(parts):
        return (
            "Invalid configuration, not all virtual net information provided. To use a custom "
            "virtual net, please provide vnet name, vnet resource group and subnet name"
        )
    return ""


def _scale_complaint(scale: ScaleSettings) -> str:
    words = "Invalid provisioning configuration, "
    least, most = scale.minimum_node_count, scale.maximum_node_count
    if most is None:
        return words + "max nodes count is mandatory"
    if most < 0:
        return words + "max nodes count must be greater than or equal to 0"
    if most < least:
        return words + "max nodes count must be greater than or equal to min nodes count"
    if least < 0 or scale.idle_seconds_before_scaledown < 0:
        return words + "min nodes count and idle seconds must be greater than or equal to 0"
    return ""


def _identity_complaint(kind: str | None, ids: Sequence[str] | None) -> str:
    if not kind and not ids:
        return ""
    if kind and kind not in ("UserAssigned", "SystemAssigned"):
        return (
            "Invalid configuration, identity_type must be set to 'UserAssigned' or "
            "'SystemAssigned'."
        )
    if kind == "UserAssigned" and (not isinstance(ids, list) or not ids):
        return (
            "Invalid configuration, please pass the identity_id of the user assigned identity as "
            "a list (eg. ['resource_ID1','resourceID2',...])"
        )
    if kind != "UserAssigned" and ids:
        return (
            "Invalid configuration, identity_id cannot be set when identity type is not user "
            "assigned."
        )
    return ""
