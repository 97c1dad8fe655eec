"""Batches: tables."""

import pytest

from runyard.serving.batching import batch_size, within_bytes


@pytest.mark.parametrize(
    ("waiting", "free", "limit", "waited", "delay", "expected"),
    [
        (0, 1, 32, 0, 0, 0),  # nothing to do
        (5, 0, 32, 0, 0, 0),  # nobody to do it
        (1, 1, 32, 0, 0, 1),  # at once: nobody waits for company unless told to
        (5, 1, 32, 0, 0, 5),
        (50, 1, 32, 0, 0, 32),
        (50, 1, 1, 0, 0, 1),  # a model that does not take batches
        (8, 2, 32, 0, 0, 4),  # shared evenly
        (9, 2, 32, 0, 0, 5),
        (3, 8, 32, 0, 0, 1),
        (200, 2, 32, 0, 0, 32),
        (3, 1, 32, 0.001, 0.005, 0),  # told to wait
        (3, 1, 32, 0.005, 0.005, 3),  # waited long enough
        (32, 1, 32, 0.0, 0.005, 32),  # full: no reason to wait
    ],
)
def test_a_free_worker_takes_what_waits(
    waiting: int, free: int, limit: int, waited: float, delay: float, expected: int
) -> None:
    found = batch_size(waiting=waiting, free=free, limit=limit, waited=waited, delay=delay)
    assert found == expected


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([10, 10, 10], 3, 3),
        ([10, 10, 10], 2, 2),
        ([60, 60, 10], 3, 1),
        ([40, 40, 40], 3, 2),
        ([500], 1, 1),  # one that is too large for a batch goes alone
        ([500, 1], 2, 1),
    ],
)
def test_large_bodies_do_not_pile_up_in_one_batch(
    sizes: list[int], count: int, expected: int
) -> None:
    assert within_bytes(sizes, count, most=100) == expected
