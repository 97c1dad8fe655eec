"""What v1's three places for services could be told, and what of it holds here.

A service runs on the server's machine, whichever of the three it was deployed to; the word is kept.
"""

import math
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields

import msgspec

from runyard.domain.services import ServiceAccess, ServiceAuth
from runyard.sdk.cluster_compute import AttachedCompute
from runyard.sdk.exceptions import WebserviceException, error_text

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{1,61})[a-z0-9]")
_KEY = re.compile(r"[\x21-\x7e]{1,512}")  # it travels in a header
_DEFAULTS = ServiceAccess()
_V1_WAIT_MS = 500.0  # how long v1 let a request wait for its turn

_SHOWN_ELSEWHERE = frozenset(
    {"tags", "properties", "description", "primary_key", "secondary_key"}
    | {"ssl_cert_pem_file", "ssl_key_pem_file"}
)
_NO_EFFECT = frozenset(
    {"ssl_enabled", "ssl_cert_pem_file", "ssl_key_pem_file", "ssl_cname", "dns_name_label"}
    | {"enable_app_insights", "collect_model_data", "vnet_name", "subnet_name"}
    | {"cmk_vault_base_url", "cmk_key_name", "cmk_key_version", "blobfuse_enabled", "namespace"}
    | {"autoscale_max_replicas", "autoscale_refresh_seconds", "autoscale_target_utilization"}
    | {"replica_max_concurrent_requests", "cpu_cores_limit", "memory_gb_limit"}
    | {"period_seconds", "initial_delay_seconds", "timeout_seconds"}
    | {"success_threshold", "failure_threshold"}
)


class WebserviceDeploymentConfiguration:
    """The base of what `Model.deploy` takes as deployment_config."""

    _webservice_type = ""

    def validate_configuration(self) -> None:
        """Raise a `WebserviceException` where v1 did."""

    def print_deploy_configuration(self) -> None:
        """Print the configuration."""
        sys.stdout.write(f"{self}\n")


@dataclass
class AciServiceDeploymentConfiguration(WebserviceDeploymentConfiguration):
    """A service as on Azure Container Instances: one replica, open to all unless told otherwise."""

    cpu_cores: float | None = None
    memory_gb: float | None = None
    tags: Mapping[str, object] | None = None
    properties: Mapping[str, object] | None = None
    description: str | None = None
    location: str | None = None
    auth_enabled: bool | None = None
    ssl_enabled: bool | None = None
    enable_app_insights: bool | None = None
    ssl_cert_pem_file: str | None = None
    ssl_key_pem_file: str | None = None
    ssl_cname: str | None = None
    dns_name_label: str | None = None
    primary_key: str | None = None
    secondary_key: str | None = None
    collect_model_data: bool | None = None
    cmk_vault_base_url: str | None = None
    cmk_key_name: str | None = None
    cmk_key_version: str | None = None
    vnet_name: str | None = None
    subnet_name: str | None = None

    _webservice_type = "ACI"

    def __post_init__(self) -> None:
        self.validate_configuration()

    def validate_configuration(self) -> None:
        """Raise a `WebserviceException` where v1 did."""
        check_positive(self, "cpu_cores", "memory_gb")
        check_keys(self.primary_key, self.secondary_key)
        pem = (self.ssl_cert_pem_file, self.ssl_key_pem_file)
        if self.ssl_enabled and not all((*pem, self.ssl_cname)):
            raise _invalid("SSL is enabled, you must provide a SSL certificate, key, and cname.")
        missing = [file for file in pem if file and not os.path.exists(file)]
        if missing:
            raise _invalid(f"Error, unable to find SSL pem file: {missing[0]}")
        if self.dns_name_label and not _DNS_LABEL.fullmatch(self.dns_name_label):
            raise _invalid(
                f"Invalid configuration, dns_name_label {self.dns_name_label!r} must have 3 to 63 "
                "lower-case letters, digits and '-', begin with a letter and not end with '-'."
            )
        if bool(self.vnet_name) != bool(self.subnet_name):
            raise _invalid("Invalid configuration, vnet_name and subnet_name belong together.")


@dataclass
class AksServiceDeploymentConfiguration(WebserviceDeploymentConfiguration):
    """A service as on Kubernetes: several replicas, and callers show a key."""

    autoscale_enabled: bool | None = None
    autoscale_min_replicas: int | None = None
    autoscale_max_replicas: int | None = None
    autoscale_refresh_seconds: int | None = None
    autoscale_target_utilization: int | None = None
    collect_model_data: bool | None = None
    auth_enabled: bool | None = None
    cpu_cores: float | None = None
    memory_gb: float | None = None
    enable_app_insights: bool | None = None
    scoring_timeout_ms: int | None = None
    replica_max_concurrent_requests: int | None = None
    max_request_wait_time: int | None = None
    num_replicas: int | None = None
    primary_key: str | None = None
    secondary_key: str | None = None
    tags: Mapping[str, object] | None = None
    properties: Mapping[str, object] | None = None
    description: str | None = None
    gpu_cores: int | None = None
    period_seconds: int | None = None
    initial_delay_seconds: int | None = None
    timeout_seconds: int | None = None
    success_threshold: int | None = None
    failure_threshold: int | None = None
    namespace: str | None = None
    token_auth_enabled: bool | None = None
    compute_target_name: str | None = None
    cpu_cores_limit: float | None = None
    memory_gb_limit: float | None = None
    blobfuse_enabled: bool | None = None

    _webservice_type = "AKS"

    def __post_init__(self) -> None:
        self.validate_configuration()

    def validate_configuration(self) -> None:
        """Raise a `WebserviceException` where v1 did."""
        check_positive(
            self,
            *("cpu_cores", "memory_gb", "gpu_cores", "cpu_cores_limit", "memory_gb_limit"),
            *("num_replicas", "scoring_timeout_ms", "replica_max_concurrent_requests"),
            *("max_request_wait_time", "autoscale_min_replicas", "autoscale_max_replicas"),
            *("autoscale_refresh_seconds", "autoscale_target_utilization", "period_seconds"),
            *("initial_delay_seconds", "timeout_seconds", "success_threshold"),
            "failure_threshold",
        )
        check_keys(self.primary_key, self.secondary_key)
        check_scale(self)
        if self.auth_enabled and self.token_auth_enabled:
            raise _invalid(
                "Invalid configuration, auth_enabled and token_auth_enabled cannot both be True."
            )
        for asked, limit in (("cpu_cores", "cpu_cores_limit"), ("memory_gb", "memory_gb_limit")):
            least, most = getattr(self, asked), getattr(self, limit)
            if least is not None and most is not None and most < least:
                raise _invalid(f"Invalid configuration, {limit} must be at least {asked}.")


@dataclass
class LocalWebserviceDeploymentConfiguration(WebserviceDeploymentConfiguration):
    """A service to try things with: on a port of one's choice, open to all."""

    port: int | None = None

    _webservice_type = "Local"

    def __post_init__(self) -> None:
        self.validate_configuration()

    def validate_configuration(self) -> None:
        """Raise a `WebserviceException` for what is no port."""
        port = self.port
        if port is not None and (
            isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535
        ):
            raise _invalid("Invalid configuration, port must be an integer from 1 to 65535.")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration in the domain's words; None: nothing was said."""

    compute_type: str
    replicas: int = 1
    cores: float | None = None
    memory_gb: float | None = None
    gpus: int | None = None
    access: ServiceAccess = ServiceAccess()
    primary_key: str | None = None
    secondary_key: str | None = None
    description: str | None = None
    tags: Mapping[str, object] | None = None
    properties: Mapping[str, object] | None = None
    details: dict[str, object] = {}


def plan_settings(config: WebserviceDeploymentConfiguration | None, target: object) -> Settings:
    """What a deployment configuration means here. Warns of what has no effect."""
    if isinstance(target, AttachedCompute):
        raise _invalid(
            f"A service cannot be deployed to '{target.name}', which is of type {target.type}.",
            why="Clusters of Slurm and Ray run jobs; services run on the server's machine.",
            fix="Leave deployment_target away.",
        )
    if config is None:
        config = (
            AciServiceDeploymentConfiguration()
            if target is None
            else AksServiceDeploymentConfiguration()
        )
    if not isinstance(config, WebserviceDeploymentConfiguration):
        raise _invalid(
            f"deployment_config cannot be of type {type(config).__name__}.",
            fix="Use AciWebservice.deploy_configuration(...)",
        )
    config.validate_configuration()  # attributes may have been set meanwhile
    warn_of_no_effect(config)
    details = _details(config, target)
    match config:
        case AciServiceDeploymentConfiguration():
            auth = ServiceAuth.KEY if config.auth_enabled else ServiceAuth.NONE
            return Settings(
                compute_type="ACI",
                cores=config.cpu_cores,
                memory_gb=config.memory_gb,
                access=ServiceAccess(auth=auth),
                primary_key=config.primary_key,
                secondary_key=config.secondary_key,
                description=config.description,
                tags=config.tags,
                properties=config.properties,
                details=details,
            )
        case AksServiceDeploymentConfiguration():
            return Settings(
                compute_type="AKS",
                replicas=replicas_of(config) or 1,
                cores=config.cpu_cores,
                memory_gb=config.memory_gb,
                gpus=config.gpu_cores,
                access=ServiceAccess(
                    auth=_aks_auth(config),
                    timeout_seconds=seconds_of(config, _DEFAULTS) or _DEFAULTS.timeout_seconds,
                ),
                primary_key=config.primary_key,
                secondary_key=config.secondary_key,
                description=config.description,
                tags=config.tags,
                properties=config.properties,
                details=details,
            )
        case LocalWebserviceDeploymentConfiguration():
            access = ServiceAccess(port=config.port)
            return Settings(compute_type="Local", access=access, details=details)
        case _:
            raise _invalid(f"{type(config).__name__} is not a place for services.")


def replicas_of(config: AksServiceDeploymentConfiguration) -> int | None:
    """How many replicas run: as many as there are always; None: nothing was said."""
    return config.num_replicas or config.autoscale_min_replicas


def seconds_of(config: AksServiceDeploymentConfiguration, now: ServiceAccess) -> float | None:
    """How long a caller waits at most: its turn, then the answer; None: nothing was said."""
    if config.scoring_timeout_ms is None and config.max_request_wait_time is None:
        return None
    answer = config.scoring_timeout_ms or now.timeout_seconds * 1000
    return (answer + (config.max_request_wait_time or _V1_WAIT_MS)) / 1000


def _aks_auth(config: AksServiceDeploymentConfiguration) -> ServiceAuth:
    if config.token_auth_enabled:
        return ServiceAuth.TOKEN
    return ServiceAuth.NONE if config.auth_enabled is False else ServiceAuth.KEY


def _details(config: WebserviceDeploymentConfiguration, target: object) -> dict[str, object]:
    """What was said, kept as it was; without keys, and paths of this machine."""
    assert isinstance(
        config,
        AciServiceDeploymentConfiguration
        | AksServiceDeploymentConfiguration
        | LocalWebserviceDeploymentConfiguration,
    )
    said = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in _SHOWN_ELSEWHERE and getattr(config, field.name) is not None
    }
    if target is not None:
        said["compute_target_name"] = str(getattr(target, "name", target))
    return said


def warn_of_no_effect(config: object) -> None:
    """Say which of the given settings do nothing here."""
    names = sorted(name for name in _NO_EFFECT if getattr(config, name, None))
    if names:
        warnings.warn(
            f"These settings are kept but have no effect on a service here: {', '.join(names)}.",
            stacklevel=5,
        )


def check_positive(config: object, *names: str) -> None:
    """`WebserviceException` for a number that is none, or not above 0."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _invalid(f"Invalid configuration, {name} must be positive.")
        if not math.isfinite(value):
            raise _invalid(f"Invalid configuration, {name} must be finite.")


def check_keys(*keys: str | None) -> None:
    """`WebserviceException` for a key that could not travel in a header."""
    for key in keys:
        if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise _invalid(
                "Invalid configuration, a key must have 1 to 512 printable characters, no spaces."
            )


def check_scale(config: AksServiceDeploymentConfiguration) -> None:
    """`WebserviceException` for numbers of replicas that contradict."""
    bounds = (config.autoscale_min_replicas, config.autoscale_max_replicas)
    if config.num_replicas is not None and config.autoscale_enabled:
        raise _invalid(
            "Invalid configuration, num_replicas cannot be set while autoscale_enabled is True."
        )
    if config.autoscale_enabled is False and any(bound is not None for bound in bounds):
        raise _invalid("Invalid configuration, autoscale bounds need autoscale_enabled=True.")
    least, most = bounds
    if least is not None and most is not None and least > most:
        raise _invalid(
            "Invalid configuration, autoscale_min_replicas cannot be greater than "
            "autoscale_max_replicas."
        )


def _invalid(what: str, *, why: str = "", fix: str = "") -> WebserviceException:
    return WebserviceException(error_text(what, why=why, fix=fix))
