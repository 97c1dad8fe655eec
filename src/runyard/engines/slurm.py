"""Runs jobs on a Slurm cluster: every node group is one batch job, with an agent on each node.

A job is a folder below `folder`, named by its key, and a Slurm job whose name says both, so any
engine object on the same folder finds it, also if the server died right after `sbatch`. Slurm
starts a *watch* on each node (`runyard_runtime.node_watch`), which replaces an agent that dies
and hears what `scancel` sends; so ranks outlive their agents here as everywhere.

Needs the programs of Slurm on the server's machine, but no accounting.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.errors import EngineFailed, Invalid, Unavailable
from runyard.engines.base import Capabilities, JobId, JobPhase, JobStatus, NodeGroup
from runyard.engines.job_folders import (
    check_job_key,
    clean_environment,
    is_job_key,
    last_words,
    leave_word_to_stop,
    remove_folder,
)
from runyard.engines.slurm_answers import (
    NODES_FORMAT,
    QUEUE_FORMAT,
    QueueRow,
    choose,
    explain_refusal,
    is_only_on_lost,
    judge,
    parse_nodes,
    parse_queue,
    with_words,
)
from runyard.engines.slurm_script import (
    LOG,
    SlurmOptions,
    plan_batch,
    plan_for_nodes,
    read_options,
    render_script,
    watch_marker,
)
from runyard_runtime import job_folder, node_watch, processes, remote, wire

_RECORD = "slurm.json"
_ANSWER_SECONDS = 60.0  # longer than Slurm's own patience with its controller
_KILL_SECONDS = 10.0  # for the watches to end all; Slurm ends it after that
_KILL_AGAIN_SECONDS = 1.0  # the same when they have had their time
_END_SECONDS = 10.0  # for Slurm to do so
_LOOK_SECONDS = 0.1
_SAY_AGAIN_SECONDS = 2.0  # a stop is repeated: a job that only starts does not hear it


class _Record(msgspec.Struct, kw_only=True):
    """What we keep of a job beside what Slurm keeps, which it forgets after minutes."""

    id: str  # of several that a slow `sbatch` has made, the oldest
    nodes: int = 1
    hosts: tuple[str, ...] = ()  # where it began; Slurm drops those that it lost
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
        # Slurm says which are a job's; the server's own must not be taken for them.
        self._environment.pop("CUDA_VISIBLE_DEVICES", None)
        conf = self._options.conf or environ.get("SLURM_CONF")
        if conf:
            self._environment["SLURM_CONF"] = conf
        self._lock = threading.Lock()
        self._told: dict[JobId, float] = {}  # when a stop was last said
        self._has_worked = False  # Slurm has answered this server
        self.capabilities = Capabilities(
            multi_node=True,
            one_machine=self._options.one_machine,
            containers=self._options.one_machine,
            shared_folder=self._options.shared,
            gpus=True,
            finds_server=self._options.one_machine,
        )

    def check(self, trial: NodeGroup | None = None) -> None:
        """Have Slurm say whether it would take a job as configured."""
        group = trial or NodeGroup(key="check", plan=b"{}")
        command = plan_batch(group, self._options, "runyard-check", Path("/"))
        self._ask([*command, "--test-only"], "#!/bin/sh\n")

    def start(self, group: NodeGroup) -> JobId:
        """Submit the group, or find it; a job that Slurm has ended cannot be had again."""
        check_job_key(group.key)
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
            numbers = {job: record.id for job in jobs if (record := self._record(job)) is not None}
        return {
            job: msgspec.structs.replace(status, name=numbers.get(job, ""))
            for job, status in statuses.items()
        }

    def stop(self, job: JobId) -> None:
        """Ask the agents to end; a job that still waits is taken from the queue."""
        with self._lock:
            record = self._adopt(job)
            if record is None or record.is_stopping or record.end is not None:
                return
            record.is_stopping = True
            self._write(job, record)
            if self._options.shared:
                for node in range(record.nodes):
                    leave_word_to_stop(self._own(job, node))
            self._say_stop(job, record)

    def kill(self, job: JobId) -> None:
        """End the Slurm job with all that its watches and agents started; returns when it has."""
        with self._lock:
            record = self._adopt(job)
            if record is None:
                return
            patience = _KILL_AGAIN_SECONDS if record.is_killed else _KILL_SECONDS
            if not record.is_killed:
                record.is_killed = True
                self._write(job, record)
        numbers = {record.id, *(row.id for row in self._rows(job))}
        self._cancel(numbers, "--state=PENDING")
        # Again and again: a watch that only starts does not hear.
        is_over = self._ends(job, patience, lambda: self._signal(numbers, record.nodes, "USR2"))
        if not is_over:
            self._signal(numbers, record.nodes, "KILL")
            self._cancel(numbers)
            is_over = self._ends(job, _END_SECONDS)
        left = self._end_here(job, record.nodes)
        if not is_over or left:
            raise self._not_ended(job, record, left)

    def _ends(self, job: JobId, seconds: float, ask: Callable[[], None] = lambda: None) -> bool:
        """Whether Slurm's job comes to its end within that time, but for nodes that are lost.

        For those Slurm may wait long. What still runs there is refused by the server once there is
        another attempt, and Slurm gives their nodes to nobody.
        """
        deadline = time.monotonic() + seconds
        while rows := [row for row in self._rows(job) if not row.is_over]:
            hosts = {host for row in rows for host in row.hosts if row.state == "COMPLETING"}
            if hosts and is_only_on_lost(rows, self._node_states(hosts)):
                return True
            if time.monotonic() >= deadline:
                return False
            ask()
            time.sleep(_LOOK_SECONDS)
        return True

    def _end_here(self, job: JobId, nodes: int) -> set[int]:
        """End what runs on this very machine, if no daemon of Slurm did; what could not be."""
        places = self._places(job, nodes)
        name = self._slurm_name(job)
        markers = {name, watch_marker(name), *map(processes.job_marker, places)}

        def find() -> dict[int, processes.Stat]:
            found: dict[int, processes.Stat] = {}
            for marker in markers:
                found |= processes.job_processes(marker)
            return found

        first = find()
        # Watches before agents before ranks, or they would see each other fail.
        for pid in sorted(first, key=lambda pid: (first[pid].start, pid)):
            processes.send(pid, signal.SIGKILL)
        left = set(processes.end_processes(find, 0))
        for node, place in enumerate(places) if first else ():
            remote.clear(place, node)
            if not self._options.shared:
                remove_folder(Path(place))
        return left

    def _places(self, job: JobId, nodes: int) -> list[str]:
        """The job folders of all nodes, as they are called on each."""
        if self._options.shared:
            return [str(self._folder / job)] * nodes
        top = os.path.abspath(os.path.expanduser(self._options.folder or "~/.runyard-node"))
        return [str(remote.job_place(top, job, node)) for node in range(nodes)]

    def _not_ended(self, job: JobId, record: _Record, left: set[int]) -> EngineFailed:
        row = next((row for row in self._rows(job) if not row.is_over), None)
        hosts = ", ".join(row.hosts) if row is not None else ""
        seen = f" Processes here: {', '.join(map(str, sorted(left)))}." if left else ""
        return EngineFailed(
            f"Slurm's job {record.id} of '{job}' could not be ended.",
            why=f"Slurm says: {row.state if row is not None else 'it is over'}"
            f"{' on ' + hosts if hosts else ''}.{seen} Its processes may hang in the system, e.g. "
            "in a disk or a GPU that does not answer.",
            fix=f"Look at its nodes ('scontrol show job {record.id}'); it is tried again.",
        )

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
                plan = plan_for_nodes(group, self._options)
                job_folder.write_atomically(str(folder / wire.PLAN_FILE), plan)
        except OSError as error:
            raise EngineFailed(f"Job '{job}' cannot be prepared.", why=str(error)) from error
        command = plan_batch(group, self._options, self._slurm_name(job), folder)
        script, variables = render_script(group, self._options, self._slurm_name(job), folder)
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

    def _look(self, job: JobId, queue: Mapping[str, Sequence[QueueRow]]) -> JobStatus:
        rows = queue.get(self._slurm_name(job), ()) if is_job_key(job) else ()
        record = self._adopt(job, rows)
        row = choose(rows, record.id if record is not None else "")
        if record is None:
            return JobStatus(phase=JobPhase.GONE, detail="Slurm has no such job")
        # Agents may have ended since the first look, and know better than Slurm.
        left = self._left_exit(job, record)
        if left is not None:
            return left
        status = judge(row, is_stopping=record.is_stopping, number=record.id)
        if status.phase in (JobPhase.EXITED, JobPhase.GONE):
            return with_words(status, self._last_words(job) or self._lost_hosts(row, record.hosts))
        if status.phase is JobPhase.ACTIVE and not status.detail:
            return msgspec.structs.replace(status, detail=self._unheard(job, record))
        return status

    def _lost_hosts(self, row: QueueRow | None, hosts: Sequence[str]) -> str:
        """What Slurm writes into the log of a job that lost nodes, for one that has no log."""
        if row is None or not row.has_lost_node or not hosts:
            return ""
        states = self._node_states(hosts)
        down = [host for host in hosts if states.get(host, "").startswith("down")]
        return f"Node failure on {','.join(down)}" if down else ""

    def _unheard(self, job: JobId, record: _Record) -> str:
        """Which nodes cannot reach the server, in words, where that can be seen."""
        notes = [
            (node, job_folder.read_json(str(self._own(job, node) / "silent")))
            for node in range(record.nodes if self._options.shared else 0)
        ]
        silent = [(node, one["url"]) for node, one in notes if isinstance(one, dict)]
        if not silent:
            return ""
        names = ", ".join(str(node) for node, _ in silent)
        return f"node {names} cannot reach the server at {silent[0][1]}; is RUNYARD_PUBLIC_URL set?"

    def _settle(self, job: JobId, status: JobStatus) -> None:
        """Keep what Slurm will forget, and say again what may not have been heard."""
        record = self._record(job)
        if record is None or record.is_killed:
            return
        if status.phase in (JobPhase.EXITED, JobPhase.GONE):
            if record.end is None:
                if status.phase is JobPhase.GONE:
                    self._cancel([record.id], "--state=PENDING")
                record.end = status
                self._write(job, record)
            return
        if status.hosts and not record.hosts:
            record.hosts = status.hosts
            self._write(job, record)
        if record.is_stopping:
            self._say_stop(job, record)

    def _say_stop(self, job: JobId, record: _Record) -> None:
        if time.monotonic() - self._told.get(job, 0.0) >= _SAY_AGAIN_SECONDS:
            self._told[job] = time.monotonic()
            self._cancel([record.id], "--state=PENDING")
            self._signal([record.id], record.nodes, "TERM")

    def _signal(self, numbers: Iterable[str], nodes: int, name: str) -> None:
        """Signal the watches: of one node the batch script is the watch, else a step's tasks."""
        where = ["--batch"] if nodes == 1 else []
        self._cancel(numbers, *where, f"--signal={name}")

    def _cancel(self, numbers: Iterable[str], *how: str) -> None:
        # It fails where there is nothing left to cancel, and that is as good.
        self._ask(["scancel", "--quiet", *how, *sorted(numbers)], may_fail=True)

    def _adopt(self, job: JobId, rows: Sequence[QueueRow] | None = None) -> _Record | None:
        """The job's record; one that a server before us could not write is made from the queue.

        An `sbatch` whose answer did not come in time may have been heard all the same, so that
        there are two jobs of one key: the oldest is ours, and the others are cancelled.
        """
        record = self._record(job)
        if not is_job_key(job) or not (self._folder / job).exists():
            return record
        if rows is None:
            rows = self._rows(job) if record is None else ()
        ours = choose(rows, record.id if record is not None else "")
        if record is None and ours is not None:
            record = _Record(id=ours.id, nodes=ours.nodes)
            self._write(job, record)
        elif record is not None and ours is not None and ours.id != record.id:
            record.id, record.hosts = ours.id, ()
            self._write(job, record)
        if more := [row.id for row in rows if row is not ours and not row.is_over]:
            self._cancel(more)
        return record

    def _left_exit(self, job: JobId, record: _Record) -> JobStatus | None:
        """The end of a job whose agents all left their exit codes in a shared folder."""
        if not self._options.shared:
            return None
        own = [str(self._own(job, node)) for node in range(record.nodes)]
        codes = [code for one in own if (code := node_watch.read_exit(one)) is not None]
        if len(codes) < len(own):
            return None
        left = job_folder.read_json(f"{own[0]}/exit.json") or {}
        return JobStatus(
            phase=JobPhase.EXITED,
            exit_code=next((one for one in codes if one), 0),
            detail=str(left.get("trouble", "")),
        )

    def _last_words(self, job: JobId) -> str:
        names = [LOG, *(f"{wire.agent_dir(node)}/log" for node in range(16))]
        return last_words(self._folder / job / name for name in names)

    def _own(self, job: JobId, node: int) -> Path:
        return self._folder / job / str(wire.agent_dir(node))

    def _slurm_name(self, job: JobId) -> str:
        """What marks the job in Slurm: its key, and where we keep it: there may be two servers."""
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

    def _queue(self) -> dict[str, list[QueueRow]]:
        """Our jobs by marker, those that ended a short while ago as well."""
        command = ["squeue", "--noheader", "--all", "--states=all", f"--user={os.getuid()}"]
        return parse_queue(self._ask([*command, f"--Format={QUEUE_FORMAT}"]))

    def _rows(self, job: JobId) -> list[QueueRow]:
        return self._queue().get(self._slurm_name(job), [])

    def _node_states(self, hosts: Iterable[str]) -> dict[str, str]:
        which = [f"--nodes={','.join(sorted(hosts))}", f"--format={NODES_FORMAT}"]
        return parse_nodes(self._ask(["sinfo", "--noheader", "--Node", *which], may_fail=True))

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
            said = done.stderr.strip()
            refusal = explain_refusal(command[0], said, has_worked=self._has_worked)
            if not may_fail or isinstance(refusal, Unavailable):
                raise refusal
        self._has_worked = self._has_worked or done.returncode == 0
        return done.stdout


def open_slurm(folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]) -> SlurmEngine:
    """The engine of an attached Slurm cluster; Slurm knows users by itself, so no secrets."""
    return SlurmEngine(folder, options)
