"""Reports that only say that an agent lives: most of what a large site sends.

What one of them learned of its run is believed until the run changes, so that the others ask
neither the store nor the conductor.
"""

import random
import time
from collections.abc import Callable

from runyard.conductor.changes import Changes
from runyard.domain.agents import AgentOrders

# At most, without asking, even if nobody said that the run has changed; at least half of that, so
# that nodes which came up together are not asked for together ever after.
BELIEVED_SECONDS = 120.0


class _Seen:
    """An attempt that goes on; 0: that is being asked."""

    __slots__ = ("attempt", "until")

    def __init__(self) -> None:
        self.attempt = 0
        self.until = 0.0  # by the monotonic clock


class Heartbeats:
    """Which attempts of which runs go on, as far as it is known without asking."""

    def __init__(self, changes: Changes) -> None:
        self._seen: dict[str, _Seen] = {}
        changes.listen(self._forget)

    def goes_on(self, run_id: str, attempt: int) -> bool:
        """True if that attempt goes on; False says nothing."""
        seen = self._seen.get(run_id)
        return seen is not None and seen.attempt == attempt and time.monotonic() < seen.until

    def ask(self, run_id: str, attempt: int, report: Callable[[], AgentOrders]) -> AgentOrders:
        """The answer to a report, remembered if the attempt goes on. From any thread."""
        # It is there before the report looks: who changes the run meanwhile takes it away.
        seen = self._seen[run_id] = _Seen()
        orders = AgentOrders(stop=True)
        try:
            orders = report()
        finally:
            if orders.stop:
                self._forget(run_id)
        seen.until = time.monotonic() + BELIEVED_SECONDS * random.uniform(0.5, 1)
        seen.attempt = attempt
        return orders

    def _forget(self, run_id: str) -> None:
        self._seen.pop(run_id, None)
