"""Tables over the life of a run."""

from datetime import UTC, datetime

import msgspec
import pytest

from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Conflict
from runyard.domain.runs import RunError, RunKind, RunRecord, RunSpec, ScriptSpec
from runyard.domain.states import TERMINAL, IllegalTransition, RunState
from runyard.engines.base import JobPhase, JobStatus
from runyard.planning import lifecycle
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
YESTERDAY = datetime(2026, 1, 1, tzinfo=UTC)
S = RunState


def a_run(state: RunState, kind: RunKind = RunKind.SCRIPT, **fields: object) -> RunRecord:
    script = ScriptSpec(
        arguments=("train.py",), snapshot="0" * 64, environment=EnvironmentSpec(name="e")
    )
    spec = RunSpec(
        workspace="w",
        experiment="e",
        kind=kind,
        script=script if kind is RunKind.SCRIPT else None,
    )
    run = RunRecord(id="r", uid="u", spec=spec, created=NOW, state=state)
    return msgspec.structs.replace(run, **fields)


def report(phase: str, *codes: int, **fields: object) -> AgentReport:
    ranks = tuple(RankEnd(rank=rank, exit_code=code) for rank, code in enumerate(codes))
    return msgspec.structs.replace(AgentReport(attempt=1, phase=phase, ranks=ranks), **fields)


def test_moving_keeps_history_and_times() -> None:
    run = lifecycle.move(a_run(S.NOT_STARTED), S.PREPARING, S.QUEUED, S.STARTING, now=NOW)
    run = lifecycle.move(run, S.RUNNING, now=NOW)
    run = lifecycle.move(run, S.FINALIZING, S.COMPLETED, now=NOW)
    assert [step.state for step in run.history] == [
        S.PREPARING,
        S.QUEUED,
        S.STARTING,
        S.RUNNING,
        S.FINALIZING,
        S.COMPLETED,
    ]
    assert run.started == run.ended == NOW


def test_moving_to_the_same_state_changes_nothing() -> None:
    run = a_run(S.RUNNING)
    assert lifecycle.move(run, S.RUNNING, now=NOW) == run


def test_an_ended_run_does_not_move() -> None:
    with pytest.raises(IllegalTransition):
        lifecycle.move(a_run(S.FAILED), S.RUNNING, now=NOW)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (a_run(S.NOT_STARTED), S.CANCELED),
        (a_run(S.PREPARING), S.CANCELED),
        (a_run(S.QUEUED), S.CANCELED),
        (a_run(S.STARTING), S.CANCEL_REQUESTED),
        (a_run(S.RUNNING), S.CANCEL_REQUESTED),
        (a_run(S.FINALIZING), S.CANCEL_REQUESTED),
        (a_run(S.CANCEL_REQUESTED), S.CANCEL_REQUESTED),
        (a_run(S.COMPLETED), S.COMPLETED),
        (a_run(S.FAILED), S.FAILED),
        (a_run(S.RUNNING, RunKind.INTERACTIVE), S.CANCELED),
    ],
)
def test_cancel(run: RunRecord, expected: RunState) -> None:
    assert lifecycle.request_cancel(run, NOW).state is expected


@pytest.mark.parametrize(
    ("run", "sent", "expected"),
    [
        (a_run(S.STARTING), report(wire.STARTED), S.RUNNING),
        (a_run(S.RUNNING), report(wire.STARTED), S.RUNNING),
        (a_run(S.STARTING), report(wire.ENDED, 0), S.FINALIZING),
        (a_run(S.RUNNING), report(wire.ENDED, 1), S.FINALIZING),
        (a_run(S.RUNNING), report(wire.FINISHED, 0), S.COMPLETED),
        (a_run(S.STARTING), report(wire.FINISHED, 0), S.COMPLETED),
        (a_run(S.FINALIZING), report(wire.FINISHED, 0, 0), S.COMPLETED),
        (a_run(S.FINALIZING), report(wire.FINISHED, 0, 3), S.FAILED),
        (a_run(S.RUNNING), report(wire.FINISHED, -9), S.FAILED),
        (a_run(S.STARTING), report(wire.FAILED), S.FAILED),
        (a_run(S.RUNNING), report(wire.FINISHED, -15, timed_out=True), S.CANCELED),
        (a_run(S.CANCEL_REQUESTED), report(wire.FINISHED, -15, stopped=True), S.CANCELED),
        (a_run(S.CANCEL_REQUESTED), report(wire.FINISHED, stopped=True), S.CANCELED),
        (a_run(S.RUNNING), report(wire.FINISHED, 0, stopped=True), S.FAILED),
        (a_run(S.RUNNING), report(wire.FINISHED, -15, stopped=True), S.FAILED),
        (a_run(S.STARTING), report(wire.FINISHED, stopped=True), S.FAILED),
        (a_run(S.STARTING), report(wire.FINISHED), S.FAILED),
        (a_run(S.CANCEL_REQUESTED), report(wire.FINISHED, 0), S.CANCELED),
        (a_run(S.CANCEL_REQUESTED), report(wire.STARTED), S.CANCEL_REQUESTED),
        (a_run(S.CANCELED), report(wire.FINISHED, 0), S.CANCELED),
        (a_run(S.COMPLETED), report(wire.FINISHED, 1), S.COMPLETED),
        (a_run(S.RUNNING, attempt=2), report(wire.FINISHED, 1), S.RUNNING),
        (a_run(S.RUNNING), report("alive"), S.RUNNING),
    ],
)
def test_reports(run: RunRecord, sent: AgentReport, expected: RunState) -> None:
    after = lifecycle.apply_report(run, sent, NOW)
    assert after.state is expected
    assert lifecycle.apply_report(after, sent, NOW) == after, "a repeated report changes nothing"


def test_a_failed_run_says_why() -> None:
    error = RunError(code="UserError", message="ValueError: bad", rank=1, exit_code=1)
    after = lifecycle.apply_report(a_run(S.RUNNING), report(wire.FINISHED, 1, error=error), NOW)
    assert after.error == error
    after = lifecycle.apply_report(a_run(S.RUNNING), report(wire.FINISHED, 0, 7), NOW)
    assert after.error is not None
    assert "rank 1 with 7" in after.error.message


@pytest.mark.parametrize(("codes", "words"), [((0,), "was ended"), ((), "never ran")])
def test_a_run_that_somebody_else_stopped_says_so(codes: tuple[int, ...], words: str) -> None:
    sent = report(wire.FINISHED, *codes, stopped=True)
    after = lifecycle.apply_report(a_run(S.STARTING), sent, NOW)
    assert after.error is not None
    assert after.error.code == "Stopped"
    assert f"{words}: the agent was told to stop by somebody other" in after.error.message


def test_a_run_that_took_too_long_says_so() -> None:
    after = lifecycle.apply_report(a_run(S.RUNNING), report(wire.FINISHED, timed_out=True), NOW)
    assert after.error is not None
    assert after.error.code == "MaxRunDurationExceeded"


def test_the_owner_may_end_a_run_that_works() -> None:
    assert lifecycle.request_end(a_run(S.RUNNING), S.COMPLETED, NOW).state is S.COMPLETED
    assert lifecycle.request_end(a_run(S.QUEUED), S.FAILED, NOW).state is S.FAILED


@pytest.mark.parametrize("state", [*sorted(TERMINAL - {S.COMPLETED}), S.QUEUED])
def test_the_owner_may_not_complete_what_does_not_work(state: RunState) -> None:
    with pytest.raises(Conflict, match=f"It is {state}"):
        lifecycle.request_end(a_run(state), S.COMPLETED, NOW)


@pytest.mark.parametrize(
    ("run", "phase", "expected"),
    [
        (a_run(S.RUNNING), JobPhase.ACTIVE, None),
        (a_run(S.STARTING), JobPhase.PENDING, None),
        (a_run(S.COMPLETED), JobPhase.GONE, None),
        (a_run(S.RUNNING), JobPhase.GONE, (S.RUNNING, True)),
        (a_run(S.CANCEL_REQUESTED), JobPhase.GONE, (S.CANCEL_REQUESTED, True)),
        (a_run(S.RUNNING, takeovers=4, taken_over=NOW), JobPhase.GONE, (S.RUNNING, True)),
        (a_run(S.RUNNING, takeovers=5, taken_over=NOW), JobPhase.GONE, (S.FAILED, False)),
        (a_run(S.RUNNING, takeovers=5, taken_over=YESTERDAY), JobPhase.GONE, (S.RUNNING, True)),
        (a_run(S.FINALIZING), JobPhase.EXITED, (S.FAILED, False)),
        (a_run(S.CANCEL_REQUESTED), JobPhase.EXITED, (S.CANCELED, False)),
        (
            a_run(S.CANCEL_REQUESTED, takeovers=5, taken_over=NOW),
            JobPhase.GONE,
            (S.CANCELED, False),
        ),
    ],
)
def test_what_follows_from_a_look_at_the_job(
    run: RunRecord, phase: JobPhase, expected: tuple[RunState, bool] | None
) -> None:
    verdict = lifecycle.decide(run, JobStatus(phase=phase), NOW)
    assert (verdict and (verdict.run.state, verdict.take_over)) == expected


@pytest.mark.parametrize(
    ("exit_code", "code", "words"),
    [
        (
            70,
            "NotReported",
            "The agent ended with exit code 70 and could not report. The engine says: why",
        ),
        (
            None,
            "NodeLost",
            "The run did not begin: no agent of it was started. The engine says: why",
        ),
    ],
)
def test_a_run_that_never_had_its_nodes_is_not_told_of_an_exit_code(
    exit_code: int | None, code: str, words: str
) -> None:
    status = JobStatus(phase=JobPhase.EXITED, exit_code=exit_code, detail="why")
    verdict = lifecycle.decide(a_run(S.STARTING), status, NOW)
    assert verdict is not None
    assert verdict.run.error is not None
    assert verdict.run.error.message == words
    assert verdict.run.error.code == code


@pytest.mark.parametrize(
    ("code", "told", "words"),
    [
        ("", "NodeLost", "was lost, and all that ran on it. The engine says: why"),
        ("ServerUnreachable", "ServerUnreachable", "The engine says: why. Give the server an"),
        ("NodeRefused", "NodeRefused", "The engine says: why. See that the address"),
        ("NodeFull", "NodeFull", "The engine says: why. Make room there"),
        ("NodeConfused", "NodeConfused", "could not work for it. The engine says: why"),
    ],
)
def test_a_node_that_could_not_begin_is_not_taken_for_a_lost_one(
    code: str, told: str, words: str
) -> None:
    status = JobStatus(phase=JobPhase.GONE, node_lost=True, code=code, detail="why")
    verdict = lifecycle.decide(a_run(S.STARTING), status, NOW)
    assert verdict is not None
    assert verdict.run.error is not None
    assert verdict.run.error.code == told
    assert words in verdict.run.error.message
