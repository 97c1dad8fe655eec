"""How a run moves: pure functions from a record and what happened to the next record."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from runyard.domain.agents import AgentReport
from runyard.domain.errors import Conflict
from runyard.domain.runs import Attempt, RunError, RunKind, RunRecord, Transition
from runyard.domain.states import TERMINAL, TRANSITIONS, RunState, advance
from runyard.engines.base import JobPhase, JobStatus
from runyard_runtime import wire

# An agent that dies more often than this dies of something that a restart won't mend.
MAX_TAKEOVERS = 5
TAKEOVER_PERIOD = timedelta(minutes=10)

# Failures that a new attempt would only repeat, by the code of the error: what was asked for
# cannot be begun, or was ended on purpose. After all others (a rank failed or was killed, a node
# or its agent was lost, the engine or the node had no room to start it) another may do better.
NEVER_MENDED = {
    "EnvironmentFailed": "the environment would fail to build again",
    "LayoutFailed": "the snapshot cannot be laid out",
    "InputFailed": "an input cannot be had",
    "CannotRun": "its command is not there, or is no program",
    "UnknownLauncher": "no node knows how to start it",
    "LauncherMismatch": "its processes cannot be laid over its nodes",
    "ComputeTargetNotFound": "its compute target is gone",
    "CannotBePlaced": "its cluster has no such nodes",
    "NodePython": "its nodes have no Python for an agent",
    "MaxRunDurationExceeded": "its time is up",
    "InternalError": "a bug of the platform stays where it is",
}


# What to do about a node that could not work for a run, by the code of the error.
_FIXES = {
    "ServerUnreachable": "Give the server an address that nodes reach: RUNYARD_HOST, and "
    "RUNYARD_PUBLIC_URL where it has another name there.",
    "NodeRefused": "See that the address which nodes are told is this server's, that it answers to "
    "that name (RUNYARD_PUBLIC_URL, RUNYARD_ALLOWED_HOSTS), and that its secret was not changed.",
    "NodeFull": "Make room there, or give the nodes another folder.",
    "NodePython": "Attach the target with the option 'python': an interpreter of its nodes.",
    "ClusterTimeLimit": "Attach the target with a longer time_limit, or let the run start again "
    "from its outputs: max_restarts.",
}

# What happened, by the code of the error, where that is not that a node could not work.
_HAPPENED = {
    "Preempted": "The nodes of this run were taken away.",
    "ClusterTimeLimit": "The nodes of this run were taken away.",
    "CanceledInCluster": "The nodes of this run were taken away.",
    "CannotBePlaced": "The run has no place on its cluster.",
}


def move(run: RunRecord, *states: RunState, now: datetime, **changes: object) -> RunRecord:
    """The run after it went through `states` in order, with `changes` to its other fields.

    Going where it already is changes nothing; going where it may not go is a bug and raises.
    """
    state, history = run.state, list(run.history)
    for new in states:
        if new is not state:
            state = advance(state, new)
            history.append(Transition(state=state, at=now))
    fields: dict[str, object] = {"state": state, "history": tuple(history)}
    if state is not run.state:
        fields["waiting"] = ""
        if state is RunState.RUNNING and run.started is None:
            fields["started"] = now
        if state in TERMINAL:
            fields["ended"] = now
    return msgspec.structs.replace(run, **{**fields, **changes})


def request_cancel(run: RunRecord, now: datetime) -> RunRecord:
    """The run after somebody asked to cancel it; a run that is over stays as it is."""
    if run.state in TERMINAL or run.state is RunState.CANCEL_REQUESTED:
        return run
    if run.spec.kind is RunKind.INTERACTIVE or not has_job(run):
        return move(run, RunState.CANCELED, now=now)
    return move(run, RunState.CANCEL_REQUESTED, now=now, waiting="its processes are being ended")


def give_up(run: RunRecord, now: datetime) -> RunRecord:
    """The run after somebody gave it up without waiting for its cluster; one that is over stays."""
    if run.state in TERMINAL or not has_job(run):
        return request_cancel(run, now)
    error = RunError(
        code="GivenUp",
        message="It was given up without waiting for its cluster, where it may still run. What is "
        "left of it is ended as soon as that can be reached.",
    )
    return move(run, RunState.CANCELED, now=now, error=error)


def request_end(
    run: RunRecord, state: RunState, now: datetime, error: RunError | None = None
) -> RunRecord:
    """The run after its owner declared it completed or failed from outside."""
    if run.state is state:
        return run
    if state not in TRANSITIONS[run.state]:
        raise Conflict(
            f"Run '{run.id}' cannot become {state}.",
            why=f"It is {run.state}.",
            fix="Wait for it, or cancel it." if run.state not in TERMINAL else "",
        )
    return move(run, state, now=now, error=error)


def has_job(run: RunRecord) -> bool:
    """True if an engine may have something running for it."""
    return run.job is not None or run.state in (
        RunState.STARTING,
        RunState.RUNNING,
        RunState.FINALIZING,
    )


def apply_report(run: RunRecord, report: AgentReport, now: datetime) -> RunRecord:
    """The run after its agent reported; what comes too late is void."""
    if report.attempt != run.attempt or run.state in TERMINAL:
        return run
    if report.node != 0:
        return run  # the agent of the first node speaks for all
    match report.phase:
        case wire.STARTED:
            return move(run, RunState.RUNNING, now=now) if run.state is RunState.STARTING else run
        case wire.ENDED:
            if run.state in (RunState.STARTING, RunState.RUNNING):
                path = _path_to(run.state, RunState.FINALIZING)
                return move(run, *path, now=now, waiting="its outputs are being kept")
            return run
        case wire.FINISHED | wire.FAILED:
            return _finish(run, report, now)
        case _:
            return run


def _finish(run: RunRecord, report: AgentReport, now: datetime) -> RunRecord:
    if run.state is RunState.CANCEL_REQUESTED:
        return move(run, RunState.CANCELED, now=now)
    path = _path_to(run.state, RunState.FINALIZING)
    if report.timed_out:
        limit = run.spec.script.max_run_duration_seconds if run.spec.script else None
        error = RunError(
            code="MaxRunDurationExceeded",
            message=f"The run took longer than max_run_duration_seconds={limit} and was canceled.",
        )
        return move(run, *path, RunState.CANCELED, now=now, error=error)
    stopped = report.phase == wire.FINISHED and (report.stopped or not report.ranks)
    failed = report.phase == wire.FAILED or any(rank.exit_code for rank in report.ranks)
    if not failed and not stopped:
        return move(run, *path, RunState.COMPLETED, now=now)
    if stopped:  # nobody here asked for it
        error = report.error or RunError(code="Stopped", message=_stop_words(report))
    else:
        error = report.error or RunError(code="UserError", message=_exit_words(report))
    return end_attempt(run, *path, now=now, error=error)


def end_attempt(run: RunRecord, *path: RunState, now: datetime, error: RunError) -> RunRecord:
    """The run after its present attempt failed, by way of `path`: over, or back in line."""
    if not may_restart(run, error, now):
        return move(run, *path, RunState.FAILED, now=now, error=error)
    ended = Attempt(
        attempt=run.attempt,
        started=_attempt_started(run),
        ended=now,
        error=error,
        nodes=run.nodes,
        job=run.job,
        cluster_job=run.cluster_job,
    )
    return move(
        run,
        *path,
        RunState.QUEUED,
        now=now,
        attempt=run.attempt + 1,
        attempts=(*run.attempts, ended),
        waiting=f"attempt {run.attempt} failed; the next one begins when nothing is left of it",
        job=None,
        cluster_job="",
        nodes=(),
        takeovers=0,
        taken_over=None,
    )


def may_restart(run: RunRecord, error: RunError, now: datetime) -> bool:
    """True if another attempt is allowed, has time, and may end better than this one."""
    script = run.spec.script
    if script is None or run.attempt > script.max_restarts or error.code in NEVER_MENDED:
        return False
    limit = script.max_run_duration_seconds
    if limit is None:
        return True
    started = _attempt_started(run)
    used = 0.0 if started is None else (now - started).total_seconds()
    return seconds_before(run) + used < limit


def seconds_before(run: RunRecord) -> float:
    """How long the scripts of earlier attempts ran, without what the run waited for nodes."""
    return sum(
        (one.ended - one.started).total_seconds() for one in run.attempts if one.started is not None
    )


def _attempt_started(run: RunRecord) -> datetime | None:
    """When the present attempt's script began; None if it did not."""
    for step in reversed(run.history):
        if step.state is RunState.RUNNING:
            return step.at
        if step.state is RunState.QUEUED:
            return None
    return None


def in_line_since(run: RunRecord) -> datetime:
    """When the run came into its line; for one that never did, when it was made."""
    for step in reversed(run.history):
        if step.state is RunState.QUEUED:
            return step.at
    return run.created


def _stop_words(report: AgentReport) -> str:
    what = "The script was ended" if report.ranks else "The script never ran"
    return (
        f"{what}: the agent was told to stop by somebody other than Runyard, e.g. a shutdown of "
        "the machine, or a cluster whose time limit is over or that wants the nodes back."
    )


def _exit_words(report: AgentReport) -> str:
    ended = [f"rank {rank.rank} with {rank.exit_code}" for rank in report.ranks if rank.exit_code]
    return "The script ended with a non-zero exit code: " + (", ".join(ended) or "unknown") + "."


def _path_to(current: RunState, target: RunState) -> Sequence[RunState]:
    """The states between `current` and `target` that the history should show."""
    road = [RunState.STARTING, RunState.RUNNING, RunState.FINALIZING]
    if current not in road:
        return [target]
    return road[road.index(current) + 1 : road.index(target) + 1]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a job after looking at it."""

    run: RunRecord
    take_over: bool = False  # start agents again; they adopt what their predecessors left


def decide(run: RunRecord, job: JobStatus, now: datetime) -> Verdict | None:
    """What follows from a job's status for a run that has not ended; None: nothing."""
    if run.state in TERMINAL or job.phase in (JobPhase.PENDING, JobPhase.ACTIVE):
        return None
    if run.state is RunState.QUEUED:
        return None  # that was the job of an earlier attempt
    recent = run.taken_over is not None and now - run.taken_over < TAKEOVER_PERIOD
    takeovers = run.takeovers + 1 if recent else 1
    if job.phase is JobPhase.GONE and takeovers <= MAX_TAKEOVERS and not job.node_lost:
        # The agent died. Its ranks may still be running, and what it had not shipped is still
        # on its disk: another agent goes on from there.
        changed = msgspec.structs.replace(
            run,
            takeovers=takeovers,
            taken_over=now,
            waiting=run.waiting or "its agent was lost; another one takes over",
        )
        return Verdict(run=changed, take_over=True)
    if run.state is RunState.CANCEL_REQUESTED:
        return Verdict(run=move(run, RunState.CANCELED, now=now))
    if job.phase is JobPhase.EXITED and job.exit_code is None:
        what = "The run did not begin: no agent of it was started."
    elif job.code:
        what = _HAPPENED.get(job.code, "A node of this run could not work for it.")
    elif job.phase is JobPhase.EXITED:
        what = f"The agent ended with exit code {job.exit_code} and could not report."
    elif job.node_lost:
        what = "A node of this run was lost, and all that ran on it."
    else:
        what = f"The agent of this run was lost {takeovers} times in a short while."
    message = what + (f" The engine says: {job.detail}" if job.detail else "")
    if job.code in _FIXES:
        message = f"{message.rstrip('.')}. {_FIXES[job.code]}"
    is_lost = job.phase is JobPhase.GONE or job.exit_code is None
    code = job.code or ("NodeLost" if is_lost else "NotReported")
    error = RunError(code=code, message=message)
    return Verdict(run=end_attempt(run, now=now, error=error))
