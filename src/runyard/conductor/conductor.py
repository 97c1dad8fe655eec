"""Moves runs through their states: prepare, queue, start, watch, clean up.

One thread owns all decisions. It is woken when something may have changed and looks at its jobs
once a second. Nothing it knows is lost with it: what it keeps in memory is rebuilt from the store.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.conductor.preparing import Prepared, Preparing
from runyard.domain.environments import EnvironmentUse
from runyard.domain.errors import NotFound, RunyardError, Stale
from runyard.domain.files import Manifest, decode_manifest
from runyard.domain.runs import LOCAL, RunError, RunKind, RunRecord
from runyard.domain.states import ACTIVE, TERMINAL, RunState
from runyard.domain.tokens import Role, mint
from runyard.engines.base import Engine, JobId, JobPhase, NodeGroup
from runyard.environments.base import Builder, builder_for
from runyard.planning import lifecycle
from runyard.planning.job import Surroundings, job_key, plan_job
from runyard.planning.queue import plan_queue, waiting_words
from runyard.settings import Settings
from runyard.stores.base import Store, Where
from runyard_runtime import bundle, wire

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
TOKEN_SECONDS = 60 * 24 * 3600  # longer than any run: v1's own limit is 30 days

S = RunState


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
        self._lock = threading.Lock()  # guards the two below against readers of other threads
        self._waiting: dict[str, None] = {}  # queued runs, first come first
        self._busy: dict[str, JobId | None] = {}  # runs that hold a slot
        self._ended: set[JobId] = set()  # jobs of runs that are over, to be cleaned up
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
        """Something about that run may have changed. From any thread."""
        self._inbox.put(run_id)

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with their place in line, where they wait in one."""
        if all(run.state is not S.QUEUED for run in found):
            return found
        with self._lock:
            places = {run_id: place for place, run_id in enumerate(self._waiting, start=1)}
            busy = len(self._busy)
        return [
            msgspec.structs.replace(
                run,
                waiting=waiting_words(
                    places[run.id], len(places), busy, self._settings.slots, LOCAL
                ),
            )
            if run.state is S.QUEUED and run.id in places
            else run
            for run in found
        ]

    # ---- the loop ----------------------------------------------------------------------------

    def _work(self) -> None:
        self._guarded(self._recover)
        next_poll = time.monotonic() + POLL_SECONDS
        while not self._stopping.is_set():
            for run_id in self._next_wakes(max(0.0, next_poll - time.monotonic())):
                self._guarded(self._step, run_id)
            self._guarded(self._start_waiting)
            if time.monotonic() >= next_poll:
                self._guarded(self._poll)
                self._guarded(self._clean_up)
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

    def _guarded(self, act: Callable[..., None], *arguments: str) -> None:
        """One run's trouble must not stop the others."""
        try:
            act(*arguments)
        except Stale:
            for run_id in arguments:
                self.wake(run_id)  # somebody else was quicker; look again
        except Exception:  # the loop's own edge
            log.exception("the conductor stumbled over %s", arguments or act.__name__)

    def _recover(self) -> None:
        """Take up what an earlier server left, oldest first so that the queue keeps its order."""
        found = self._load_unfinished()
        if found:
            log.info("taking up %d unfinished runs", len(found))
        # Those that hold a slot come first, or others would start in their place.
        for run in sorted(found, key=lambda run: not lifecycle.has_job(run)):
            self._guarded(self._step, run.id)
        with self._lock:
            known = set(self._busy.values())
        self._ended |= {job for job in self._engine.jobs() if job not in known}
        for job in self._ended:
            self._engine.stop(job)

    def _load_unfinished(self) -> list[RunRecord]:
        where = Where(states=ACTIVE, kind=RunKind.SCRIPT)
        found: list[RunRecord] = []
        after: str | None = None
        while True:
            page, after = self._store.records.find(RunRecord, where, limit=500, after=after)
            found += page
            if after is None:
                return found[::-1]

    def _step(self, run_id: str) -> None:
        """Do what the run's state asks for. Doing it again is harmless."""
        try:
            run = self._store.records.get(RunRecord, run_id)
        except NotFound:
            self._drop(run_id)
            return
        if run.spec.script is None:
            return  # somebody's own process logs to it; its states are theirs to set
        match run.state:
            case S.NOT_STARTED | S.PREPARING:
                self._prepare(run)
            case S.QUEUED:
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
        if ready is not None:
            if ready.notes:
                self._chores.submit(self._write_notes, run.id, ready)
            now = self._now()
            queued = lifecycle.move(run, S.PREPARING, S.QUEUED, now=now, environment=ready)
            if self._has_room():
                self._launch(queued)  # the common case: three steps, one write
            else:
                self._line_up(self._save(queued))
            return
        waiting = f"its environment '{spec.name}' is being built"
        if run.state is not S.PREPARING or run.waiting != waiting:
            self._save(lifecycle.move(run, S.PREPARING, now=self._now(), waiting=waiting))
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
            runs.change(self._store, run_id, how)
            self._changes.notify(run_id)
            self.wake(run_id)

    def _write_notes(self, run_id: str, environment: EnvironmentUse) -> None:
        text = "".join(f"{note}\n" for note in environment.notes).encode()
        self._store.streams.append_log(run_id, wire.BUILD_LOG, 0, text)
        self._changes.notify(run_id)

    def _has_room(self) -> bool:
        """True if a run may start at once without overtaking another."""
        with self._lock:
            return not self._waiting and len(self._busy) < self._settings.slots

    def _line_up(self, run: RunRecord) -> None:
        with self._lock:
            self._waiting.setdefault(run.id)

    def _start_waiting(self) -> None:
        with self._lock:
            plan = plan_queue(list(self._waiting), self._busy, self._settings.slots)
        for run_id in plan.start:
            run = self._store.records.get(RunRecord, run_id)
            if run.state is S.QUEUED:
                self._launch(run)
            else:
                self._drop(run_id)
                self.wake(run_id)

    # ---- start and watch ---------------------------------------------------------------------

    def _launch(self, run: RunRecord) -> None:
        """Store that the run starts, then start it."""
        run = self._save(lifecycle.move(run, S.STARTING, now=self._now()))
        with self._lock:
            self._waiting.pop(run.id, None)
            self._busy[run.id] = None
        self._start_job(run)

    def _start_job(self, run: RunRecord) -> None:
        """Start the run's agents, or find them; both are the same to us."""
        try:
            job = self._engine.start(self._node_group(run))
        except (RunyardError, OSError) as error:
            self._fail(run, RunError(code="EngineFailed", message=f"It could not start: {error}"))
            return
        with self._lock:
            self._busy[run.id] = job
        if run.job != job:
            runs.change(self._store, run.id, lambda now: msgspec.structs.replace(now, job=str(job)))

    def _node_group(self, run: RunRecord) -> NodeGroup:
        assert run.spec.script is not None
        home = self._settings.home
        token = mint(self._secret, Role.RUN, run.id, int(time.time()) + TOKEN_SECONDS)
        around = Surroundings(
            url=self._url(),
            address_file=str(home / "server.json"),
            token=token,
            runtime=str(self._runtime),
            blobs=self._store.blobs.folder(),
            grace_seconds=self._settings.grace_seconds,
            sample_seconds=self._settings.sample_seconds,
        )
        workspace = runs.load_workspace(self._store, run.spec.workspace)
        manifest = self._load_manifest(run.spec.script.snapshot)
        plan = plan_job(run, workspace, manifest, around)
        return NodeGroup(key=job_key(run), nodes=run.spec.script.launcher.nodes, plan=plan)

    def _read_manifest(self, snapshot: str) -> Manifest:
        return decode_manifest(b"".join(self._store.blobs.open(snapshot)))

    def _attend(self, run: RunRecord) -> None:
        """See that a run which holds a slot is known to us, and stop it if it is to stop."""
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
            if status.phase not in (JobPhase.EXITED, JobPhase.GONE):
                continue
            run = self._store.records.get(RunRecord, jobs[job])
            verdict = lifecycle.decide(run, status, self._now())
            if verdict is None:
                self.wake(run.id)
                continue
            run = self._save(verdict.run)
            log.warning("run %s: its job is %s %s", run.id, status.phase, status.detail)
            if verdict.take_over:
                self._start_job(run)
            else:
                self.wake(run.id)

    # ---- end ---------------------------------------------------------------------------------

    def _release(self, run: RunRecord) -> None:
        """Let go of a run that is over: its slot, its job, its open children, its growing logs."""
        with self._lock:
            self._waiting.pop(run.id, None)
            job = self._busy.pop(run.id, None) or (JobId(run.job) if run.job else None)
        if job is not None:
            self._ended.add(job)
            if run.state is not S.COMPLETED:
                self._engine.stop(job)  # if it was ended from outside, it still has processes
        log.info("run %s is %s%s", run.id, run.state, f": {run.error.message}" if run.error else "")
        self._chores.submit(self._store.streams.seal_logs, run.id)
        self._end_children(run)

    def _end_children(self, run: RunRecord) -> None:
        """Children that logged from the job's own process ended with it."""
        where = Where(parent=run.id, states=ACTIVE, kind=RunKind.INTERACTIVE)
        children, _ = self._store.records.find(RunRecord, where, limit=1000)
        for child in children:
            runs.change(
                self._store,
                child.id,
                lambda now: (
                    now
                    if now.state in TERMINAL
                    else lifecycle.move(now, run.state, now=self._now(), error=run.error)
                ),
            )
            self._changes.notify(child.id)

    def _clean_up(self) -> None:
        """Remove what the engine keeps of jobs that are over."""
        if not self._ended:
            return
        for job, status in self._engine.poll(list(self._ended)).items():
            if status.phase in (JobPhase.EXITED, JobPhase.GONE):
                self._engine.kill(job)  # whatever became of its agent, nothing is left behind
                self._engine.forget(job)
                self._ended.discard(job)

    # ---- small steps -------------------------------------------------------------------------

    def _save(self, run: RunRecord) -> RunRecord:
        saved = self._store.records.replace(run)
        self._changes.notify(run.id)
        return saved

    def _fail(self, run: RunRecord, error: RunError) -> None:
        self._save(lifecycle.move(run, S.FAILED, now=self._now(), error=error))
        self.wake(run.id)

    def _drop(self, run_id: str) -> None:
        """Forget that the run waits or works."""
        with self._lock:
            self._waiting.pop(run_id, None)
            self._busy.pop(run_id, None)
