"""How a service moves, as a table of what is seen and what follows."""

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.runs import RunError
from runyard.domain.services import Revision, ServiceRecord, ServiceSpec, ServiceState
from runyard.domain.states import RunState
from runyard.planning.services import FRONT, Seen, Step, in_service_words, plan_service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BROKEN = RunError(code="UserError", message="init() raised KeyError")

RUNNING = Seen(state=RunState.RUNNING, is_ready=True, is_answering=True)
LOADING = Seen(state=RunState.RUNNING)
FAILED = Seen(state=RunState.FAILED, error=BROKEN)


def revision(number: int, run: str | None = None, **more: object) -> Revision:
    spec = ServiceSpec(models=("m",), environment=EnvironmentSpec(name="e"))
    made = Revision(number=number, spec=spec, created=NOW, run=run)
    return msgspec.structs.replace(made, **more)


def service(**more: object) -> ServiceRecord:
    made = ServiceRecord(
        id="s", uid="u", workspace="w", name="digits", created=NOW, modified=NOW, front="front"
    )
    return msgspec.structs.replace(made, **more)


def plan(record: ServiceRecord, in_use: tuple[int, ...] = (), **seen: Seen) -> Step:
    return plan_service(record, {"front": RUNNING, **seen}, in_use, NOW)


def test_a_new_service_starts_its_front_end_and_its_workers() -> None:
    step = plan_service(service(front=None, coming=revision(1)), {}, (), NOW)
    assert step.start == (FRONT, 1)
    assert step.service.state is ServiceState.TRANSITIONING


def test_workers_that_load_are_waited_for() -> None:
    step = plan(service(coming=revision(1, "one")), one=LOADING)
    assert (step.start, step.end) == ((), ())
    assert step.service.waiting == "its workers load the model"


def test_a_revision_whose_workers_are_ready_serves() -> None:
    step = plan(service(coming=revision(1, "one")), one=RUNNING)
    assert step.service.serving == revision(1, "one")
    assert step.service.coming is None
    assert step.service.state is ServiceState.TRANSITIONING
    assert plan(step.service, one=LOADING).service.state is ServiceState.TRANSITIONING
    assert plan(step.service, one=RUNNING).service.state is ServiceState.HEALTHY


def test_a_revision_that_the_front_end_has_found_serves_at_once() -> None:
    found = msgspec.structs.replace(RUNNING, is_found=True)
    step = plan(service(coming=revision(1, "one")), one=found)
    assert step.service.serving == revision(1, "one")
    assert step.service.state is ServiceState.HEALTHY
    # Some of its workers are not there yet.
    part = msgspec.structs.replace(found, is_ready=False)
    step = plan(service(coming=revision(1, "one")), one=part)
    assert step.service.coming == revision(1, "one")
    assert step.service.state is ServiceState.TRANSITIONING


def test_a_service_whose_first_revision_fails_has_failed_and_says_why() -> None:
    step = plan(service(coming=revision(1, "one")), one=FAILED)
    assert step.service.state is ServiceState.FAILED
    assert step.service.error == BROKEN
    assert step.service.failed == revision(1, "one")
    assert step.start == ()


def test_a_failure_is_told_of_workers_and_not_of_a_run() -> None:
    told = "Rank 1: ModuleNotFoundError: No module named 'x'. Add it to the environment of the run."
    error = in_service_words(RunError(code="UserError", message=told))
    assert error is not None
    assert error.message == (
        "Worker 1: ModuleNotFoundError: No module named 'x'. "
        "Add it to the environment of the service."
    )
    assert in_service_words(None) is None


def test_a_failed_update_leaves_the_old_revision_serving() -> None:
    before = service(
        serving=revision(1, "one"), coming=revision(2, "two"), state=ServiceState.HEALTHY
    )
    step = plan(before, one=RUNNING, two=FAILED)
    assert step.service.serving == revision(1, "one")
    assert step.service.state is ServiceState.HEALTHY
    assert step.service.error == BROKEN
    assert step.end == ()


def test_the_old_revision_leaves_when_the_new_one_is_ready() -> None:
    before = service(serving=revision(1, "one"), coming=revision(2, "two"))
    step = plan(before, in_use=(1,), one=RUNNING, two=RUNNING)
    assert step.service.serving == revision(2, "two")
    assert step.service.leaving == (revision(1, "one"),)
    assert step.end == ()


@pytest.mark.parametrize(("in_use", "end"), [((1,), ()), ((), ("one",))])
def test_a_leaving_revision_is_ended_when_nobody_waits_for_it(
    in_use: tuple[int, ...], end: tuple[str, ...]
) -> None:
    before = service(serving=revision(2, "two"), leaving=(revision(1, "one"),))
    assert plan(before, in_use, one=RUNNING, two=RUNNING).end == end


def test_a_leaving_revision_whose_workers_are_over_is_forgotten() -> None:
    before = service(serving=revision(2, "two"), leaving=(revision(1, "one"),))
    canceled = Seen(state=RunState.CANCELED)
    assert plan(before, one=canceled, two=RUNNING).service.leaving == ()


def test_lost_workers_are_started_again_later_each_time() -> None:
    healthy = service(serving=revision(1, "one", starts=3), state=ServiceState.HEALTHY)
    first = plan(healthy, one=FAILED)
    assert first.start == ()
    assert first.service.state is ServiceState.UNHEALTHY
    assert first.service.error == BROKEN
    seen = {"front": RUNNING, "one": FAILED}
    early = plan_service(first.service, seen, (), NOW + timedelta(seconds=3))
    assert early.start == ()
    late = plan_service(first.service, seen, (), NOW + timedelta(seconds=4))
    assert late.start == (1,)


def test_a_lost_front_end_is_started_again_later_each_time_and_says_why() -> None:
    before = service(serving=revision(1, "one"), front_starts=3, state=ServiceState.HEALTHY)
    seen = {"front": FAILED, "one": RUNNING}
    first = plan_service(before, seen, (), NOW)
    assert first.start == ()
    assert first.service.state is ServiceState.UNHEALTHY
    assert first.service.error == BROKEN
    early = plan_service(first.service, seen, (), NOW + timedelta(seconds=3))
    assert (early.start, early.service.error) == ((), BROKEN)
    late = plan_service(first.service, seen, (), NOW + timedelta(seconds=4))
    assert late.start == (FRONT,)
    assert late.service.front_failed_at is None
    assert plan(late.service, one=RUNNING).service.error is None


def test_a_front_end_that_cannot_start_fails_the_deployment_and_ends_its_workers() -> None:
    before = service(coming=revision(1, "one"), front_starts=3)
    step = plan(before, one=LOADING, front=FAILED)
    assert step.service.state is ServiceState.FAILED
    assert step.service.error == BROKEN
    assert step.service.failed == revision(1, "one")
    assert step.end == ("one",)
    wordless = plan(before, one=LOADING, front=Seen(state=RunState.CANCELED))
    assert wordless.service.error is not None


def test_workers_that_never_answer_are_given_up_in_words() -> None:
    before = service(coming=revision(1, "one"))
    hanging = msgspec.structs.replace(LOADING, started=NOW)
    seen = {"front": RUNNING, "one": hanging}
    patient = timedelta(seconds=30)
    assert plan_service(before, seen, (), NOW + patient, patient).service.coming is not None
    step = plan_service(before, seen, (), NOW + timedelta(seconds=31), patient)
    assert step.service.failed == revision(1, "one")
    assert step.end == ("one",)
    assert step.service.error is not None
    assert "init()" in step.service.error.message
    building = msgspec.structs.replace(LOADING, waiting="its environment is built")
    seen = {"front": RUNNING, "one": building}
    assert plan_service(before, seen, (), NOW + timedelta(days=1)).service.coming is not None


def named(record: ServiceRecord) -> set[str]:
    revisions = (record.serving, record.coming, *record.leaving)
    return {one.run for one in revisions if one is not None and one.run is not None}


SIGHTS = (None, RUNNING, LOADING, FAILED, Seen(state=RunState.CANCEL_REQUESTED))
ROLES = tuple(itertools.product((False, True), repeat=4))


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("front", SIGHTS)
def test_no_step_drops_workers_that_live(roles: tuple[bool, ...], front: Seen | None) -> None:
    has_serving, has_coming, has_leaving, is_tired = roles
    for one, two, three in itertools.product(SIGHTS, repeat=3):
        before = service(
            serving=revision(1, "one") if has_serving else None,
            coming=revision(2, "two") if has_coming else None,
            leaving=(revision(3, "three"),) if has_leaving else (),
            front_starts=3 if is_tired else 1,
        )
        sights = {"front": front, "one": one, "two": two, "three": three}
        seen = {run: sight for run, sight in sights.items() if sight is not None}
        for in_use in ((), (1, 2, 3)):
            step = plan_service(before, seen, in_use, NOW)
            dropped = named(before) - named(step.service) - set(step.end)
            assert all(run not in seen or seen[run].state is RunState.FAILED for run in dropped)


def test_a_service_being_deleted_ends_all_its_processes_and_then_goes() -> None:
    before = service(serving=revision(1, "one"), coming=revision(2, "two"), deleting=True)
    step = plan(before, one=RUNNING, two=LOADING)
    assert step.end == ("front", "one", "two")
    assert not step.is_over
    over = Seen(state=RunState.CANCELED)
    assert plan(before, one=over, two=over, front=over).is_over
    # A revision that was given up may still have workers.
    orphaned = msgspec.structs.replace(before, coming=None, failed=revision(2, "two"))
    assert plan(orphaned, one=over, two=LOADING, front=over).end == ("two",)


def test_the_old_workers_are_not_ended_before_the_front_end_can_know_of_the_new_ones() -> None:
    before = service(serving=revision(1, "one"), coming=revision(2, "two"))
    step = plan(before, one=RUNNING, two=RUNNING)
    assert step.service.serving == revision(2, "two")
    assert step.end == ()
    assert plan(step.service, one=RUNNING, two=RUNNING).end == ("one",)


def test_a_service_that_is_well_again_has_no_error() -> None:
    lost = service(serving=revision(1, "one"), error=BROKEN, state=ServiceState.UNHEALTHY)
    assert plan(lost, one=RUNNING).service.error is None
    tried = msgspec.structs.replace(lost, failed=revision(2, "two"))
    assert plan(tried, one=RUNNING).service.error == BROKEN  # of the update, which is still news
