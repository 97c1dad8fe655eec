"""Who starts next on a target, and what the others wait for. Pure."""

from collections.abc import Collection, Sequence

import msgspec


class QueuePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs start now; the rest goes on waiting."""

    start: tuple[str, ...]


def plan_queue(waiting: Sequence[str], busy: Collection[str], slots: int) -> QueuePlan:
    """First come, first served, as many as there are free slots."""
    free = max(0, slots - len(busy))
    return QueuePlan(start=tuple(waiting[:free]))


def waiting_words(place: int, length: int, busy: int, slots: int, target: str) -> str:
    """What a queued run waits for; `place` counts from 1."""
    if place <= slots - busy:
        return f"is about to start on '{target}'"
    return (
        f"waits for a free slot on '{target}': {busy} of {slots} in use, "
        f"place {place} of {length} in line"
    )
