"""What is believed of a run between two heartbeats of its agents."""

import pytest

from runyard.conductor.changes import Changes
from runyard.domain.agents import AgentOrders
from runyard.domain.errors import NotFound
from runyard.server import heartbeats
from runyard.server.heartbeats import Heartbeats

GO_ON, STOP = AgentOrders(), AgentOrders(stop=True)


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def known(changes: Changes) -> Heartbeats:
    made = Heartbeats(changes)
    assert made.ask("run", 2, lambda: GO_ON) == GO_ON
    return made


def test_an_attempt_that_goes_on_is_believed_and_no_other_one(known: Heartbeats) -> None:
    assert known.goes_on("run", 2)
    assert not known.goes_on("run", 1)
    assert not known.goes_on("another", 2)


def test_a_change_of_the_run_ends_it(known: Heartbeats, changes: Changes) -> None:
    changes.notify("another")
    assert known.goes_on("run", 2)
    changes.notify("run")
    assert not known.goes_on("run", 2)


def test_a_change_while_it_is_asked_is_not_missed(known: Heartbeats, changes: Changes) -> None:
    def report() -> AgentOrders:
        changes.notify("run")  # by somebody else, after the run was read
        return GO_ON

    known.ask("run", 2, report)
    assert not known.goes_on("run", 2)


def test_an_order_to_stop_is_given_anew_each_time(known: Heartbeats) -> None:
    assert known.ask("run", 2, lambda: STOP) == STOP
    assert not known.goes_on("run", 2)


def test_a_report_that_fails_leaves_nothing_behind(known: Heartbeats) -> None:
    def report() -> AgentOrders:
        raise NotFound("There is no such run.")

    with pytest.raises(NotFound):
        known.ask("run", 2, report)
    assert not known._seen


def test_nothing_is_believed_for_ever(known: Heartbeats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "BELIEVED_SECONDS", 0.0)
    known.ask("run", 2, lambda: GO_ON)
    assert not known.goes_on("run", 2)
