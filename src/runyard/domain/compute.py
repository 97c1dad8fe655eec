"""Compute targets: pools of nodes that come up when runs need them and go when they idle.

A *pool* is what v1 called an AmlCompute cluster. Its nodes are of one size. On one machine a node
is a share of that machine: some of its cores, and, while it works, some of its GPUs. The nodes of
other targets come from an engine elsewhere: one that was attached, or the one that the server's
settings name.
"""

import re
from datetime import datetime
from enum import StrEnum

import msgspec

from runyard.domain.errors import Invalid


class VmSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a node of a size has, as its name promises."""

    name: str
    cores: int
    memory_gb: float
    gpus: int = 0
    disk_gb: int = 0


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine that runs the nodes really has."""

    cores: int
    memory_gb: float = 0.0
    gpus: tuple[str, ...] = ()  # their ids, as CUDA_VISIBLE_DEVICES names them


class NodeResources(msgspec.Struct, frozen=True, kw_only=True):
    """What each node of a group must have; None: as the cluster sees fit."""

    cores: int | None = None
    memory_gb: float | None = None
    gpus: int | None = None


class ClusterKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of cluster elsewhere, as settings and people name one: `KIND:VALUE`."""

    main: str  # the option that the value is of
    is_needed: bool  # whether there must be one


# The same keys as runyard.engines.ENGINES has, but for this machine's own.
CLUSTERS = {
    "ray": ClusterKind(main="address", is_needed=True),
    "slurm": ClusterKind(main="partition", is_needed=False),
}


class EngineRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine the nodes of a target come from, and how it is reached."""

    kind: str  # a key of runyard.engines.ENGINES
    options: dict[str, str] = {}  # the engine's own: address, partition, …
    secret: str = ""  # sealed, see runyard.data.sealing; never shown


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a run works on, and what it has there."""

    id: str
    cores: int | None = None  # None: all that the machine has
    gpus: tuple[str, ...] | None = None  # None: all; empty: none
    host: str = ""  # its name where it is; empty: not known, or this machine


class NodeState(StrEnum):
    """How a node is; the words are v1's."""

    PREPARING = "preparing"  # it is coming up
    IDLE = "idle"
    RUNNING = "running"  # a run works on it
    LEAVING = "leaving"  # it is going
    UNUSABLE = "unusable"


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a pool."""

    id: str
    state: NodeState
    since: datetime  # when it came into that state
    run: str | None = None  # the run that works on it
    cores: int = 1
    gpus: tuple[str, ...] = ()  # those it has now; idle nodes have none
    host: str = ""  # its name where it is; empty: not known, or this machine


class Allocation(StrEnum):
    """Whether a pool has as many nodes as it wants; the words are v1's."""

    STEADY = "Steady"
    RESIZING = "Resizing"


class Priority(StrEnum):
    """v1's kinds of machines. Kept and shown; nothing is taken away from a run here."""

    DEDICATED = "dedicated"
    LOW = "lowpriority"


class ComputeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a pool."""

    vm_size: str = ""  # empty: v1's default
    priority: Priority = Priority.DEDICATED
    min_nodes: int = 0
    max_nodes: int
    idle_seconds: int = 1800
    description: str = ""
    tags: dict[str, str | None] = {}
    details: dict[str, str] = {}  # what v1 shows and means nothing here: vnet_name, …


class AttachSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that exists already, to be used as a target."""

    kind: str  # a key of runyard.engines.ENGINES
    options: dict[str, str] = {}
    secrets: dict[str, str] = {}  # kept encrypted, never sent back
    max_nodes: int | None = None  # that our runs take at once; None: the cluster decides
    resources: NodeResources = NodeResources()  # of each node
    description: str = ""
    tags: dict[str, str | None] = {}


class ComputePatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the scale of a pool; None leaves as it is."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    idle_seconds: int | None = None


class ComputeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as the platform knows it, with its nodes."""

    id: str
    workspace: str
    name: str
    created: datetime
    version: int = 0
    modified: datetime
    size: VmSize
    priority: Priority = Priority.DEDICATED
    min_nodes: int = 0
    max_nodes: int | None  # None: as many as the cluster gives
    idle_seconds: int = 1800
    node_cores: int  # what a node gets; 0: what its engine gives it
    description: str = ""
    tags: dict[str, str | None] = {}
    details: dict[str, str] = {}
    warnings: tuple[str, ...] = ()  # where the machine is smaller than the size promises
    nodes: tuple[NodeRecord, ...] = ()
    nodes_made: int = 0  # so far; names the next one
    target_nodes: int = 0  # how many it wants to have now
    allocation: Allocation = Allocation.STEADY
    allocation_since: datetime
    engine: EngineRef | None = None  # where its nodes come from; None: this machine
    attached: bool = False  # True: the cluster was there before, and stays when this goes
    resources: NodeResources | None = None  # that a node is asked for; None: nothing is asked


def redact_compute(record: ComputeRecord) -> ComputeRecord:
    """The target as people see it: without what opens its cluster."""
    if record.engine is None or not record.engine.secret:
        return record
    return msgspec.structs.replace(record, engine=msgspec.structs.replace(record.engine, secret=""))


RESERVED = ("amlcompute", "local", "containerinstance")  # v1's own, in any case

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{1,63}")


def check_compute_name(name: str) -> str:
    """The name, or `Invalid`."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a compute target.",
            why="It needs 2 to 64 letters, digits, - or _, and starts with a letter.",
            fix="Choose another name.",
        )
    if name.lower() in RESERVED:
        raise Invalid(
            f"Please specify a different target name. {name} is a reserved name.",
            why=f"The names {', '.join(RESERVED)} mean something else.",
            fix="Choose another name.",
        )
    return name


def check_scale(min_nodes: int, max_nodes: int | None, idle_seconds: int) -> None:
    """Refuse a scale that makes no sense, in v1's words."""
    what = ""
    if max_nodes is not None and max_nodes < 0:
        what = "max nodes count must be greater than or equal to 0"
    elif min_nodes < 0:
        what = "min nodes count must be greater than or equal to 0"
    elif max_nodes is not None and max_nodes < min_nodes:
        what = "max nodes count must be greater than or equal to min nodes count"
    elif idle_seconds < 0:
        what = "idle seconds before scaledown must be greater than or equal to 0"
    if what:
        raise Invalid(
            f"Invalid provisioning configuration, {what}.",
            why=f"min_nodes={min_nodes}, max_nodes={max_nodes}, idle seconds {idle_seconds}.",
        )
