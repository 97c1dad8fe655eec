"""An engine whose nodes share nothing: each agent starts from a bare interpreter, over HTTP.

It stands for what Slurm and Ray do with nodes elsewhere: a process is started with a few variables,
its exit status is kept, signals reach it. Only `nodes/N` is a node's disk.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard_runtime import job_folder, processes, remote

# Keeps the exit status, as a batch system would, also of an agent that is killed.
_KEEPER = """
"$@" 2>>"$KEPT.log" </dev/null & echo $! >"$KEPT.pid.new" && mv "$KEPT.pid.new" "$KEPT.pid"
wait $!; code=$?
echo $code >"$KEPT.status.new" && mv "$KEPT.status.new" "$KEPT.status"
"""
_HOST = "node-"
_WRONG_CLOCK = "import time; time.time = lambda real=time.time: real() + {}\n"
_KILLED = 128 + signal.SIGKILL


class ApartEngine:
    """Starts agents on this machine as if it were many; `variables` are for all of them.

    `clocks` has the seconds by which those of nodes are wrong, `quirks` Python code for what else
    is wrong with their machines.
    """

    name = "apart"

    def __init__(self, folder: Path, interpreter: str = sys.executable, **variables: str) -> None:
        self._folder = folder
        self._interpreter = interpreter
        self._variables = variables
        self.clocks: dict[int, float] = {}
        self.quirks = ""
        self.capabilities = Capabilities(multi_node=True, one_machine=True)

    def check(self, trial: NodeGroup | None = None) -> None:
        """It takes everything."""

    def node(self, index: int) -> Path:
        """The disk of a node."""
        return self._folder / "nodes" / str(index)

    def place(self, job: JobId, index: int = 0) -> Path:
        """The job folder on a node."""
        return Path(remote.job_place(str(self.node(index)), job, index))

    def words(self, job: JobId, index: int = 0) -> str:
        """What the agent's process said."""
        return self._kept(job, index, "log").read_text()

    def status_of(self, job: JobId, index: int = 0) -> int | None:
        """The exit status of the agent's process, once it has ended."""
        known = job_folder.read_json(str(self._kept(job, index, "status")))
        return known if isinstance(known, int) else None

    def lose_node(self, host: str) -> None:
        """Have a node vanish for good, with all that runs on it."""
        lost = self._folder / "lost"
        lost.mkdir(parents=True, exist_ok=True)
        (lost / host).touch()
        index = int(host.removeprefix(_HOST))
        for job in self.jobs():
            if index < self._nodes(job):
                self._end(job, index)

    def start(self, group: NodeGroup) -> JobId:
        """Start the agents that are not there, or find them."""
        job = JobId(group.key)
        kept = self._folder / "kept" / job
        kept.mkdir(parents=True, exist_ok=True)
        (kept / "nodes").write_text(str(group.nodes))
        for index in range(group.nodes):
            if self._phase(job, index) is JobPhase.GONE:
                self._spawn(job, index, json.loads(group.plan))
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """From the exit statuses that were kept."""
        return {job: self._status(job) for job in jobs}

    def stop(self, job: JobId) -> None:
        """Send SIGTERM to what runs, as soon as that is heard."""
        for index in range(self._nodes(job)):
            if self._phase(job, index) is JobPhase.ACTIVE:
                pid = self._pid(job, index)
                _wait_until_it_hears(pid)
                processes.send(pid, signal.SIGTERM)

    def kill(self, job: JobId) -> None:
        """End everything on all nodes."""
        for index in range(self._nodes(job)):
            self._end(job, index)

    def jobs(self) -> Sequence[JobId]:
        """Those that were started and not forgotten."""
        kept = self._folder / "kept"
        return [JobId(one.name) for one in sorted(kept.iterdir())] if kept.exists() else []

    def forget(self, job: JobId) -> None:
        """Keep nothing of it."""
        shutil.rmtree(self._folder / "kept" / job, ignore_errors=True)

    def _end(self, job: JobId, index: int) -> None:
        if self._phase(job, index) is JobPhase.ACTIVE:
            processes.send(self._pid(job, index), signal.SIGKILL)
            while self.status_of(job, index) is None:
                time.sleep(0.005)
        remote.end(str(self.place(job, index)))

    def _spawn(self, job: JobId, index: int, plan: Mapping[str, object]) -> None:
        for what in ("pid", "status"):
            self._kept(job, index, what).unlink(missing_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": "/nowhere",  # a site's, not for us
            **remote.variables(job, plan),
            "RUNYARD_NODE_INDEX": str(index),
            "RUNYARD_NODE_FOLDER": str(self.node(index)),
            **self._variables,
            "KEPT": str(self._folder / "kept" / job / str(index)),
        }
        wrong = _WRONG_CLOCK.format(self.clocks.get(index, 0)) + self.quirks
        program = [self._interpreter, "-S", "-E", "-c", wrong + remote.boot_text()]
        keeper = ["/bin/sh", "-c", f"({_KEEPER}) &", "sh", *program]
        subprocess.run(keeper, env=environment, cwd="/", start_new_session=True, check=True)
        while not self._kept(job, index, "pid").exists():
            time.sleep(0.002)

    def _status(self, job: JobId) -> JobStatus:
        nodes = range(self._nodes(job))
        hosts = tuple(f"{_HOST}{index}" for index in nodes)
        gone = JobStatus(phase=JobPhase.GONE, hosts=hosts)
        for host in hosts:
            if (self._folder / "lost" / host).exists():
                detail = f"{host} does not answer"
                return msgspec.structs.replace(gone, node_lost=True, detail=detail)
        for index in nodes:
            code = remote.CODES.get(self.status_of(job, index) or 0)
            if code is not None:
                words = f"{hosts[index]}: {self.words(job, index).strip()}"
                return msgspec.structs.replace(gone, node_lost=True, code=code, detail=words)
        phases = [self._phase(job, index) for index in nodes]
        if not phases or JobPhase.GONE in phases:
            return gone
        if JobPhase.ACTIVE in phases:
            return JobStatus(phase=JobPhase.ACTIVE, hosts=hosts)
        codes = [remote.exit_code(self.status_of(job, index)) for index in nodes]
        return JobStatus(phase=JobPhase.EXITED, exit_code=next((code for code in codes if code), 0))

    def _phase(self, job: JobId, index: int) -> JobPhase:
        status = self.status_of(job, index)
        if status is None:
            known = self._kept(job, index, "pid").exists()
            return JobPhase.ACTIVE if known else JobPhase.GONE
        # A shell does not tell an agent that was killed from one whose rank was.
        is_killed = (
            status == _KILLED and remote.find_exit(str(self.place(job, index)), index) is None
        )
        is_gone = remote.is_lost(status) or is_killed
        return JobPhase.GONE if is_gone else JobPhase.EXITED

    def _pid(self, job: JobId, index: int) -> int:
        return int(self._kept(job, index, "pid").read_text())

    def _nodes(self, job: JobId) -> int:
        known = job_folder.read_json(str(self._folder / "kept" / job / "nodes"))
        return known if isinstance(known, int) else 0

    def _kept(self, job: JobId, index: int, what: str) -> Path:
        return self._folder / "kept" / job / f"{index}.{what}"


def _wait_until_it_hears(pid: int) -> None:
    """Until a process catches SIGTERM, or is over."""
    with contextlib.suppress(OSError):
        while True:
            text = Path(f"/proc/{pid}/status").read_text()
            caught = int(text.split("SigCgt:")[1].split()[0], 16)
            if caught & 1 << signal.SIGTERM - 1:
                return
            time.sleep(0.005)


def open_apart(folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]) -> ApartEngine:
    """The engine as the table of engines has it: its options are variables of the agents."""
    return ApartEngine(folder, **options)
