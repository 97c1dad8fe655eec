"""Which run descends from which. A run's parent never changes, so it is looked up once."""

from runyard.domain.runs import RunRecord
from runyard.stores.base import Records

_REMEMBERED = 100_000  # a few MB; then it starts afresh


class Lineage:
    """The parents of runs, remembered."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._parents: dict[str, str | None] = {}

    def knows(self, run_id: str) -> bool:
        """True if the run exists and `parent` answers at once; False says nothing."""
        return run_id in self._parents

    def parent(self, run_id: str) -> str | None:
        """The parent's id, None for a run without one; `NotFound` for an unknown run."""
        try:
            return self._parents[run_id]
        except KeyError:
            pass
        parent = self._records.get(RunRecord, run_id).spec.parent
        if len(self._parents) >= _REMEMBERED:
            self._parents.clear()
        self._parents[run_id] = parent
        return parent

    def descends(self, run_id: str, ancestor: str) -> bool:
        """True if `ancestor` is the parent of the run, or the parent's parent, and so on."""
        parent = self.parent(run_id)
        while parent is not None:
            if parent == ancestor:
                return True
            parent = self.parent(parent)
        return False
