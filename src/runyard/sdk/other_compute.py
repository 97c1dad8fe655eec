"""Compute targets of v1 that Runyard does not have: their names, and words when they are used."""

from typing import TYPE_CHECKING, NoReturn

from runyard.sdk.compute import ComputeTarget
from runyard.sdk.exceptions import ComputeTargetException, error_text

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

_CLUSTER = (
    "Make a cluster: ComputeTarget.create(ws, 'cpu-cluster', "
    "AmlCompute.provisioning_configuration(max_nodes=4)), or use compute_target='local'."
)


class _NotHere(ComputeTarget):
    """A kind of target that can be imported and named, but neither made nor attached."""

    _why = "It belongs to Azure."
    _fix = _CLUSTER

    def __new__(cls, workspace: "Workspace", name: str) -> NoReturn:
        cls._refuse()

    @classmethod
    def provisioning_configuration(cls, *args: object, **kwargs: object) -> NoReturn:
        """Refuse, in words."""
        cls._refuse()

    @classmethod
    def attach_configuration(cls, *args: object, **kwargs: object) -> NoReturn:
        """Refuse, in words."""
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        what = f"{cls.__name__} is not supported."
        raise ComputeTargetException(error_text(what, why=cls._why, fix=cls._fix))


class RemoteCompute(_NotHere):
    """v1's machine that is reached by ssh."""

    _why = "Runyard does not start jobs over ssh."
    _fix = "Start a server on that machine and point RUNYARD_URL at it."


class DsvmCompute(_NotHere):
    """v1's data science virtual machine."""


class HDInsightCompute(_NotHere):
    """v1's Spark cluster."""


class DatabricksCompute(_NotHere):
    """v1's Databricks workspace."""


class DataFactoryCompute(_NotHere):
    """v1's Data Factory."""


class BatchCompute(_NotHere):
    """v1's Azure Batch account."""


class AdlaCompute(_NotHere):
    """v1's Data Lake Analytics account."""


class KustoCompute(_NotHere):
    """v1's Kusto cluster."""


class SynapseCompute(_NotHere):
    """v1's Synapse Spark pool."""


class KubernetesCompute(_NotHere):
    """v1's attached Kubernetes cluster."""

    _why = "Runyard starts nothing on Kubernetes itself; Ray does, through KubeRay."
    _fix = (
        "Run a RayCluster there and attach it: ComputeTarget.attach(ws, name, "
        "RayCompute.attach_configuration('http://HOST:8265')). See docs/scale.md."
    )
