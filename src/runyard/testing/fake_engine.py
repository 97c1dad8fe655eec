"""An engine that starts nothing: tests say how its jobs fare."""

from collections.abc import Mapping, Sequence

from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup


class FakeEngine:
    """Keeps jobs in memory; `lose` and `end` stand for what happens to real ones."""

    name = "fake"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.groups: dict[JobId, NodeGroup] = {}
        self.statuses: dict[JobId, JobStatus] = {}
        self.starts: list[JobId] = []
        self.stopped: list[JobId] = []
        self.refuse: Exception | None = None  # raised by the next start

    def start(self, group: NodeGroup) -> JobId:
        if self.refuse is not None:
            refusal, self.refuse = self.refuse, None
            raise refusal
        job = JobId(group.key)
        if self.poll([job])[job].phase is JobPhase.GONE:
            self.starts.append(job)
            self.groups[job] = group
            self.statuses[job] = JobStatus(phase=JobPhase.ACTIVE)
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        gone = JobStatus(phase=JobPhase.GONE)
        return {job: self.statuses.get(job, gone) for job in jobs}

    def stop(self, job: JobId) -> None:
        self.stopped.append(job)

    def kill(self, job: JobId) -> None:
        self.stopped.append(job)

    def jobs(self) -> Sequence[JobId]:
        return list(self.groups)

    def forget(self, job: JobId) -> None:
        self.groups.pop(job, None)
        self.statuses.pop(job, None)

    def lose(self, job: JobId) -> None:
        """The job's agents are killed."""
        self.statuses[job] = JobStatus(phase=JobPhase.GONE)

    def end(self, job: JobId) -> None:
        """The job's agents end by themselves."""
        self.statuses[job] = JobStatus(phase=JobPhase.EXITED, exit_code=0)
