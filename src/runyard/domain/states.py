"""The states a run goes through, and which may follow which.

The words are the ones v1 code compares against. Why a run is where it is stands beside the
state, in `RunRecord.waiting` and `RunRecord.error`, never in a new state.
"""

from enum import StrEnum


class RunState(StrEnum):
    """Where a run is on its road."""

    NOT_STARTED = "NotStarted"
    PREPARING = "Preparing"  # its environment is being resolved and built
    QUEUED = "Queued"  # waits for nodes
    STARTING = "Starting"  # the engine has it; no agent has reported yet
    RUNNING = "Running"
    FINALIZING = "Finalizing"  # the script is over; outputs are being kept
    CANCEL_REQUESTED = "CancelRequested"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELED = "Canceled"


S = RunState

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    S.NOT_STARTED: frozenset({S.PREPARING, S.RUNNING, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}),
    S.PREPARING: frozenset({S.QUEUED, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}),
    S.QUEUED: frozenset({S.STARTING, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}),
    # Back to QUEUED: the whole gang starts again, as a new attempt.
    S.STARTING: frozenset({S.RUNNING, S.QUEUED, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}),
    S.RUNNING: frozenset(
        {S.FINALIZING, S.COMPLETED, S.QUEUED, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}
    ),
    S.FINALIZING: frozenset({S.COMPLETED, S.QUEUED, S.FAILED, S.CANCELED, S.CANCEL_REQUESTED}),
    S.CANCEL_REQUESTED: frozenset({S.CANCELED, S.FAILED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELED: frozenset(),
}

TERMINAL = frozenset(state for state, following in TRANSITIONS.items() if not following)
ACTIVE = frozenset(TRANSITIONS) - TERMINAL


class IllegalTransition(Exception):
    """A bug of the platform: some code tried to move a run where it may not go."""


def advance(current: RunState, new: RunState) -> RunState:
    """Return `new`, or raise if a run in `current` may not go there."""
    if new not in TRANSITIONS[current]:
        allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing, it is final"
        raise IllegalTransition(f"a {current} run cannot become {new}; allowed: {allowed}")
    return new
