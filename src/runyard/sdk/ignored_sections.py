"""Sections of v1's run configuration that say something about Azure's own services only.

They are there so that code and files that fill them in work; nothing here reads them.
"""

from dataclasses import dataclass, field

from runyard.sdk.element import closed


@closed
@dataclass
class SparkConfiguration:
    """Settings of a Spark session."""

    configuration: dict[str, object] = field(default_factory=dict)


@closed
@dataclass
class HdiConfiguration:
    """How a job is laid over an HDInsight cluster."""

    yarn_deploy_mode: str = "cluster"


@closed
@dataclass
class AmlComputeConfiguration:
    """The cluster that v1 made for one run and removed after it."""

    vm_size: str | None = None
    vm_priority: str | None = None
    retain_cluster: bool = False
    name: str | None = None
    cluster_max_node_count: int | None = None


@closed
@dataclass
class KubernetesComputeConfiguration:
    """The kind of machine that a job of a Kubernetes cluster gets."""

    instance_type: str | None = None


@closed
@dataclass
class ParallelTaskConfiguration:
    """How often workers of a parallel step are tried again."""

    max_retries_per_worker: int = 0
    worker_count_per_node: int = 1
    terminal_exit_codes: list[int] | None = None
