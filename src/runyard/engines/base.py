"""Where agents run. An engine starts a group of agents, tells how they are, and stops them.

Queueing, ranks, logs and outputs are ours and the same everywhere; an engine knows none of them.
The promises below are tested by `runyard.testing.engine_suite` on every engine.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NewType, Protocol

import msgspec

from runyard.domain.compute import NodeResources as NodeResources

JobId = NewType("JobId", str)


class JobPhase(StrEnum):
    """How a job is, as its engine sees it."""

    PENDING = "pending"  # the engine has it; nothing runs yet
    ACTIVE = "active"  # its agents run
    EXITED = "exited"  # its agents ended by themselves
    GONE = "gone"  # the engine does not know it, or it vanished without an exit


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What one poll says of one job."""

    phase: JobPhase
    exit_code: int | None = None  # of the agents; None unless EXITED, or where none had begun
    detail: str = ""  # the engine's own words, for people; of PENDING: what it waits for
    # With GONE: a node is lost, and all that was on it. Nobody can take over there, so the attempt
    # is over. Without it another agent may be started in the same place.
    node_lost: bool = False
    hosts: tuple[str, ...] = ()  # where its nodes are, in order; empty: the engine does not say
    name: str = ""  # what the cluster itself calls the job, for people; empty: nothing
    # With GONE or EXITED: the code of the run's error, where the engine knows why there is no
    # agent (its node's disk is full, …); empty: the node was lost. See `runyard_runtime.remote`.
    code: str = ""


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Agents to start together: one on each node, all or none.

    What agents must know of the engine is in the plan already, from its `Capabilities`: whether
    all nodes are on one machine, and whether they share a folder to leave notes for each other.
    So an engine only has to give each agent its node's index and the job's folder.
    """

    key: str  # ours, safe in paths; the same key is the same group
    nodes: int = 1
    plan: bytes  # the agents' plan, see runyard_runtime.wire
    resources: NodeResources | None = None  # of each node; None: the engine's default


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do; checked when a run is submitted."""

    multi_node: bool = False
    one_machine: bool = False  # all its nodes are on one machine
    containers: bool = False  # its agents may use those that the server builds, where it has any
    shared_folder: bool = False  # all nodes of a job see the same job folder
    gpus: bool = False
    # Its nodes find the server wherever it listens: they are on its machine, or are told where.
    finds_server: bool = False
    autoscale: bool = False  # it may get nodes that it has not now: what fits nowhere waits


class Engine(Protocol):
    """Starts, polls and stops node groups. Safe to call from several threads.

    Making one is quick and asks nobody: what a cluster says is asked by the methods. Whichever
    finds that the cluster cannot be reached now raises `Unavailable`: nothing follows from that
    for any job, and the call is made again in a while. A refusal (a wrong token, a partition that
    does not exist, a size that no node has) is any other `RunyardError`.
    """

    name: str
    capabilities: Capabilities

    def check(self, trial: NodeGroup | None = None) -> None:
        """Ask the cluster whether it takes jobs as configured; raises what is wrong, in words.

        With a `trial`, whether it would ever have nodes for that group; its plan is not looked at.
        """

    def start(self, group: NodeGroup) -> JobId:
        """Start the group; the job's id is the group's key, so that it is known beforehand.

        Starting a key again finds the same job: it is started once.

        If agents of that key died without an exit, those are started again in the same place
        and take over what their predecessors left; the others of the group go on meanwhile.
        """

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """The status of each, in one round trip. An unknown job is GONE, not an error.

        A group is GONE as soon as one of its agents is, and EXITED when all have exited; its exit
        code is then that of the first node whose agent had one.
        """

    def stop(self, job: JobId) -> None:
        """Ask the agents to end: they stop their ranks and keep the outputs. Idempotent."""

    def kill(self, job: JobId) -> None:
        """End the agents and all they started, at once. Idempotent.

        Its nodes are given to others when it returns. So it raises `EngineFailed` where it sees
        that something could not be ended, and is called again in a while.
        """

    def jobs(self) -> Sequence[JobId]:
        """Every job of ours that the engine still keeps: started and not forgotten.

        Ours is what was started from this engine's folder, never what another server has on the
        same cluster.
        """

    def forget(self, job: JobId) -> None:
        """Remove what the engine keeps of a job that is over. Idempotent."""


# Makes an engine that keeps its jobs below a folder, from its options and its secrets.
Opener = Callable[[Path, Mapping[str, str], Mapping[str, str]], Engine]
