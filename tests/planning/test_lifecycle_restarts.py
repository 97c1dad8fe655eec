"""Which failures another attempt follows, and what a run remembers of the ones before."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from runyard.domain.agents import AgentReport, RankEnd
from runyard.domain.compute import Machine, NodeUse
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.runs import (
    LauncherSpec,
    RunError,
    RunRecord,
    RunSpec,
    ScriptSpec,
    attempt_words,
)
from runyard.domain.states import RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import JobPhase, JobStatus
from runyard.planning import lifecycle
from runyard.planning.job import Surroundings, plan_job
from runyard_runtime import wire

NOW = datetime(2026, 1, 2, tzinfo=UTC)
S = RunState
KILLED = RunError(code="UserError", message="Rank 1 ended by signal SIGKILL.", rank=1, exit_code=-9)


def seconds(count: float) -> datetime:
    return NOW + timedelta(seconds=count)


def running(max_restarts: int = 2, **script: object) -> RunRecord:
    """A run whose script began at NOW."""
    spec = ScriptSpec(
        arguments=("train.py",),
        snapshot="0" * 64,
        environment=EnvironmentSpec(name="e"),
        max_restarts=max_restarts,
    )
    spec = msgspec.structs.replace(spec, **script)
    run = RunRecord(
        id="r",
        uid="u",
        spec=RunSpec(workspace="w", experiment="e", script=spec),
        created=NOW,
        environment=EnvironmentUse(interpreter="python", python="3.11", key="k"),
    )
    run = lifecycle.move(run, S.PREPARING, S.QUEUED, S.STARTING, now=NOW)
    run = msgspec.structs.replace(run, job="job-1", nodes=(NodeUse(id="local-1"),))
    return lifecycle.move(run, S.RUNNING, now=NOW)


def finished(attempt: int = 1, **fields: object) -> AgentReport:
    ranks = (RankEnd(rank=0, exit_code=0), RankEnd(rank=1, exit_code=-9))
    said = AgentReport(attempt=attempt, phase=wire.FINISHED, ranks=ranks, error=KILLED)
    return msgspec.structs.replace(said, **fields)


def begin_again(run: RunRecord, now: datetime) -> RunRecord:
    return lifecycle.move(run, S.STARTING, S.RUNNING, now=now)


def test_a_failed_attempt_goes_back_in_line_and_stays_on_record() -> None:
    run = lifecycle.apply_report(running(), finished(), seconds(5))
    assert (run.state, run.attempt, run.error, run.ended) == (S.QUEUED, 2, None, None)
    assert (run.job, run.nodes) == (None, ())
    assert not lifecycle.has_job(run)
    assert [step.state for step in run.history][-3:] == [S.RUNNING, S.FINALIZING, S.QUEUED]
    (before,) = run.attempts
    assert (before.attempt, before.started, before.ended) == (1, NOW, seconds(5))
    assert (before.error, before.nodes, before.job) == (KILLED, (NodeUse(id="local-1"),), "job-1")
    assert attempt_words(run) == "attempt 2 of 3"


def test_the_last_attempt_decides_and_the_error_is_its_own() -> None:
    run = running(max_restarts=1)
    run = begin_again(lifecycle.apply_report(run, finished(), seconds(1)), seconds(2))
    last = msgspec.structs.replace(KILLED, message="Rank 0 failed.", rank=0)
    run = lifecycle.apply_report(run, finished(2, error=last), seconds(3))
    assert (run.state, run.attempt, run.error) == (S.FAILED, 2, last)
    assert [one.error for one in run.attempts] == [KILLED]


def test_a_later_attempt_may_succeed() -> None:
    run = begin_again(lifecycle.apply_report(running(), finished(), seconds(1)), seconds(2))
    fine = finished(2, ranks=(RankEnd(rank=0, exit_code=0),), error=None)
    run = lifecycle.apply_report(run, fine, seconds(3))
    assert (run.state, run.error, run.started) == (S.COMPLETED, None, NOW)


def test_a_repeated_report_of_an_old_attempt_changes_nothing() -> None:
    run = lifecycle.apply_report(running(), finished(), seconds(1))
    assert lifecycle.apply_report(run, finished(), seconds(2)) == run
    assert lifecycle.decide(run, JobStatus(phase=JobPhase.EXITED), seconds(2)) is None
    assert lifecycle.decide(run, JobStatus(phase=JobPhase.GONE), seconds(2)) is None


HOPELESS = [
    "CannotBePlaced",
    "CannotRun",
    "ComputeTargetNotFound",
    "EnvironmentFailed",
    "InputFailed",
    "InternalError",
    "LauncherMismatch",
    "LayoutFailed",
    "MaxRunDurationExceeded",
    "NodePython",
    "UnknownLauncher",
]


def test_every_code_that_is_never_tried_again_is_in_the_list() -> None:
    assert sorted(lifecycle.NEVER_MENDED) == HOPELESS


@pytest.mark.parametrize("code", HOPELESS)
def test_what_would_only_fail_again_is_not_tried_again(code: str) -> None:
    error = RunError(code=code, message="it cannot be")
    said = AgentReport(attempt=1, phase=wire.FAILED, error=error)
    after = lifecycle.apply_report(running(), said, seconds(1))
    assert (after.state, after.error) == (S.FAILED, error)


@pytest.mark.parametrize(
    "code",
    [
        "UserError",
        "NodeLost",
        "EngineFailed",
        "GroupNotFormed",
        "StartFailed",
        "NoPorts",
        "MpirunFailed",
        "ExitCodeUnknown",
        "Preempted",
        "ClusterTimeLimit",
        "CanceledInCluster",
    ],
)
def test_what_may_go_better_is_tried_again(code: str) -> None:
    error = RunError(code=code, message="bad luck")
    assert lifecycle.end_attempt(running(), now=seconds(1), error=error).state is S.QUEUED
    once = lifecycle.end_attempt(running(max_restarts=0), now=seconds(1), error=error)
    assert (once.state, once.attempts) == (S.FAILED, ())


def test_a_run_that_somebody_stopped_is_tried_again_but_not_one_that_is_canceled() -> None:
    stopped = finished(stopped=True, error=None)
    assert lifecycle.apply_report(running(), stopped, NOW).state is S.QUEUED
    canceled = lifecycle.request_cancel(running(), NOW)
    assert lifecycle.apply_report(canceled, finished(), NOW).state is S.CANCELED


def test_a_run_whose_time_is_up_is_not_tried_again() -> None:
    late = finished(timed_out=True)
    after = lifecycle.apply_report(running(max_run_duration_seconds=60), late, seconds(60))
    assert (after.state, after.attempts) == (S.CANCELED, ())


def test_a_lost_node_counts_as_a_failure() -> None:
    run = msgspec.structs.replace(running(), takeovers=5, taken_over=NOW)
    verdict = lifecycle.decide(run, JobStatus(phase=JobPhase.GONE), seconds(1))
    assert verdict is not None
    after = verdict.run
    assert (after.state, after.attempt, after.takeovers) == (S.QUEUED, 2, 0)
    assert after.attempts[0].error.code == "NodeLost"


def test_members_of_a_gang_do_not_move_the_run() -> None:
    run = running()
    for phase in (wire.STARTED, wire.ENDED, wire.FINISHED, wire.FAILED):
        assert lifecycle.apply_report(run, finished(phase=phase, node=1), NOW) == run


def test_the_time_of_all_attempts_counts_but_not_what_it_waited() -> None:
    run = running(max_run_duration_seconds=100)
    run = lifecycle.apply_report(run, finished(), seconds(30))
    run = lifecycle.move(run, S.STARTING, now=seconds(1000))
    assert lifecycle.seconds_before(run) == 30
    run = lifecycle.move(run, S.RUNNING, now=seconds(1000))
    assert planned(run)["max_run_duration_seconds"] == 70
    assert lifecycle.apply_report(run, finished(2), seconds(1050)).state is S.QUEUED
    late = lifecycle.apply_report(run, finished(2), seconds(1075))
    assert (late.state, late.error) == (S.FAILED, KILLED)


def test_a_run_has_its_place_in_line_since_it_last_came_into_it() -> None:
    run = lifecycle.apply_report(running(), finished(), seconds(5))
    assert lifecycle.in_line_since(run) == seconds(5)
    assert lifecycle.in_line_since(msgspec.structs.replace(run, history=())) == NOW


def planned(run: RunRecord, **around: object) -> dict[str, object]:
    workspace = WorkspaceRecord(id="w", name="w", created=NOW)
    known = Surroundings(
        url="http://x",
        address_file=None,
        token="t",
        agent_token="a",
        runtime="/r",
        blobs=None,
        grace_seconds=1,
        sample_seconds=0,
    )
    plan = plan_job(run, workspace, (), msgspec.structs.replace(known, **around))
    return msgspec.json.decode(plan, type=dict[str, object])


def test_a_job_knows_its_attempt_and_what_to_put_back() -> None:
    first = planned(running())
    assert ("restore" in first, first["variables"]) == (False, {"RUNYARD_ATTEMPT": "1"})
    again = planned(lifecycle.apply_report(running(), finished(), seconds(1)))
    assert (again["restore"], again["attempt"]) == (True, 2)
    assert "restarted_after" not in first
    assert again["restarted_after"] == KILLED.message
    assert again["variables"] == {"RUNYARD_ATTEMPT": "2"}


@pytest.mark.parametrize(
    ("launcher", "gpus", "cores", "shares"),
    [
        (LauncherSpec(), ("0", "1"), None, None),
        (LauncherSpec(kind="mpi", processes_per_node=4), ("0", "1"), [6], None),
        (LauncherSpec(kind="mpi", nodes=2), ("0", "1"), [3, 3], [["0"], ["1"]]),
        (LauncherSpec(kind="mpi", nodes=3), ("0", "1"), [2, 2, 2], [[], [], []]),
        (LauncherSpec(kind="pytorch", nodes=2), (), [3, 3], None),
        (LauncherSpec(kind="pytorch", nodes=9), (), [1] * 9, None),
    ],
)
def test_nodes_of_a_run_on_local_share_the_machine(
    launcher: LauncherSpec,
    gpus: tuple[str, ...],
    cores: list[int] | None,
    shares: list[list[str]] | None,
) -> None:
    plan = planned(
        running(launcher=launcher), machine=Machine(cores=6, gpus=gpus), one_machine=True
    )
    assert (plan.get("cores"), plan.get("gpus"), plan["one_machine"]) == (cores, shares, True)


def test_nodes_that_share_no_folder_meet_on_the_server() -> None:
    run = running(launcher=LauncherSpec(kind="pytorch", nodes=2))
    assert planned(run, shared_folder=False)["board"] == "server"
    assert "board" not in planned(run)
    assert "board" not in planned(running(), shared_folder=False)
