"""Which built environments may go. Pure."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from runyard.domain.environments import EnvironmentOnDisk

# One that was used so recently may have been handed to a run that is not stored yet.
JUST_USED = timedelta(minutes=10)


def plan_eviction(
    built: Sequence[EnvironmentOnDisk],
    in_use: Collection[str],
    now: datetime,
    *,
    keep_days: float | None,
    max_bytes: float | None,
) -> list[EnvironmentOnDisk]:
    """Those not used for `keep_days`, then the longest unused until the rest fits `max_bytes`.

    Never one whose key is in use, nor one that was used a moment ago.
    """
    oldest_first = sorted(built, key=lambda one: one.last_used)
    total = sum(one.size_bytes for one in built)
    going = []
    for one in oldest_first:
        if one.key in in_use or now - one.last_used < JUST_USED:
            continue
        too_old = keep_days is not None and now - one.last_used > timedelta(days=keep_days)
        too_much = max_bytes is not None and total > max_bytes
        if too_old or too_much:
            going.append(one)
            total -= one.size_bytes
    return going
