"""What the guard must know of runs: who descends from whom, where they belong, which are over.

A run's parent and workspace never change, so they are looked up once. Jobs send many requests, so
whether their run is over is looked up only from time to time.
"""

import random
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from runyard.domain.runs import RunRecord
from runyard.stores.base import Records

LAST_WORDS = timedelta(minutes=10)  # how long after its end a run's tokens are still good
# At most; little, against the minutes that a token outlives its run. At least half of that, so that
# runs which were looked up together are not looked up together ever after.
_FRESH_SECONDS = 120.0
_REMEMBERED = 100_000  # tens of MB; then it starts afresh


class _Known(NamedTuple):
    parent: str | None
    workspace: str
    attempt: int
    ended: datetime | None
    fresh_until: float  # by the monotonic clock


class Lineage:
    """What is remembered of runs."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: dict[str, _Known] = {}

    def knows(self, run_id: str) -> bool:
        """True if the run exists and is remembered; False says nothing."""
        return run_id in self._known

    def knows_end(self, run_id: str) -> bool:
        """True if `is_over` answers at once."""
        return _is_fresh(self._known.get(run_id))

    def parent(self, run_id: str) -> str | None:
        """The parent's id, None for a run without one; `NotFound` for an unknown run."""
        return (self._known.get(run_id) or self._look(run_id)).parent

    def workspace(self, run_id: str) -> str:
        """The name of the workspace it belongs to; `NotFound` for an unknown run."""
        return (self._known.get(run_id) or self._look(run_id)).workspace

    def is_over(self, run_id: str) -> bool:
        """True if the run ended so long ago that nobody speaks for it any more."""
        known = self._known.get(run_id)
        if known is None or not _is_fresh(known):
            known = self._look(run_id)
        return known.ended is not None and datetime.now(UTC) - known.ended > LAST_WORDS

    def knows_attempt(self, run_id: str, attempt: int) -> bool:
        """True if `is_past` answers at once."""
        known = self._known.get(run_id)
        return known is not None and attempt <= known.attempt

    def is_past(self, run_id: str, attempt: int) -> bool:
        """True if a later attempt of the run has spoken.

        Until it does, nothing can be confused: whatever an earlier one still says comes before.
        So what is remembered is looked up again only when a later attempt turns up.
        """
        known = self._known.get(run_id)
        if known is None or known.attempt < attempt:
            known = self._look(run_id)
        return attempt < known.attempt

    def descends(self, run_id: str, ancestor: str) -> bool:
        """True if `ancestor` is the parent of the run, or the parent's parent, and so on."""
        parent = self.parent(run_id)
        while parent is not None:
            if parent == ancestor:
                return True
            parent = self.parent(parent)
        return False

    def _look(self, run_id: str) -> _Known:
        run = self._records.get(RunRecord, run_id)
        spec = run.spec
        fresh_until = time.monotonic() + _FRESH_SECONDS * random.uniform(0.5, 1)
        known = _Known(spec.parent, spec.workspace, run.attempt, run.ended, fresh_until)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[run_id] = known
        return known


def _is_fresh(known: _Known | None) -> bool:
    return known is not None and (known.ended is not None or time.monotonic() < known.fresh_until)
