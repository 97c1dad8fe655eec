"""How a service moves: from what is seen of its processes to what is done next. Pure.

coming   no workers → start them; ready → it serves, the old one leaves
         failed, takes too long, or no front end for it → give up on it, its workers leave
serving  its workers or the front end are lost → start them again, later each time
leaving  the front end has no more use for it → end its workers
"""

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import msgspec

from runyard.domain.runs import RunError
from runyard.domain.services import Revision, ServiceRecord, ServiceState
from runyard.domain.states import TERMINAL, RunState

S = ServiceState

FRONT = 0  # stands for the front end where processes are numbered by their revision
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)
START_PATIENCE = timedelta(minutes=10)
_TRUSTED_AFTER = 3  # starts of a front end that fail before the service is called failed
_FRONT_LOST = RunError(
    code="DeploymentFailed", message="Its front end ended whenever it was started."
)
_TOO_LONG = RunError(
    code="DeploymentTimedOut",
    message="Its workers were started, but did not come to answer in time.\nLoading the model, or "
    "init() of the entry script, has not returned. The log says how far it came; where it only "
    "needs longer, start the server with RUNYARD_SERVICE_START_SECONDS set to more.",
)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One group of processes as it is now."""

    state: RunState
    error: RunError | None = None
    waiting: str = ""
    started: datetime | None = None  # when its processes did; None: they did not yet
    is_ready: bool = False  # answers; of workers: every one of them
    is_answering: bool = False  # at least one of them does
    is_found: bool = False  # of workers: the front end has them already


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: store the record, then have these effects."""

    service: ServiceRecord
    start: tuple[int, ...] = ()  # numbers of revisions whose workers to start, or FRONT
    end: tuple[str, ...] = ()  # runs to end
    is_over: bool = False  # nothing of it is left: the record can go


def plan_service(
    service: ServiceRecord,
    seen: Mapping[str, Seen],
    in_use: Collection[int],
    now: datetime,
    patience: timedelta = START_PATIENCE,
) -> Step:
    """The next step. `seen` has the runs of its processes; `in_use` the revisions that the front
    end has given work to; `patience` is how long workers may load their model."""
    if service.deleting:
        return _plan_end(service, seen)
    start: list[int] = []
    end: list[str] = []
    before = service
    service = _plan_front(service, seen, start, now)
    service = _plan_coming(service, seen, start, now - patience)
    # What has just taken over answers when the front end has found it: that is seen next time,
    # unless it has. Until then the old one may still be given work.
    is_new = _has_taken_over(before, service) and not _is_found(service.serving, seen)
    if is_new:
        in_use = [revision.number for revision in service.leaving]
    service = _plan_serving(service, seen, start, now)
    service = _plan_leaving(service, seen, in_use, end)
    return Step(service=_judge(service, seen, is_new=is_new), start=tuple(start), end=tuple(end))


def _has_taken_over(before: ServiceRecord, service: ServiceRecord) -> bool:
    return service.serving is not None and service.serving is before.coming


def _is_found(revision: Revision | None, seen: Mapping[str, Seen]) -> bool:
    found = seen.get((revision and revision.run) or "")
    return found is not None and found.is_found


def _plan_end(service: ServiceRecord, seen: Mapping[str, Seen]) -> Step:
    left = tuple(run for run in _runs(service) if run in seen and seen[run].state not in TERMINAL)
    changed = msgspec.structs.replace(service, waiting="its processes are being ended")
    return Step(service=changed, end=left, is_over=not left)


def _plan_front(
    service: ServiceRecord, seen: Mapping[str, Seen], start: list[int], now: datetime
) -> ServiceRecord:
    found = seen.get(service.front or "")
    if found is not None and found.state not in TERMINAL:
        return service
    if service.serving is None and service.coming is None:
        return service  # nothing to stand in front of
    error = found.error if found is not None and found.error is not None else service.error
    if service.front_starts >= _TRUSTED_AFTER and service.serving is None:
        return give_up(service, error or _FRONT_LOST)
    failed_at = service.front_failed_at
    if found is not None:
        failed_at = failed_at or now
        service = msgspec.structs.replace(service, error=error, front_failed_at=failed_at)
        if now - failed_at < _pause(service.front_starts):
            return service
    start.append(FRONT)
    starts = service.front_starts + 1
    return msgspec.structs.replace(service, front_starts=starts, front_failed_at=None)


def in_service_words(error: RunError | None) -> RunError | None:
    """What a run says of its failure, said of a service: it has workers, and no ranks."""
    if error is None:
        return None
    message = re.sub(r"^Rank (\d+)", r"Worker \1", error.message)
    message = message.replace("environment of the run", "environment of the service")
    return msgspec.structs.replace(error, message=message)


def give_up(service: ServiceRecord, error: RunError) -> ServiceRecord:
    """The service without the revision that was being tried. Its workers, if any, leave."""
    coming = service.coming
    if coming is None:
        return msgspec.structs.replace(service, error=error)
    leaving = service.leaving if coming.run is None else (*service.leaving, coming)
    return msgspec.structs.replace(
        service, coming=None, failed=coming, leaving=leaving, error=error
    )


def _plan_coming(
    service: ServiceRecord, seen: Mapping[str, Seen], start: list[int], latest: datetime
) -> ServiceRecord:
    coming = service.coming
    if coming is None:
        return service
    found = seen.get(coming.run or "")
    if found is None:
        start.append(coming.number)
        return service
    if found.state in TERMINAL:
        error = found.error or RunError(
            code="DeploymentFailed",
            message=f"Its workers ended while they started ({found.state}).",
        )
        return give_up(service, error)
    if not found.is_ready:
        if found.started is not None and found.started < latest:
            return give_up(service, _TOO_LONG)
        return service
    leaving = service.leaving if service.serving is None else (*service.leaving, service.serving)
    return msgspec.structs.replace(
        service, serving=coming, coming=None, leaving=leaving, failed=None, error=None
    )


def _plan_serving(
    service: ServiceRecord, seen: Mapping[str, Seen], start: list[int], now: datetime
) -> ServiceRecord:
    serving = service.serving
    if serving is None:
        return service
    found = seen.get(serving.run or "")
    if found is not None and found.state not in TERMINAL:
        return service
    if serving.failed_at is None:
        serving = msgspec.structs.replace(serving, failed_at=now)
    assert serving.failed_at is not None
    if now - serving.failed_at >= _pause(serving.starts):
        start.append(serving.number)
        serving = msgspec.structs.replace(serving, failed_at=None)
    error = found.error if found is not None and found.error is not None else service.error
    return msgspec.structs.replace(service, serving=serving, error=error)


def _pause(starts: int) -> timedelta:
    """How long to wait before lost processes are started again: longer each time."""
    doubled: timedelta = _FIRST_PAUSE * 2 ** min(max(starts - 1, 0), 10)
    return min(doubled, _LONGEST_PAUSE)


def _plan_leaving(
    service: ServiceRecord, seen: Mapping[str, Seen], in_use: Collection[int], end: list[str]
) -> ServiceRecord:
    left = []
    for revision in service.leaving:
        found = seen.get(revision.run or "")
        if found is None or found.state in TERMINAL:
            continue
        left.append(revision)
        if revision.number not in in_use and found.state is not RunState.CANCEL_REQUESTED:
            end.append(revision.run or "")
    return msgspec.structs.replace(service, leaving=tuple(left))


def _judge(service: ServiceRecord, seen: Mapping[str, Seen], *, is_new: bool) -> ServiceRecord:
    """The service with the state that follows from what is seen."""
    front = seen.get(service.front or "")
    is_open = front is not None and front.is_ready
    if service.serving is not None:
        found = seen.get(service.serving.run or "")
        answers = is_open and found is not None and found.is_answering
        was_healthy = service.state in (S.HEALTHY, S.UNHEALTHY)
        state = S.HEALTHY if answers else S.UNHEALTHY if was_healthy else S.TRANSITIONING
        if service.coming is not None or is_new:
            state = S.TRANSITIONING
    else:
        state = S.TRANSITIONING if service.coming is not None else S.FAILED
    if state is S.HEALTHY and service.failed is None:
        service = msgspec.structs.replace(service, error=None)  # it is well again
    return msgspec.structs.replace(service, state=state, waiting=_words(service, seen, state))


def _words(service: ServiceRecord, seen: Mapping[str, Seen], state: ServiceState) -> str:
    """What the service waits for."""
    if state in (S.HEALTHY, S.FAILED):
        return ""
    if service.coming is not None:
        found = seen.get(service.coming.run or "")
        if found is None:
            return "its workers are about to start"
        return found.waiting or "its workers load the model"
    front = seen.get(service.front or "")
    if front is None or not front.is_ready:
        return "its front end starts"
    return "its front end turns to them" if state is S.TRANSITIONING else "its workers start again"


def _runs(service: ServiceRecord) -> list[str]:
    revisions = [service.serving, service.coming, service.failed, *service.leaving]
    runs = [revision.run for revision in revisions if revision is not None]
    return list(dict.fromkeys(run for run in (service.front, *runs) if run))
