"""What agents tell the server, and what they are told in return."""

import msgspec

from runyard.domain.runs import RunError


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank ended. A negative exit code is the signal that killed it."""

    rank: int
    exit_code: int


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report of the agent on one node; sending it again changes nothing."""

    attempt: int
    node: int = 0
    phase: str  # wire.STARTED, ENDED, FINISHED, FAILED; ALIVE only says that it lives
    ranks: tuple[RankEnd, ...] = ()
    error: RunError | None = None  # the first real error among this node's ranks
    stopped: bool = False  # the ranks were ended because the run was to stop
    timed_out: bool = False  # the ranks were ended because the run's time was up


class AgentOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a report."""

    stop: bool = False  # end the ranks, keep the outputs, finish
