"""Ends the children that logged from a run's process: they end with it, and so do theirs."""

from collections.abc import Callable
from datetime import datetime

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.domain.errors import NotFound
from runyard.domain.runs import RunError, RunKind, RunRecord
from runyard.domain.states import ACTIVE, TERMINAL, RunState
from runyard.planning import lifecycle
from runyard.stores.base import Store, Where, find_all


class Children:
    """The interactive children of submitted runs."""

    def __init__(self, store: Store, changes: Changes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._changes = changes
        self._now = now

    def end(self, run: RunRecord, state: RunState, error: RunError | None) -> None:
        """End the run's open children, however deep."""
        where = Where(parent=run.id, kind=RunKind.INTERACTIVE)
        for child in find_all(self._store.records, RunRecord, where):
            self._end_child(child, state, error)
            self.end(child, state, error)

    def end_orphans(self) -> None:
        """End children whose parent ended when there was no server to see it."""
        where = Where(states=ACTIVE, kind=RunKind.INTERACTIVE)
        for child in find_all(self._store.records, RunRecord, where):
            parent = self._parent_job(child)
            if parent is not None and parent.state in TERMINAL:
                self._end_child(child, parent.state, parent.error)

    def _end_child(self, child: RunRecord, state: RunState, error: RunError | None) -> None:
        def how(now: RunRecord) -> RunRecord:
            if now.state in TERMINAL:
                return now
            return lifecycle.move(now, state, now=self._now(), error=error)

        runs.change(self._store, child.id, how)
        self._changes.notify(child.id)

    def _parent_job(self, child: RunRecord) -> RunRecord | None:
        """The submitted script that a child belongs to, however deep; None if there is none."""
        run = child
        while run.spec.parent is not None:
            try:
                run = self._store.records.get(RunRecord, run.spec.parent)
            except NotFound:
                return None
            if run.spec.script is not None:
                return run
        return None
