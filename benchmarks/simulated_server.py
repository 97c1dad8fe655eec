"""A server whose nodes are simulated: all of it is real but the engine, which starts nothing.

`scale` starts it. What the engine would start is written to `started.jsonl` in its folder, for
`simulated_nodes` to play: over HTTP, as agents do.
"""

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from runyard.engines import ENGINES
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard.server import main as server

KIND = "simulated"


class SimulatedEngine:
    """Keeps jobs in memory; they run until they are killed."""

    name = KIND
    capabilities = Capabilities(multi_node=True, shared_folder=True)

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._started = folder / "started.jsonl"
        self._lock = threading.Lock()
        self._jobs: dict[JobId, JobStatus] = {}

    def check(self, trial: NodeGroup | None = None) -> None:
        """It takes all jobs."""

    def start(self, group: NodeGroup) -> JobId:
        """Tell the nodes of a job about it."""
        job, plan = JobId(group.key), json.loads(group.plan)
        told = {key: plan[key] for key in ("url", "run_id", "attempt", "nodes", "agent_token")}
        with self._lock:
            if job not in self._jobs:
                hosts = tuple(f"host-{job}-{number}" for number in range(group.nodes))
                self._jobs[job] = JobStatus(phase=JobPhase.ACTIVE, hosts=hosts)
                with self._started.open("a") as file:
                    file.write(json.dumps(told) + "\n")
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """What was started runs."""
        gone = JobStatus(phase=JobPhase.GONE)
        return {job: self._jobs.get(job, gone) for job in jobs}

    def stop(self, job: JobId) -> None:
        """Nothing: nodes hear it from the server."""

    def kill(self, job: JobId) -> None:
        """End a job."""
        self._jobs.pop(job, None)

    def jobs(self) -> Sequence[JobId]:
        """All jobs."""
        return list(self._jobs)

    def forget(self, job: JobId) -> None:
        """End a job."""
        self._jobs.pop(job, None)


if __name__ == "__main__":
    simulated = {KIND: lambda folder, options, secrets: SimulatedEngine(folder)}
    vars(server)["ENGINES"] = {**ENGINES, **simulated}
    sys.exit(server.main())
