"""Moves runs through their states: prepare, queue, start, watch, clean up.

One thread owns all decisions. It is woken when something may have changed and looks at its jobs
once a second. Nothing it knows is lost with it: what it keeps in memory is rebuilt from the store.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import msgspec

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.conductor.children import Children
from runyard.conductor.engine_book import AWAY, THIS_MACHINE, EngineBook, Job
from runyard.conductor.job_plans import JobPlans
from runyard.conductor.leaving import Leaving
from runyard.conductor.node_builder import builders_for
from runyard.conductor.pools import Pools
from runyard.conductor.preparing import Prepared, Preparing
from runyard.conductor.whereabouts import Whereabouts
from runyard.domain.compute import EngineRef, Machine, NodeResources
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import NotFound, RunyardError, Stale, Unavailable
from runyard.domain.runs import RunError, RunKind, RunRecord
from runyard.domain.states import RunState
from runyard.engines.base import Capabilities, Engine, JobId, JobPhase, JobStatus, NodeGroup, Opener
from runyard.environments.base import Builder, builder_for
from runyard.planning import lifecycle
from runyard.planning.job import job_key
from runyard.planning.pools import Start
from runyard.settings import Settings
from runyard.stores.base import Store
from runyard_runtime import bundle, wire

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
WAKES_AT_ONCE = 200  # runs that are looked after before jobs are looked at again
# Runs that come into line are stored together, but not so many that a submit has to wait for them.
SAVES_AT_ONCE = 16

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
        engines: Mapping[str, Opener] | None = None,
        builders: Sequence[Builder],
        machine: Machine | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._settings = settings
        self._changes = changes
        self._builders = builders
        self._now = now
        self._inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._preparing = Preparing(store.streams, self._on_prepared)
        self._chores = ThreadPoolExecutor(max_workers=2, thread_name_prefix="chores")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="conductor", daemon=True)
        machine = machine or Machine(cores=1)
        self._plans = JobPlans(store, settings, secret, url, machine)
        folder = settings.home / "engines"
        self._book = EngineBook(
            engine, folder=folder, secret=secret, openers=engines or {}, wake=self.wake
        )
        self._children = Children(store, changes, now)
        self._pools = Pools(store, settings.slots, machine, now, self.wake, self._book.trouble)
        self._whereabouts = Whereabouts(store, self._pools, changes)
        self._lock = threading.Lock()  # guards the next against readers of other threads
        self._busy: dict[str, Job | None] = {}  # runs that were started
        self._remarks: dict[str, tuple[str, ...]] = {}  # for the build logs of runs that wait
        self._unbuilt: dict[str, EnvironmentSpec] = {}  # what runs wait for, in the order they came
        self._stumbled: set[str] = set()  # runs that some trouble kept us from looking after
        self._unsaved: dict[str, Future[RunRecord]] = {}  # runs in line whose writes are under way
        self._leaving = Leaving(self._book, settings.grace_seconds, self._chore, self.wake)

    def start(self) -> None:
        """Take up every unfinished run, then go on in a thread."""
        target = self._settings.home / "runtime" / bundle.bundle_digest()
        self._plans.runtime = Path(bundle.materialize(str(target)))
        self._thread.start()

    def stop(self) -> None:
        """Make no further decisions. Jobs and builds of environments go on."""
        self._stopping.set()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._book.close()
        self._chores.shutdown(wait=True)

    def wake(self, run_id: str | None = None) -> None:
        """Something about that run may have changed; None: a compute target. From any thread."""
        if run_id is None:
            self._pools.look_again()
        self._inbox.put(run_id)

    @property
    def plans(self) -> JobPlans:
        """What makes the plans of jobs."""
        return self._plans

    def plan_of(self, run: RunRecord) -> bytes:
        """The plan of the run's present attempt, for a node that asks for it. From any thread."""
        return self._plans.plan(run, self._book.capabilities(self._pools.engine_of(run)))

    def capabilities_of(self, engine: EngineRef | None) -> Capabilities:
        """What an engine can do, for those who check a run before they take it."""
        return self._book.capabilities(engine)

    def trouble_of(self, engine: EngineRef) -> str:
        """Why a cluster cannot be used now, in words; empty: it can."""
        return self._book.trouble(engine)

    def check_engine(
        self, engine: EngineRef, nodes: int = 1, each: NodeResources | None = None
    ) -> None:
        """Ask a cluster whether it takes jobs, of such nodes; raises what is wrong, in words."""
        self._book.check(engine, nodes, each)

    def check_room(self, engine: EngineRef, nodes: int, each: NodeResources | None) -> None:
        """Raise if a cluster will never have such nodes, for those who check a run."""
        self._book.check_room(engine, nodes, each)

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with what they wait for, where they wait in a line: ours or a cluster's."""
        return [self._describe_start(run) for run in self._pools.describe(found)]

    def _describe_start(self, run: RunRecord) -> RunRecord:
        with self._lock:
            job = self._busy.get(run.id)
        words = self._book.waiting_words(run, job)
        return msgspec.structs.replace(run, waiting=words) if words else run

    # ---- the loop ----------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._recovered() and not self._stopping.wait(POLL_SECONDS):
            pass
        next_poll = time.monotonic() + POLL_SECONDS
        while not self._stopping.is_set():
            for run_id in self._next_wakes(max(0.0, next_poll - time.monotonic())):
                self._guarded(self._step, run_id)
            self._finish_saves()
            self._guarded(self._start_waiting)
            self._guarded(self._pools.save)
            if time.monotonic() >= next_poll:
                self._guarded(self._poll)
                self._wake_again()
                next_poll = time.monotonic() + POLL_SECONDS

    def _next_wakes(self, timeout: float) -> list[str]:
        """Some runs that somebody woke us for, each once; none after `timeout` seconds."""
        found: dict[str, None] = {}
        try:
            first = self._inbox.get(timeout=timeout)
            found |= {} if first is None else {first: None}
            while len(found) < WAKES_AT_ONCE:
                more = self._inbox.get_nowait()
                found |= {} if more is None else {more: None}
        except queue.Empty:
            pass
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
            found = runs.load_unfinished(self._store)
            jobs = self._book.local_jobs()
            self._children.end_orphans()
            self._hold_nodes(found)
            for ref in (*self._pools.engines(), *self._book.left_behind()):
                self._book.key_of(ref)
        except Exception:  # nothing may start before this is known
            log.exception("unfinished runs cannot be taken up yet")
            return False
        if found:
            log.info("taking up %d unfinished runs", len(found))
        self._end_strays(THIS_MACHINE, jobs, found)
        for run in found:
            engine = self._engine_key(run)
            if run.attempts and run.state is S.QUEUED and engine != THIS_MACHINE:
                # A cluster may take a while to say whether anything is left of the last attempt.
                job = Job(engine, JobId(job_key(run, run.attempts[-1].attempt)))
                self._leaving.see_out(job, run.id)
        # As they came into line, so that the lines keep their order.
        for run in sorted(
            found, key=lambda run: (not lifecycle.has_job(run), lifecycle.in_line_since(run))
        ):
            self._guarded(self._step, run.id)
        self._finish_saves()
        return True

    def _end_strays(self, engine: str, ids: Iterable[JobId], found: Sequence[RunRecord]) -> None:
        """End the jobs of an engine that belong to no unfinished run, or to a past attempt."""
        ours = {job_key(run) for run in found} | {run.job for run in found}
        strays = {Job(engine, id) for id in ids if id not in ours}
        for job in strays - set(self._leaving):
            self._leaving.add(job)
            self._book.stop(job)
        for run in found:
            before = {attempt.job for attempt in run.attempts}
            before |= {job_key(run, attempt.attempt) for attempt in run.attempts}
            for job in strays:
                if job.id in before:
                    self._leaving.see_out(job, run.id)

    def _hold_nodes(self, found: Sequence[RunRecord]) -> None:
        """Let runs have the nodes they work on, before somebody else starts in their place."""
        for run in found:
            if lifecycle.has_job(run) and run.spec.kind is not RunKind.SERVICE:
                self._pools.hold(run)
        self._pools.settle()

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
            builder = builder_for(spec, self._builders_of(run))
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
                    self._save_soon(queued)
            return
        waiting = f"its environment '{spec.name}' is being built"
        if run.state is not S.PREPARING or run.waiting != waiting:
            self._save(lifecycle.move(run, S.PREPARING, now=self._now(), waiting=waiting))
        self._remarks[run.id] = remarks
        self._unbuilt[run.id] = spec
        self._preparing.request(run.id, builder, spec)

    def _builders_of(self, run: RunRecord) -> Sequence[Builder]:
        """Who builds the run's environment: other rules hold where nodes do not see our disk."""
        can = self._book.capabilities(self._pools.engine_of(run))
        return builders_for(can, self._builders)

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
        if job is not None:
            self._leaving.see_out(job, run.id)
            self._book.stop(job)
        self._children.end(run, S.FAILED, failed.error)
        return not self._leaving.is_of(run.id)

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
        starts = self._pools.plan()
        if starts:
            self._finish_saves()  # the others must be
        for start in starts:
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
            job = self._begin(run)
        except Unavailable as error:  # of its cluster; this machine is always there
            if run.state is S.CANCEL_REQUESTED and run.job is None:  # nobody need wait for it
                self._fail_start(run, RunError(code="EngineFailed", message=str(error)))
                return
            self._stumbled.add(run.id)  # so it is tried again
            waiting = f"{AWAY}: {error.what}"
            if run.waiting != waiting:
                self._save(msgspec.structs.replace(run, waiting=waiting))
            return
        except (RunyardError, OSError) as error:
            self._fail_start(run, RunError(code="EngineFailed", message=str(error)))
            return
        except Exception as error:  # a run that cannot start must not hold its slot for ever
            log.exception("run %s could not be started because of a bug", run.id)
            message = f"The run could not be started: {error!r}. See server.log."
            self._fail_start(run, RunError(code="InternalError", message=message))
            return
        if job is None:
            return  # it is on its way to its cluster; we are woken when that is over
        with self._lock:
            self._busy[run.id] = job

        def keep_job(now: RunRecord) -> RunRecord:
            # Its agent may be quicker: that attempt may be over by now.
            if now.attempt != run.attempt:
                return now
            waiting = "" if now.waiting.startswith(AWAY) else now.waiting
            return msgspec.structs.replace(now, job=str(job.id), waiting=waiting)

        if run.job != job.id or run.waiting.startswith(AWAY):
            runs.change(self._store, run.id, keep_job)

    def _begin(self, run: RunRecord) -> Job | None:
        ref = self._pools.engine_of(run)
        job = Job(self._book.key_of(ref), JobId(job_key(run)))

        def group() -> NodeGroup:
            resources = self._pools.resources_of(run)
            return self._plans.node_group(run, self._book.capabilities(ref), resources)

        return self._book.start(job, run.id, group)

    def _fail_start(self, run: RunRecord, error: RunError) -> None:
        begun = Job(self._engine_key(run), JobId(job_key(run)))  # whatever there is of it
        if run.state is S.CANCEL_REQUESTED:
            self._save(lifecycle.move(run, S.CANCELED, now=self._now(), error=error))
        else:
            self._save(lifecycle.end_attempt(run, now=self._now(), error=error))
        self._leaving.see_out(begun, run.id)
        self._book.stop(begun)
        self.wake(run.id)

    def _attend(self, run: RunRecord) -> None:
        """See that a run which holds a slot is known to us, and stop it if it is to stop."""
        if run.spec.kind is not RunKind.SERVICE:
            self._pools.hold(run)
        stored = self._stored_job(run)
        with self._lock:
            known = run.id in self._busy
            job = self._busy.setdefault(run.id, stored)
        if job is None:
            self._start_job(run)
        elif not known:
            log.info("run %s goes on as job %s", run.id, job.id)
        if run.state is S.CANCEL_REQUESTED and (job := self._busy.get(run.id)) is not None:
            self._book.stop(job)

    def _stored_job(self, run: RunRecord) -> Job | None:
        """The job of the run's present attempt, as the store knows it."""
        return Job(self._engine_key(run), JobId(run.job)) if run.job else None

    def _engine_key(self, run: RunRecord) -> str:
        return self._book.key_of(self._pools.engine_of(run))

    def _poll(self) -> None:
        """Look at all jobs, each engine's in one round trip, and deal with those that ended."""
        for engine, ids in self._book.kept():
            self._end_strays(engine, ids, runs.load_unfinished(self._store))
        with self._lock:
            jobs = {job: run_id for run_id, job in self._busy.items() if job is not None}
        seen: dict[str, tuple[Job, JobStatus]] = {}
        for job, status in self._book.look({*jobs, *self._leaving}):
            if job in self._leaving:
                self._leaving.look(job, status)
                self._guarded(
                    lambda job=job, status=status: self._whereabouts.see_late(job, status)
                )
            elif status.phase in (JobPhase.EXITED, JobPhase.GONE):
                self._guarded(self._judge, jobs[job], status)
            elif job.engine != THIS_MACHINE:
                seen[jobs[job]] = (job, status)
        self._guarded(lambda: self._whereabouts.see(seen))
        with self._lock:
            jobs = {job: run_id for run_id, job in self._busy.items() if job is not None}
        self._book.ask({*jobs, *self._leaving}, self._pools.engines())

    def _judge(self, run_id: str, status: JobStatus) -> None:
        """Deal with a job that ended without a word that reached us."""
        run = self._store.records.get(RunRecord, run_id)
        verdict = lifecycle.decide(run, status, self._now())
        if verdict is None:
            self.wake(run.id)
            return
        run = self._save(verdict.run)
        log.warning("run %s: its job is %s. %s", run.id, status.phase, status.detail)
        with self._lock:
            job = self._busy.get(run.id)
            if verdict.take_over:
                self._busy[run.id] = None
        if verdict.take_over:
            self._start_job(run)
        else:
            if job is not None:
                self._leaving.see_out(job, run.id)  # nobody said that its ranks are over
            self.wake(run.id)

    # ---- end ---------------------------------------------------------------------------------

    def _release(self, run: RunRecord) -> None:
        """Let go of a run that is over: its slot, its job, its open children, its growing logs."""
        if not self._leaving.is_of(run.id):
            self._pools.release(run.id)
        stored = self._stored_job(run)
        with self._lock:
            job = self._busy.pop(run.id, None) or stored
        job = job or self._book.drop_start(JobId(job_key(run)))  # it was given up on its way there
        if job is not None:
            self._whereabouts.expect(job, run.id)
            self._leaving.add(job)
            if run.state is not S.COMPLETED:
                self._book.stop(job)  # if it was ended from outside, it still has processes
        log.info("run %s is %s%s", run.id, run.state, f": {run.error.message}" if run.error else "")
        self._chore(self._store.streams.seal_logs, run.id)
        self._children.end(run, run.state, run.error)

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

    def _save_soon(self, run: RunRecord) -> None:
        """As `_save`, together with those who come next; nothing may follow from it before."""
        self._unsaved[run.id] = self._store.records.replace_soon(run)
        if len(self._unsaved) >= SAVES_AT_ONCE:
            self._finish_saves()

    def _finish_saves(self) -> None:
        """Wait until all that was to be saved soon is."""
        unsaved, self._unsaved = self._unsaved, {}
        for run_id, write in unsaved.items():
            self._guarded(self._finish_save, run_id, write)

    def _finish_save(self, run_id: str, write: "Future[RunRecord]") -> None:
        write.result()
        self._changes.notify(run_id)

    def _fail(self, run: RunRecord, error: RunError) -> None:
        self._save(lifecycle.move(run, S.FAILED, now=self._now(), error=error))
        self.wake(run.id)

    def _drop(self, run_id: str) -> None:
        """Forget that the run waits or works."""
        self._unbuilt.pop(run_id, None)
        self._pools.release(run_id)
        with self._lock:
            self._busy.pop(run_id, None)
