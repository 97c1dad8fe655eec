"""Jobs that are on their way out: of runs that are over, and of attempts that were given up.

What their engine keeps of them is removed once they have ended. A run whose attempt was given up
keeps its nodes, and does not start anew, until nothing is left of that attempt's job.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from runyard.conductor.engine_book import THIS_MACHINE, EngineBook, Job
from runyard.engines.base import JobPhase, JobStatus

LEAVING_SECONDS = 30.0  # beyond the grace time: for a failed attempt to ship what it has


class _Waited(NamedTuple):
    """Who waits for a job's end, and for how long."""

    run_id: str
    deadline: float  # by the monotonic clock: then it is ended without ceremony


class Leaving:
    """The jobs that are to be cleaned up. For the conductor's thread, except where said."""

    def __init__(
        self,
        book: EngineBook,
        grace_seconds: float,
        chore: Callable[..., None],  # does something off this thread
        wake: Callable[[str], None],  # for a run that waited for a job's end
    ) -> None:
        self._book = book
        self._grace_seconds = grace_seconds
        self._chore = chore
        self._wake = wake
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()  # guards the next against readers of other threads
        self._waited: dict[Job, _Waited] = {}

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    def __iter__(self) -> Iterator[Job]:
        return iter(set(self._jobs))

    def add(self, job: Job) -> None:
        """Clean up after the job, once it is over. From any thread."""
        self._jobs.add(job)

    def see_out(self, job: Job, run_id: str) -> None:
        """Have the run hold its nodes, and not start anew, until nothing is left of that job."""
        deadline = time.monotonic() + self._grace_seconds + LEAVING_SECONDS
        self._jobs.add(job)
        with self._lock:
            self._waited[job] = _Waited(run_id, deadline)

    def is_of(self, run_id: str) -> bool:
        """True while something may be left of a job of that run that was given up."""
        with self._lock:
            return any(one.run_id == run_id for one in self._waited.values())

    def look(self, job: Job, status: JobStatus) -> None:
        """Remove what its engine keeps of a job, if it is over or its time is."""
        is_over = status.phase in (JobPhase.EXITED, JobPhase.GONE)
        waited = self._waited.get(job)
        if is_over or (waited is not None and time.monotonic() >= waited.deadline):
            self._jobs.discard(job)
            if job.engine == THIS_MACHINE:
                self._chore(self._remove, job)
            else:
                self._remove(job)

    def _remove(self, job: Job) -> None:
        self._book.remove(job, lambda: self._on_removed(job), lambda: self.add(job))

    def _on_removed(self, job: Job) -> None:
        """Nothing is left of the job; from any thread."""
        with self._lock:
            waited = self._waited.pop(job, None)
        if waited is not None:
            self._wake(waited.run_id)
