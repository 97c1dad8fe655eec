"""Who starts next."""

import pytest

from runyard.planning.queue import plan_queue, waiting_words


@pytest.mark.parametrize(
    ("waiting", "busy", "slots", "start"),
    [
        ([], [], 2, ()),
        (["a", "b", "c"], [], 2, ("a", "b")),
        (["a", "b"], ["x"], 2, ("a",)),
        (["a"], ["x", "y"], 2, ()),
        (["a"], ["x", "y", "z"], 2, ()),  # slots were taken away meanwhile
    ],
)
def test_first_come_first_served(
    waiting: list[str], busy: list[str], slots: int, start: tuple[str, ...]
) -> None:
    assert plan_queue(waiting, busy, slots).start == start


def test_a_waiting_run_is_told_its_place() -> None:
    words = waiting_words(3, 7, 2, 2, "local")
    assert words == "waits for a free slot on 'local': 2 of 2 in use, place 3 of 7 in line"


def test_a_run_that_starts_next_is_not_told_to_wait() -> None:
    assert waiting_words(1, 1, 0, 2, "local") == "is about to start on 'local'"
