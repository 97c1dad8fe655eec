"""Runs jobs on this machine: every agent is a process in a session of its own.

A job is a folder below `folder`, named by its key. What is known of it is in that folder, so
any engine object on the same folder, also one in another process, sees the same jobs.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runyard.domain.errors import EngineFailed
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard.engines.job_folders import (
    check_job_key,
    clean_environment,
    is_job_key,
    last_words,
    leave_word_to_stop,
    remove_folder,
)
from runyard_runtime import contained, job_folder, mounts, mpi_starter, processes, wire

_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from runyard_runtime.agent import main; sys.exit(main(sys.argv[2], int(sys.argv[3])))"
)


class LocalEngine:
    """Starts agents on this machine; nodes of one group share it and the job's folder."""

    name = "local"

    def __init__(
        self,
        folder: Path,
        *,
        interpreter: str = sys.executable,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = folder
        self._interpreter = interpreter
        self._environment = clean_environment(environ)
        self._lock = threading.Lock()
        # Agents that are children of this process: (job, node) of each.
        self._spawned: dict[int, tuple[JobId, int]] = {}
        self.capabilities = Capabilities(
            multi_node=True,
            one_machine=True,
            containers=True,
            finds_server=True,
            shared_folder=True,
            gpus=Path("/dev/nvidiactl").exists(),
        )

    def check(self, trial: NodeGroup | None = None) -> None:
        """This machine takes jobs as it is."""

    def start(self, group: NodeGroup) -> JobId:
        """Start the group, find it running or over, or take over what its agents left."""
        check_job_key(group.key)
        job = JobId(group.key)
        with self._lock:
            self._reap()
            if self._status(job).phase is not JobPhase.GONE:
                return job
            folder = self._folder / job
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                job_folder.write_atomically(str(folder / wire.PLAN_FILE), group.plan)
                runtime = json.loads(group.plan)["runtime"]
                for node in range(group.nodes):
                    # Of a group whose agents did not all die, only the dead are replaced.
                    if self._agent_phase(job, node) is JobPhase.GONE:
                        self._spawn(job, folder, node, runtime)
            except OSError as error:
                raise EngineFailed(
                    f"The agent of job '{job}' cannot be started.", why=str(error)
                ) from error
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """The status of each, from its folder."""
        with self._lock:
            self._reap()
            return {job: self._status(job) for job in jobs}

    def stop(self, job: JobId) -> None:
        """Ask the agents to end."""
        for node in self._nodes(job):
            if pid := self._agent(job, node):
                processes.send(pid, signal.SIGTERM)
            elif self._exit(job, node) is None:
                leave_word_to_stop(self._own(job, node))

    def kill(self, job: JobId) -> None:
        """End agents, keepers and ranks at once."""
        if not self._nodes(job):
            return
        for node in self._nodes(job):
            if pid := self._agent(job, node):
                processes.send(pid, signal.SIGKILL)  # first, or it would see its ranks fail
        marker = processes.job_marker(str(self._folder / job))
        left = processes.end_processes(lambda: processes.job_processes(marker), 0)
        # What is in a container may be hidden from us; now nobody starts it again.
        contained.remove(self._plan(job), marker, self._containers(job))
        mounts.clear(str(self._folder / job))  # one whose process was killed stays, dead
        for node in self._nodes(job):
            mpi_starter.clear(marker, node)
        with self._lock:
            self._reap()
        if left and (left := set(processes.job_processes(marker))):
            raise EngineFailed(
                f"Processes of job '{job}' could not be ended: {sorted(left)}.",
                why="They hang in the system, e.g. in a disk or a GPU that does not answer.",
            )

    def jobs(self) -> Sequence[JobId]:
        """Every job that has a folder here."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        return [JobId(name) for name in names if (self._folder / name / wire.PLAN_FILE).exists()]

    def forget(self, job: JobId) -> None:
        """Remove the job's folder."""
        if not is_job_key(job):
            return
        mounts.clear(str(self._folder / job))
        with self._lock:
            self._reap()
            remove_folder(self._folder / job)

    def _spawn(self, job: JobId, folder: Path, node: int, runtime: str) -> None:
        own = folder / wire.agent_dir(node)
        own.mkdir(exist_ok=True)
        arguments = [self._interpreter, "-S", "-E", "-c", _BOOTSTRAP, runtime]
        environment = {**self._environment, wire.JOB_KEY: processes.job_marker(str(folder))}
        log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            self._interpreter,
            [*arguments, str(folder), str(node)],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(own / "log"), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # the agent outlives this process and its terminal
        )
        self._spawned[pid] = (job, node)

    def _status(self, job: JobId) -> JobStatus:
        nodes = self._nodes(job)
        if not nodes:
            return JobStatus(phase=JobPhase.GONE, detail="there is no such job on this machine")
        phases = {node: self._agent_phase(job, node) for node in nodes}
        lost = [node for node in nodes if phases[node] is JobPhase.GONE]
        if not set(lost) <= {node for other, node in self._spawned.values() if other == job}:
            return JobStatus(phase=JobPhase.GONE, detail=self._why_lost(job, lost))
        if lost:
            return JobStatus(phase=JobPhase.PENDING, detail="its agent is starting")
        if JobPhase.ACTIVE in phases.values():
            return JobStatus(phase=JobPhase.ACTIVE)
        codes = [self._exit(job, node) or 0 for node in nodes]
        return JobStatus(phase=JobPhase.EXITED, exit_code=next((code for code in codes if code), 0))

    def _agent_phase(self, job: JobId, node: int) -> JobPhase:
        if self._exit(job, node) is not None:
            return JobPhase.EXITED
        if self._agent(job, node):
            return JobPhase.ACTIVE
        # It may have ended between the two looks.
        return JobPhase.GONE if self._exit(job, node) is None else JobPhase.EXITED

    def _nodes(self, job: JobId) -> list[int]:
        if not is_job_key(job):
            return []
        plan = self._plan(job)
        return list(range(plan.get("nodes") or 1)) if plan else []

    def _plan(self, job: JobId) -> dict[str, Any]:
        """What the job's folder says of it; empty if there is no such job."""
        plan = job_folder.read_json(str(self._folder / job / wire.PLAN_FILE))
        return plan if isinstance(plan, dict) else {}

    def _containers(self, job: JobId) -> list[str]:
        """The containers that the job may have, by what their names end with."""
        nodes = self._nodes(job)
        claims = [path for node in nodes for path in self._own(job, node).glob("rank-*.json")]
        ranks = [path.stem.removeprefix("rank-") for path in claims]
        return [*ranks, *mpi_starter.containers(nodes)]

    def _exit(self, job: JobId, node: int) -> int | None:
        known = job_folder.read_json(str(self._own(job, node) / "exit.json"))
        return int(known["exit_code"]) if isinstance(known, dict) else None

    def _agent(self, job: JobId, node: int) -> int | None:
        """The pid of the node's agent, if it lives."""
        known = job_folder.read_json(str(self._own(job, node) / "pid"))
        if not isinstance(known, dict) or not processes.is_alive(known["pid"], known["start"]):
            return None
        return int(known["pid"])

    def _own(self, job: JobId, node: int) -> Path:
        return self._folder / job / str(wire.agent_dir(node))

    def _reap(self) -> None:
        """Collect our children that ended, so that they do not stay as zombies."""
        for pid in list(self._spawned):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            del self._spawned[pid]

    def _why_lost(self, job: JobId, nodes: Sequence[int]) -> str:
        logs = (self._own(job, node) / "log" for node in nodes)
        return last_words(logs) or "its agent ended without a word"
