"""Runs jobs on a Slurm cluster: every node group is one batch job, with an agent on each node.

A job is a folder below `folder`, named by its key, and a Slurm job whose name says both, so any
engine object on the same folder finds it, also if the server died right after `sbatch`. Slurm
starts a *watch* on each node (`runyard_runtime.node_watch`), which replaces an agent that dies
and hears what `scancel` sends; so ranks outlive their agents here as everywhere.

Needs the programs of Slurm on the server's machine, but no accounting.
"""

import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.errors import EngineFailed, Invalid, Unavailable
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard.engines.local import clean_environment, is_job_key, remove_folder
from runyard.engines.slurm_answers import (
    QUEUE_FORMAT,
    QueueRow,
    explain_refusal,
    judge,
    parse_queue,
    with_words,
)
from runyard.engines.slurm_script import SlurmOptions, plan_batch, read_options, render_script
from runyard_runtime import job_folder, node_watch, processes, supervision, wire

_RECORD = "slurm.json"
_ANSWER_SECONDS = 60.0  # longer than Slurm's own patience with its controller
_KILL_SECONDS = 10.0  # for the watches to end all; Slurm ends it after that
_LOOK_SECONDS = 0.1
_SAY_AGAIN_SECONDS = 2.0  # a stop is repeated: a job that only starts does not hear it
_LOG_TAIL = 2000


class _Record(msgspec.Struct, kw_only=True):
    """What we keep of a job beside what Slurm keeps, which it forgets after minutes."""

    id: str
    nodes: int = 1
    is_stopping: bool = False
    is_killed: bool = False
    end: JobStatus | None = None  # how it ended, once Slurm said so


class SlurmEngine:
    """Starts agents as jobs of Slurm, on nodes that see the server's folder or on any."""

    name = "slurm"

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str] | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = folder
        self._options: SlurmOptions = read_options(options or {})
        self._environment = clean_environment(environ)
        conf = self._options.conf or environ.get("SLURM_CONF")
        if conf:
            self._environment["SLURM_CONF"] = conf
        self._lock = threading.Lock()
        self._told: dict[JobId, float] = {}  # when a stop was last said
        self.capabilities = Capabilities(
            multi_node=True,
            one_machine=self._options.one_machine,
            shared_folder=self._options.shared,
            gpus=True,
        )

    def check(self) -> None:
        """Have Slurm say whether it would take a job as configured."""
        trial = NodeGroup(key="check", plan=b"{}")
        command = plan_batch(trial, self._options, "runyard-check", Path("/"))
        self._ask([*command, "--test-only"], "#!/bin/sh\n")

    def start(self, group: NodeGroup) -> JobId:
        """Submit the group, or find it; a job that Slurm has ended cannot be had again."""
        if not is_job_key(group.key):
            raise Invalid(
                f"'{group.key}' cannot be the key of a job.",
                why="It becomes a folder: letters, digits, '.', '_' and '-' only.",
            )
        job = JobId(group.key)
        with self._lock:
            if not (self._folder / job).exists():
                self._submit(job, group)
                return job
            status = self._statuses([job])[job]
            record = self._record(job)
            if record is None:  # a server before us began, but did not come to submit it
                self._submit(job, group)
            elif status.phase is JobPhase.GONE:
                raise EngineFailed(f"Slurm's job of '{job}' is over.", why=status.detail)
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """The status of each, from one `squeue` and what agents left in a shared folder."""
        with self._lock:
            statuses = self._statuses(jobs)
            for job, status in statuses.items():
                self._settle(job, status)
        return statuses

    def stop(self, job: JobId) -> None:
        """Ask the agents to end; a job that still waits is taken from the queue."""
        with self._lock:
            record = self._record(job) or self._adopt(job)
            if record is None or record.is_stopping or record.end is not None:
                return
            record.is_stopping = True
            self._write(job, record)
            if self._options.shared:
                for node in range(record.nodes):
                    self._leave_word_to_stop(job, node)
            self._say_stop(job, record)

    def kill(self, job: JobId) -> None:
        """End the Slurm job with all that its watches and agents started; returns when it has."""
        with self._lock:
            record = self._record(job) or self._adopt(job)
            if record is None:
                return
            if not record.is_killed:
                record.is_killed = True
                self._write(job, record)
        if not self._is_there(job):
            return
        self._cancel(record, "--state=PENDING")
        deadline = time.monotonic() + _KILL_SECONDS
        while self._is_there(job) and time.monotonic() < deadline:
            self._signal(record, "USR2")  # again: a watch that only starts does not hear it
            time.sleep(_LOOK_SECONDS)
        if self._is_there(job):
            self._signal(record, "KILL")
            self._cancel(record)

    def jobs(self) -> Sequence[JobId]:
        """Every job that has a folder here."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        kept = (wire.PLAN_FILE, _RECORD)
        return [
            JobId(name)
            for name in names
            if any((self._folder / name / one).exists() for one in kept)
        ]

    def forget(self, job: JobId) -> None:
        """Remove the job's folder. Slurm forgets by itself."""
        if is_job_key(job):
            with self._lock:
                remove_folder(self._folder / job)
                self._told.pop(job, None)

    # ---- one job -----------------------------------------------------------------------------

    def _submit(self, job: JobId, group: NodeGroup) -> None:
        folder = self._folder / job
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._options.shared:
                job_folder.write_atomically(str(folder / wire.PLAN_FILE), group.plan)
        except OSError as error:
            raise EngineFailed(f"Job '{job}' cannot be prepared.", why=str(error)) from error
        command = plan_batch(group, self._options, self._slurm_name(job), folder)
        script, variables = render_script(group, self._options, folder)
        try:
            answer = self._ask(command, script, variables)
        except (EngineFailed, Invalid):
            remove_folder(folder)  # it was refused, so there is no job
            raise
        self._write(job, _Record(id=answer.strip().partition(";")[0], nodes=group.nodes))

    def _statuses(self, jobs: Sequence[JobId]) -> dict[JobId, JobStatus]:
        known = {job: self._known_end(job) for job in jobs}
        rows = self._queue() if None in known.values() else {}
        return {job: status or self._look(job, rows) for job, status in known.items()}

    def _known_end(self, job: JobId) -> JobStatus | None:
        """How it ended, if that is known without asking Slurm."""
        record = self._record(job)
        if record is None:
            return None
        if record.is_killed:
            return JobStatus(phase=JobPhase.GONE, detail="it was ended", node_lost=True)
        return record.end or self._left_exit(job, record)

    def _look(self, job: JobId, rows: Mapping[str, QueueRow]) -> JobStatus:
        row = rows.get(self._slurm_name(job)) if is_job_key(job) else None
        record = self._record(job)
        if record is None and row is not None and (self._folder / job).exists():
            record = self._adopt_row(job, row)
        if record is None:
            return JobStatus(phase=JobPhase.GONE, detail="Slurm has no such job")
        # Agents may have ended since the first look, and know better than Slurm.
        left = self._left_exit(job, record)
        if left is not None:
            return left
        status = judge(row, is_stopping=record.is_stopping, number=record.id)
        over = status.phase in (JobPhase.EXITED, JobPhase.GONE)
        return with_words(status, self._last_words(job)) if over else status

    def _settle(self, job: JobId, status: JobStatus) -> None:
        """Keep what Slurm will forget, and say again what may not have been heard."""
        record = self._record(job)
        if record is None or record.is_killed:
            return
        if status.phase in (JobPhase.EXITED, JobPhase.GONE):
            if record.end is None:
                if status.phase is JobPhase.GONE:
                    self._cancel(record, "--state=PENDING")
                record.end = status
                self._write(job, record)
        elif record.is_stopping:
            self._say_stop(job, record)

    def _say_stop(self, job: JobId, record: _Record) -> None:
        if time.monotonic() - self._told.get(job, 0.0) >= _SAY_AGAIN_SECONDS:
            self._told[job] = time.monotonic()
            self._cancel(record, "--state=PENDING")
            self._signal(record, "TERM")

    def _signal(self, record: _Record, name: str) -> None:
        """Signal the watches: of one node the batch script is the watch, else a step's tasks."""
        where = ["--batch"] if record.nodes == 1 else []
        self._cancel(record, *where, f"--signal={name}")

    def _cancel(self, record: _Record, *how: str) -> None:
        # It fails where there is nothing left to cancel, and that is as good.
        self._ask(["scancel", "--quiet", *how, record.id], may_fail=True)

    def _is_there(self, job: JobId) -> bool:
        """True while Slurm has processes of the job, or may start some."""
        row = self._queue().get(self._slurm_name(job))
        return row is not None and not row.is_over

    def _adopt(self, job: JobId) -> _Record | None:
        """The record of a job whose server died before it could write one."""
        if not is_job_key(job) or not (self._folder / job).exists():
            return None
        row = self._queue().get(self._slurm_name(job))
        return None if row is None else self._adopt_row(job, row)

    def _adopt_row(self, job: JobId, row: QueueRow) -> _Record:
        record = _Record(id=row.id, nodes=row.nodes)
        self._write(job, record)
        return record

    def _left_exit(self, job: JobId, record: _Record) -> JobStatus | None:
        """The end of a job whose agents all left their exit codes in a shared folder."""
        own = [str(self._own(job, node)) for node in range(record.nodes)]
        codes = [node_watch.read_exit(one) for one in own] if self._options.shared else [None]
        found = [code for code in codes if code is not None]
        if len(found) < len(codes):
            return None
        return JobStatus(phase=JobPhase.EXITED, exit_code=next((one for one in found if one), 0))

    def _leave_word_to_stop(self, job: JobId, node: int) -> None:
        """Have an agent that is starting stop at once."""
        own = self._own(job, node)
        with contextlib.suppress(OSError):  # it is told again by signal, and by the server
            own.mkdir(parents=True, exist_ok=True)
            word = json.dumps({"reason": supervision.STOPPED}).encode()
            if not (own / "state.json").exists():
                job_folder.write_atomically(str(own / "state.json"), word)

    def _last_words(self, job: JobId) -> str:
        names = ["slurm.log", *(f"{wire.agent_dir(node)}/log" for node in range(16))]
        for name in names:
            with contextlib.suppress(OSError):
                words = (self._folder / job / name).read_bytes()[-_LOG_TAIL:]
                if words.strip():
                    return words.decode("utf-8", "replace").strip()
        return ""

    def _own(self, job: JobId, node: int) -> Path:
        return self._folder / job / str(wire.agent_dir(node))

    def _slurm_name(self, job: JobId) -> str:
        """The job's name in Slurm: the key, and where we keep it, for there may be two servers."""
        return str(processes.job_marker(str(self._folder / job)))

    def _record(self, job: JobId) -> _Record | None:
        if not is_job_key(job):
            return None
        try:
            return msgspec.json.decode((self._folder / job / _RECORD).read_bytes(), type=_Record)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, job: JobId, record: _Record) -> None:
        path = str(self._folder / job / _RECORD)
        with contextlib.suppress(FileNotFoundError):  # it was forgotten meanwhile
            job_folder.write_atomically(path, msgspec.json.encode(record))

    # ---- Slurm -------------------------------------------------------------------------------

    def _queue(self) -> dict[str, QueueRow]:
        """Our jobs by name, those that ended a short while ago as well."""
        command = ["squeue", "--noheader", "--all", "--states=all", f"--user={os.getuid()}"]
        return parse_queue(self._ask([*command, f"--Format={QUEUE_FORMAT}"]))

    def _ask(
        self,
        command: Sequence[str],
        text: str = "",
        variables: Mapping[str, str] | None = None,
        *,
        may_fail: bool = False,
    ) -> str:
        """What one of Slurm's programs answers; its refusals in words."""
        program = shutil.which(command[0], path=self._environment.get("PATH"))
        if program is None:
            raise EngineFailed(
                f"Slurm's program '{command[0]}' is not on the server's PATH.",
                why="Jobs are handed to Slurm with its own programs.",
                fix="Install Slurm's client programs on the server's machine, and start the "
                "server with them on PATH.",
            )
        try:
            done = subprocess.run(
                [program, *command[1:]],
                input=text,
                env={**self._environment, **(variables or {})},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ANSWER_SECONDS,
                check=False,
                cwd="/",
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"Slurm does not answer '{command[0]}' within {_ANSWER_SECONDS:g} s."
            ) from error
        if done.returncode != 0:
            refusal = explain_refusal(command[0], done.stderr.strip())
            if not may_fail or isinstance(refusal, Unavailable):
                raise refusal
        return done.stdout


def open_slurm(folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]) -> SlurmEngine:
    """The engine of an attached Slurm cluster; Slurm knows users by itself, so no secrets."""
    return SlurmEngine(folder, options)
