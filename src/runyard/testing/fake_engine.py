"""An engine that starts nothing: tests say how its jobs fare."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from runyard.domain.errors import EngineFailed, RunyardError
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup


class FakeEngine:
    """Keeps jobs in memory; `lose`, `end` and the like stand for what happens to real ones."""

    name = "fake"

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self.capabilities = capabilities or Capabilities(shared_folder=True)
        self.groups: dict[JobId, NodeGroup] = {}
        self.statuses: dict[JobId, JobStatus] = {}
        self.starts: list[JobId] = []
        self.stopped: list[JobId] = []
        self.polls: list[Sequence[JobId]] = []
        self.checks = 0  # that were answered
        self.refuse: Exception | None = None  # raised by the next start
        self.away: RunyardError | None = None  # raised by every call, as long as it is set
        self.unstoppable: set[JobId] = set()  # whose stop fails
        self.closed: RunyardError | None = None  # why it takes no job just now
        self.may_kill = threading.Event()  # not set: a kill takes its time
        self.may_kill.set()
        self.may_start = threading.Event()  # not set: a start takes its time
        self.may_start.set()
        self.is_full = False  # True: what is started waits in the engine's own line
        self.folder: Path | None = None  # what it was opened with, if it was attached
        self.options: Mapping[str, str] = {}
        self.secrets: Mapping[str, str] = {}

    def open(
        self, folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]
    ) -> "FakeEngine":
        """As the table of engines has it: the cluster stays the same, whoever opens it."""
        self.folder, self.options, self.secrets = folder, options, secrets
        return self

    def check(self, trial: NodeGroup | None = None) -> None:
        self._reach()
        self.checks += 1
        if self.closed is not None:
            raise self.closed

    def start(self, group: NodeGroup) -> JobId:
        self._reach()
        self.may_start.wait()
        if self.closed is not None:
            raise self.closed
        if self.refuse is not None:
            refusal, self.refuse = self.refuse, None
            raise refusal
        job = JobId(group.key)
        if self.poll([job])[job].phase is JobPhase.GONE:
            self.starts.append(job)
            self.groups[job] = group
            self.statuses[job] = JobStatus(phase=JobPhase.ACTIVE)
            if self.is_full:
                self.statuses[job] = JobStatus(phase=JobPhase.PENDING, detail="(Resources)")
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        self._reach()
        self.polls.append(jobs)
        gone = JobStatus(phase=JobPhase.GONE)
        return {job: self.statuses.get(job, gone) for job in jobs}

    def stop(self, job: JobId) -> None:
        self._reach()
        if job in self.unstoppable:
            raise EngineFailed(f"Job {job} cannot be stopped now.")
        self.stopped.append(job)

    def kill(self, job: JobId) -> None:
        self._reach()
        self.may_kill.wait()
        self.stopped.append(job)

    def jobs(self) -> Sequence[JobId]:
        self._reach()
        return list(self.groups)

    def forget(self, job: JobId) -> None:
        self._reach()
        self.groups.pop(job, None)
        self.statuses.pop(job, None)

    def lose(self, job: JobId, *, node: str = "") -> None:
        """The job's agents are killed; with `node`, that node is lost and all that was on it."""
        detail = f"node {node} does not answer" if node else ""
        self.statuses[job] = JobStatus(phase=JobPhase.GONE, node_lost=bool(node), detail=detail)

    def end(self, job: JobId) -> None:
        """The job's agents end by themselves."""
        self.statuses[job] = JobStatus(phase=JobPhase.EXITED, exit_code=0)

    def run(self, job: JobId, *hosts: str) -> None:
        """The job's agents run, on those hosts."""
        self.statuses[job] = JobStatus(phase=JobPhase.ACTIVE, hosts=hosts)

    def _reach(self) -> None:
        if self.away is not None:
            raise self.away
