"""Moves runs through their states: prepare, queue, start, watch, clean up.

One thread owns all decisions. It is woken when something may have changed and looks at its jobs
once a second. Nothing it knows is lost with it: what it keeps in memory is rebuilt from the store.
"""

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.conductor.pools import Pools
from runyard.conductor.preparing import Prepared, Preparing
from runyard.domain.compute import Machine
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import NotFound, RunyardError, Stale
from runyard.domain.files import Manifest, decode_manifest
from runyard.domain.runs import RunError, RunKind, RunRecord
from runyard.domain.states import ACTIVE, TERMINAL, RunState
from runyard.domain.tokens import Role, mint
from runyard.engines.base import Capabilities, Engine, JobId, JobPhase, JobStatus, NodeGroup
from runyard.environments.base import Builder, builder_for
from runyard.planning import lifecycle
from runyard.planning.job import Surroundings, job_key, plan_job
from runyard.planning.pools import Start
from runyard.settings import GIGABYTE, Settings
from runyard.stores.base import Store, Where, find_all
from runyard_runtime import bundle, wire

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LEAVING_SECONDS = 30.0  # beyond the grace time: for a failed attempt to ship what it has

# Mounts an input on this machine. -P: the job's folder must not be where modules come from.
_MOUNTER = (sys.executable, "-P", "-m", "runyard.data.mount")

S = RunState


class Outgoing(NamedTuple):
    """The job of an attempt that failed: another one follows when nothing is left of it."""

    run_id: str
    deadline: float  # by the monotonic clock: then it is ended without ceremony


class Conductor:
    """Drives every unfinished run of the store."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        secret: bytes,
        changes: Changes,
        url: Callable[[], str],
        *,
        engine: Engine,
        builders: Sequence[Builder],
        machine: Machine | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._settings = settings
        self._secret = secret
        self._changes = changes
        self._url = url
        self._engine = engine
        self._builders = builders
        self._now = now
        self._inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._preparing = Preparing(store.streams, self._on_prepared)
        self._chores = ThreadPoolExecutor(max_workers=2, thread_name_prefix="chores")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="conductor", daemon=True)
        self._machine = machine or Machine(cores=1)
        self._pools = Pools(store, settings.slots, self._machine, now, self.wake)
        self._lock = threading.Lock()  # guards the next against readers of other threads
        self._busy: dict[str, JobId | None] = {}  # runs that were started
        self._remarks: dict[str, tuple[str, ...]] = {}  # for the build logs of runs that wait
        self._unbuilt: dict[str, EnvironmentSpec] = {}  # what runs wait for, in the order they came
        self._stumbled: set[str] = set()  # runs that some trouble kept us from looking after
        self._ended: set[JobId] = set()  # jobs of runs that are over, to be cleaned up
        # Jobs whose run starts anew when nothing is left of them, and how long they have for it.
        self._outgoing: dict[JobId, Outgoing] = {}
        self._runtime = Path()
        self._load_manifest = lru_cache(maxsize=64)(self._read_manifest)

    def start(self) -> None:
        """Take up every unfinished run, then go on in a thread."""
        target = self._settings.home / "runtime" / bundle.bundle_digest()
        self._runtime = Path(bundle.materialize(str(target)))
        self._thread.start()

    def stop(self) -> None:
        """Make no further decisions. Jobs and builds of environments go on."""
        self._stopping.set()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._chores.shutdown(wait=True)

    def wake(self, run_id: str | None = None) -> None:
        """Something about that run may have changed; None: a compute target. From any thread."""
        if run_id is None:
            self._pools.look_again()
        self._inbox.put(run_id)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do, for those who check a run before they take it."""
        return self._engine.capabilities

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with their place in line, where they wait in one."""
        return self._pools.describe(found)

    # ---- the loop ----------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._recovered() and not self._stopping.wait(POLL_SECONDS):
            pass
        next_poll = time.monotonic() + POLL_SECONDS
        while not self._stopping.is_set():
            for run_id in self._next_wakes(max(0.0, next_poll - time.monotonic())):
                self._guarded(self._step, run_id)
            self._guarded(self._start_waiting)
            self._guarded(self._pools.save)
            if time.monotonic() >= next_poll:
                self._guarded(self._poll)
                self._guarded(self._clean_up)
                self._wake_again()
                next_poll = time.monotonic() + POLL_SECONDS

    def _next_wakes(self, timeout: float) -> list[str]:
        """The runs somebody woke us for, without repetition; none after `timeout` seconds."""
        found: dict[str, None] = {}
        try:
            first = self._inbox.get(timeout=timeout)
            found |= {} if first is None else {first: None}
            while True:
                more = self._inbox.get_nowait()
                found |= {} if more is None else {more: None}
        except queue.Empty:
            return list(found)

    def _guarded(self, act: Callable[..., None], *arguments: object) -> None:
        """One run's trouble must not stop the others; what failed is tried again in a while.

        The first argument, if there is one, is the run's id.
        """
        try:
            act(*arguments)
        except Stale:
            if arguments:
                self.wake(str(arguments[0]))  # somebody else was quicker; look again
        except Exception:  # the loop's own edge
            log.exception("the conductor stumbled over %s", arguments or act.__name__)
            if arguments:
                self._stumbled.add(str(arguments[0]))

    def _wake_again(self) -> None:
        stumbled, self._stumbled = self._stumbled, set()
        for run_id in stumbled:
            self.wake(run_id)

    def _recovered(self) -> bool:
        """Take up what an earlier server left; False if that could not be read right now."""
        try:
            found = self._load_unfinished()
            jobs = self._engine.jobs()
            self._end_orphans()
            self._hold_nodes(found)
        except Exception:  # nothing may start before this is known
            log.exception("unfinished runs cannot be taken up yet")
            return False
        if found:
            log.info("taking up %d unfinished runs", len(found))
        ours = {job_key(run) for run in found} | {run.job for run in found}
        self._ended |= {job for job in jobs if job not in ours}
        for job in self._ended:
            self._engine.stop(job)
        for run in found:
            before = {attempt.job for attempt in run.attempts}
            before |= {job_key(run, attempt.attempt) for attempt in run.attempts}
            for job in self._ended & before:
                self._see_out(job, run)
        # As they came into line, so that the lines keep their order.
        for run in sorted(
            found, key=lambda run: (not lifecycle.has_job(run), lifecycle.in_line_since(run))
        ):
            self._guarded(self._step, run.id)
        return True

    def _hold_nodes(self, found: Sequence[RunRecord]) -> None:
        """Let runs have the nodes they work on, before somebody else starts in their place."""
        for run in found:
            if lifecycle.has_job(run) and run.spec.kind is not RunKind.SERVICE:
                self._pools.hold(run)
        self._pools.settle()

    def _load_unfinished(self) -> list[RunRecord]:
        return [
            run
            for kind in (RunKind.SERVICE, RunKind.SCRIPT)
            for run in list(
                find_all(self._store.records, RunRecord, Where(states=ACTIVE, kind=kind))
            )[::-1]
        ]

    def _step(self, run_id: str) -> None:
        """Do what the run's state asks for. Doing it again is harmless."""
        try:
            run = self._store.records.get(RunRecord, run_id)
        except NotFound:
            self._drop(run_id)
            return
        if run.state not in (S.NOT_STARTED, S.PREPARING):
            self._unbuilt.pop(run_id, None)
        if run.spec.script is None:
            return  # somebody's own process logs to it; its states are theirs to set
        match run.state:
            case S.NOT_STARTED | S.PREPARING:
                self._prepare(run)
            case S.QUEUED:
                if self._is_clear(run):
                    self._line_up(run)
            case S.STARTING | S.RUNNING | S.FINALIZING | S.CANCEL_REQUESTED:
                self._attend(run)
            case S.COMPLETED | S.FAILED | S.CANCELED:
                self._release(run)

    # ---- prepare and queue -------------------------------------------------------------------

    def _prepare(self, run: RunRecord) -> None:
        assert run.spec.script is not None
        spec = run.spec.script.environment
        try:
            builder = builder_for(spec, self._builders)
            ready = builder.ready(spec)
        except RunyardError as error:
            self._fail(run, RunError(code="EnvironmentFailed", message=str(error)))
            return
        except Exception as error:  # or it would be tried again for ever
            log.exception("the environment of run %s cannot be looked for", run.id)
            message = f"Its environment cannot be looked for: {error!r}. See server.log."
            self._fail(run, RunError(code="InternalError", message=message))
            return
        remarks = self._pools.warnings(run)
        if ready is not None:
            # Who waited for the build came first, and may not have heard yet that it is done.
            for earlier in list(takewhile(lambda one: one != run.id, self._unbuilt)):
                if self._unbuilt.get(earlier) == spec:
                    self._guarded(self._step, earlier)
            has_log = self._unbuilt.pop(run.id, None) is not None  # then the build writes it
            if not has_log and (notes := (*ready.notes, *remarks)):
                self._chore(self._write_notes, run.id, 0, notes)
            now = self._now()
            queued = lifecycle.move(run, S.PREPARING, S.QUEUED, now=now, environment=ready)
            if self._line_up(queued):
                self._start_waiting(queued)  # the common case: three steps, one write
                if self._pools.is_waiting(queued):
                    self._save(queued)
            return
        waiting = f"its environment '{spec.name}' is being built"
        if run.state is not S.PREPARING or run.waiting != waiting:
            self._save(lifecycle.move(run, S.PREPARING, now=self._now(), waiting=waiting))
        self._remarks[run.id] = remarks
        self._unbuilt[run.id] = spec
        self._preparing.request(run.id, builder, spec)

    def _on_prepared(self, run_ids: Sequence[str], prepared: Prepared) -> None:
        """An environment is built, or failed to; called from the build's own thread."""

        def how(run: RunRecord) -> RunRecord:
            if run.state is not S.PREPARING:
                return run  # canceled meanwhile
            if prepared.error is not None:
                return lifecycle.move(run, S.FAILED, now=self._now(), error=prepared.error)
            return lifecycle.move(run, S.QUEUED, now=self._now(), environment=prepared.environment)

        for run_id in run_ids:
            try:
                runs.change(self._store, run_id, how)
            except Exception:  # then the run asks for its environment again
                log.exception("run %s could not be told that its environment is done", run_id)
            if remarks := self._remarks.pop(run_id, ()):
                self._chore(self._write_notes, run_id, None, remarks)
            self._changes.notify(run_id)
            self.wake(run_id)

    def _write_notes(self, run_id: str, offset: int | None, notes: Sequence[str]) -> None:
        """Write into the run's build log; without an offset at its end."""
        if offset is None:
            offset = self._store.streams.end(run_id, wire.BUILD_LOG)
        text = "".join(f"{note}\n" for note in notes).encode()
        self._store.streams.append_log(run_id, wire.BUILD_LOG, offset, text)
        self._changes.notify(run_id)

    def _is_clear(self, run: RunRecord) -> bool:
        """True if nothing is left of earlier attempts; what is left is told to end."""
        if not run.attempts:
            return True
        failed = run.attempts[-1]
        with self._lock:
            was_busy = run.id in self._busy
            job = self._busy.pop(run.id, None)
        if was_busy:
            log.warning("run %s: attempt %d: %s", run.id, failed.attempt, failed.error.message)
            self._pools.release(run.id)
        if job is not None:
            self._see_out(job, run)
            self._engine.stop(job)
        self._end_children(run, S.FAILED, failed.error)
        with self._lock:
            return all(one.run_id != run.id for one in self._outgoing.values())

    def _see_out(self, job: JobId, run: RunRecord) -> None:
        """Have the run start anew when nothing is left of that job."""
        deadline = time.monotonic() + self._settings.grace_seconds + LEAVING_SECONDS
        self._ended.add(job)
        with self._lock:
            self._outgoing[job] = Outgoing(run.id, deadline)

    def _line_up(self, run: RunRecord) -> bool:
        """Let the run wait for nodes; False if it does not have to, or cannot.

        A service's processes start at once, on whatever there is. Without its target a run fails.
        """
        if run.spec.kind is RunKind.SERVICE:
            self._launch(run, Start(run=run.id, nodes=()))
            return False
        if self._pools.line_up(run):
            return True
        assert run.spec.script is not None
        message = f"The compute target '{run.spec.script.target}' was deleted before the run began."
        self._fail(run, RunError(code="ComputeTargetNotFound", message=message))
        return False

    def _start_waiting(self, fresh: RunRecord | None = None) -> None:
        """Start those whose turn it is; `fresh` is one of them that is not stored as queued yet."""
        for start in self._pools.plan():
            known = fresh if fresh is not None and fresh.id == start.run else None
            self._guarded(self._start_run, start.run, start, known)

    def _start_run(self, run_id: str, start: Start, known: RunRecord | None) -> None:
        try:
            run = known or self._store.records.get(RunRecord, run_id)
            if run.state is S.QUEUED:
                self._launch(run, start)
                return
        except BaseException:
            if run_id not in self._busy:
                self._pools.put_back(run_id)
            raise
        self._pools.release(run_id)
        self.wake(run_id)

    # ---- start and watch ---------------------------------------------------------------------

    def _launch(self, run: RunRecord, start: Start) -> None:
        """Store that the run starts, then start it."""
        run = self._save(lifecycle.move(run, S.STARTING, now=self._now(), nodes=start.nodes))
        with self._lock:
            self._busy[run.id] = None
        self._start_job(run)

    def _start_job(self, run: RunRecord) -> None:
        """Start the run's agents, or find them; both are the same to us."""
        try:
            job = self._engine.start(self._node_group(run))
        except (RunyardError, OSError) as error:
            self._fail_start(run, RunError(code="EngineFailed", message=str(error)))
            return
        except Exception as error:  # a run that cannot start must not hold its slot for ever
            log.exception("run %s could not be started because of a bug", run.id)
            message = f"The run could not be started: {error!r}. See server.log."
            self._fail_start(run, RunError(code="InternalError", message=message))
            return
        with self._lock:
            self._busy[run.id] = job

        def keep_job(now: RunRecord) -> RunRecord:
            # Its agent may be quicker: that attempt may be over by now.
            same = now.attempt == run.attempt
            return msgspec.structs.replace(now, job=str(job)) if same else now

        if run.job != job:
            runs.change(self._store, run.id, keep_job)

    def _fail_start(self, run: RunRecord, error: RunError) -> None:
        self._see_out(JobId(job_key(run)), run)  # whatever was begun
        if run.state is S.CANCEL_REQUESTED:
            self._save(lifecycle.move(run, S.CANCELED, now=self._now(), error=error))
        else:
            self._save(lifecycle.end_attempt(run, now=self._now(), error=error))
        self.wake(run.id)

    def _node_group(self, run: RunRecord) -> NodeGroup:
        assert run.spec.script is not None
        home = self._settings.home
        around = Surroundings(
            url=self._url(),
            address_file=str(home / "server.json"),
            token=mint(self._secret, Role.RUN, run.id, wire.NEVER),
            agent_token=mint(self._secret, Role.AGENT, run.id, wire.NEVER),
            runtime=str(self._runtime),
            blobs=self._store.blobs.folder(),
            grace_seconds=self._settings.grace_seconds,
            group_seconds=self._settings.group_seconds,
            sample_seconds=self._settings.sample_seconds,
            cache=str(home / "cache"),
            cache_bytes=int(self._settings.cache_gb * GIGABYTE),
            mounter=_MOUNTER,
            mirrors=self._settings.mirrors,
            allow_private=self._settings.allows_private,
            fetch_limit_bytes=self._settings.fetch_limit_bytes,
            machine=self._machine,
            one_machine=self._engine.capabilities.one_machine,
            shared_folder=self._engine.capabilities.shared_folder,
        )
        workspace = runs.load_workspace(self._store, run.spec.workspace)
        manifest = self._load_manifest(run.spec.script.snapshot)
        plan = plan_job(run, workspace, manifest, around)
        return NodeGroup(key=job_key(run), nodes=run.spec.script.launcher.nodes, plan=plan)

    def _read_manifest(self, snapshot: str) -> Manifest:
        return decode_manifest(b"".join(self._store.blobs.open(snapshot)))

    def _attend(self, run: RunRecord) -> None:
        """See that a run which holds a slot is known to us, and stop it if it is to stop."""
        if run.spec.kind is not RunKind.SERVICE:
            self._pools.hold(run)
        with self._lock:
            known = run.id in self._busy
            job = self._busy.setdefault(run.id, JobId(run.job) if run.job else None)
        if job is None:
            self._start_job(run)
        elif not known:
            log.info("run %s goes on as job %s", run.id, job)
        if run.state is S.CANCEL_REQUESTED and (job := self._busy.get(run.id)) is not None:
            self._engine.stop(job)

    def _poll(self) -> None:
        """Look at all jobs in one round trip; deal with those that ended without a word."""
        with self._lock:
            jobs = {job: run_id for run_id, job in self._busy.items() if job is not None}
        if not jobs:
            return
        for job, status in self._engine.poll(list(jobs)).items():
            if status.phase in (JobPhase.EXITED, JobPhase.GONE):
                self._guarded(self._judge, jobs[job], status)

    def _judge(self, run_id: str, status: JobStatus) -> None:
        """Deal with a job that ended without a word that reached us."""
        run = self._store.records.get(RunRecord, run_id)
        verdict = lifecycle.decide(run, status, self._now())
        if verdict is None:
            self.wake(run.id)
            return
        run = self._save(verdict.run)
        log.warning("run %s: its job is %s. %s", run.id, status.phase, status.detail)
        if verdict.take_over:
            self._start_job(run)
        else:
            self.wake(run.id)

    # ---- end ---------------------------------------------------------------------------------

    def _release(self, run: RunRecord) -> None:
        """Let go of a run that is over: its slot, its job, its open children, its growing logs."""
        self._pools.release(run.id)
        with self._lock:
            job = self._busy.pop(run.id, None) or (JobId(run.job) if run.job else None)
        if job is not None:
            self._ended.add(job)
            if run.state is not S.COMPLETED:
                self._engine.stop(job)  # if it was ended from outside, it still has processes
        log.info("run %s is %s%s", run.id, run.state, f": {run.error.message}" if run.error else "")
        self._chore(self._store.streams.seal_logs, run.id)
        self._end_children(run, run.state, run.error)

    def _end_children(self, run: RunRecord, state: RunState, error: RunError | None) -> None:
        """Children that logged from the run's process ended with it, and so did theirs."""
        where = Where(parent=run.id, kind=RunKind.INTERACTIVE)
        for child in find_all(self._store.records, RunRecord, where):
            self._end_child(child, state, error)
            self._end_children(child, state, error)

    def _end_child(self, child: RunRecord, state: RunState, error: RunError | None) -> None:
        def how(now: RunRecord) -> RunRecord:
            if now.state in TERMINAL:
                return now
            return lifecycle.move(now, state, now=self._now(), error=error)

        runs.change(self._store, child.id, how)
        self._changes.notify(child.id)

    def _end_orphans(self) -> None:
        """End children whose parent ended when there was no server to see it."""
        where = Where(states=ACTIVE, kind=RunKind.INTERACTIVE)
        for child in find_all(self._store.records, RunRecord, where):
            parent = self._parent_job(child)
            if parent is not None and parent.state in TERMINAL:
                self._end_child(child, parent.state, parent.error)

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

    def _clean_up(self) -> None:
        """Remove what the engine keeps of jobs that are over."""
        if not self._ended:
            return
        for job, status in self._engine.poll(list(self._ended)).items():
            is_over = status.phase in (JobPhase.EXITED, JobPhase.GONE)
            outgoing = self._outgoing.get(job)
            if is_over or (outgoing is not None and time.monotonic() >= outgoing.deadline):
                self._ended.discard(job)
                self._chore(self._remove_job, job)

    def _remove_job(self, job: JobId) -> None:
        try:
            self._engine.kill(job)  # whatever became of its agent, nothing is left behind
        except Exception:
            self._ended.add(job)  # once more, soon: what may still run must not meet a next attempt
            raise
        try:
            self._engine.forget(job)
        finally:
            with self._lock:
                outgoing = self._outgoing.pop(job, None)
            if outgoing is not None:
                self.wake(outgoing.run_id)

    # ---- small steps -------------------------------------------------------------------------

    def _chore(self, work: Callable[..., None], *arguments: object) -> None:
        """Do something that nobody waits for, off this thread; say so if it fails."""

        def guarded() -> None:
            try:
                work(*arguments)
            except Exception:  # nobody looks at a chore's result
                log.exception("%s%s failed", work.__name__, arguments)

        self._chores.submit(guarded)

    def _save(self, run: RunRecord) -> RunRecord:
        saved = self._store.records.replace(run)
        self._changes.notify(run.id)
        return saved

    def _fail(self, run: RunRecord, error: RunError) -> None:
        self._save(lifecycle.move(run, S.FAILED, now=self._now(), error=error))
        self.wake(run.id)

    def _drop(self, run_id: str) -> None:
        """Forget that the run waits or works."""
        self._unbuilt.pop(run_id, None)
        self._pools.release(run_id)
        with self._lock:
            self._busy.pop(run_id, None)
