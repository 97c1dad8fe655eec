"""The engines that runs go to: this machine's own, and those of targets that come from elsewhere.

This machine answers at once and is asked in the caller's thread. A cluster may be slow or away, so
each is asked by a *desk*, a thread of its own that makes one call after the other; what it learns
is picked up at the next look. Ending what is left of jobs takes seconds each, so that has another
thread. A cluster that cannot be reached fails nobody: its jobs are simply not heard of, its trouble
is put in words, and it is tried again.
"""

import contextlib
import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from runyard.data.sealing import redact, unseal
from runyard.domain.compute import EngineRef, NodeResources
from runyard.domain.errors import (
    Denied,
    EngineFailed,
    Invalid,
    RunyardError,
    TimedOut,
    Unavailable,
    Unsupported,
)
from runyard.domain.runs import RunRecord
from runyard.domain.states import RunState
from runyard.engines.base import (
    Capabilities,
    Engine,
    JobId,
    JobPhase,
    JobStatus,
    NodeGroup,
    Opener,
)
from runyard_runtime.job_folder import write_atomically

log = logging.getLogger(__name__)

THIS_MACHINE = ""  # the key of the engine that is always there
RETRY_SECONDS = 3.0  # how long a cluster that could not be reached is left alone
ROOM_SECONDS = 60.0  # how long a cluster is not asked again whether such nodes exist
QUIET_SECONDS = 30.0  # between two looks at a cluster that has no job of ours
LEFT_BEHIND_SECONDS = 7 * 86400.0  # that jobs are looked for on a cluster without a target
AWAY = "its cluster cannot be reached now"  # what a run waits for then

_AWAY = (Unavailable, Denied, TimedOut)  # it cannot be used now; nothing follows for its jobs


class Job(NamedTuple):
    """A job, and the engine that has it."""

    engine: str  # its key in the book
    id: JobId


def engine_key(ref: EngineRef | None) -> str:
    """The key of an engine: its secrets may change, its jobs are found by the rest."""
    if ref is None:
        return THIS_MACHINE
    text = msgspec.json.encode([ref.kind, sorted(ref.options.items())])
    return f"{ref.kind}-{hashlib.blake2b(text, digest_size=6).hexdigest()}"


class EngineBook:
    """All engines of a server. Its methods are for the conductor's thread, except where said."""

    def __init__(
        self,
        local: Engine,
        *,
        folder: Path,
        secret: bytes,
        openers: Mapping[str, Opener],
        wake: Callable[[str], None],
    ) -> None:
        self._local = local
        self._folder = folder
        self._secret = secret
        self._openers = openers
        self._wake = wake
        self._lock = threading.Lock()
        self._desks: dict[str, _Desk] = {}

    # ---- from any thread ---------------------------------------------------------------------

    def capabilities(self, ref: EngineRef | None) -> Capabilities:
        """What the engine can do; `Unsupported` if there is no such engine."""
        return self._local.capabilities if ref is None else self._desk(ref).engine.capabilities

    def check(self, ref: EngineRef, nodes: int = 1, each: NodeResources | None = None) -> None:
        """Ask the cluster whether it takes jobs, of so many such nodes; raises what is wrong."""
        secrets = unseal(ref.secret, self._secret, of=f"the {ref.kind} cluster")
        engine = self._open(ref, secrets)
        try:
            engine.check(NodeGroup(key="trial", plan=b"{}", nodes=nodes, resources=each))
        except _AWAY as error:  # it is the cluster that is away or refuses, not this server
            told = _without(error, secrets.values())
            raise EngineFailed(told.what, why=told.why, fix=told.fix) from None
        except RunyardError as error:
            raise _without(error, secrets.values()) from None

    def check_room(self, ref: EngineRef, nodes: int, each: NodeResources | None) -> None:
        """Raise if the cluster will never have such nodes; one that cannot be asked may have."""
        desk = self._desk(ref)
        asked = (nodes, each)
        now = time.monotonic()
        if desk.trouble or desk.engine.capabilities.autoscale or desk.has_room.get(asked, 0) > now:
            return
        try:
            desk.engine.check(NodeGroup(key="trial", plan=b"{}", nodes=nodes, resources=each))
        except (Unsupported, Invalid) as error:
            raise _without(error, desk.secrets.values()) from None
        except RunyardError:
            return  # it may pass; if it does not, the run is told
        desk.has_room[asked] = now + ROOM_SECONDS

    def trouble(self, ref: EngineRef | None) -> str:
        """Why the engine cannot be used now, in words; empty: it can."""
        if ref is None:
            return ""
        try:
            return self._desk(ref).trouble
        except RunyardError as error:
            return error.what

    def waiting_words(self, run: RunRecord, job: Job | None) -> str:
        """What a run waits for that a cluster has, in words; empty: nothing there holds it up."""
        desk = self._desks.get(job.engine) if job is not None else None
        if desk is None or job is None:
            return ""
        trouble = desk.trouble.rstrip(".")
        if run.state is RunState.CANCEL_REQUESTED and trouble:
            return (
                f"its cluster cannot be reached: {trouble}; it is ended as soon as it can be "
                f"(runyard cancel --force {run.id} gives it up)"
            )
        if run.state is not RunState.STARTING:
            return ""
        if trouble:
            return f"{AWAY}: {desk.trouble}"
        return pending_words(desk.statuses.get(job.id), desk.engine.name.capitalize())

    # ---- for the conductor ---------------------------------------------------------------------

    def left_behind(self) -> list[EngineRef]:
        """Clusters whose targets are gone, where an earlier server may have left jobs.

        They are asked once they can be reached, and then forgotten.
        """
        return [
            ref
            for path in sorted(self._folder.glob("*.json"))
            if (ref := _read_ref(path)) is not None
        ]

    def key_of(self, ref: EngineRef | None) -> str:
        """The engine's key; from now on it is asked for its jobs, if it can be."""
        if ref is not None:
            try:
                self._desk(ref)
            except RunyardError as error:
                log.warning("the engine %s cannot be used: %s", ref.kind, error)
        return engine_key(ref)

    def start(self, job: Job, run_id: str, group: Callable[[], NodeGroup]) -> Job | None:
        """Start the group of that run, or find it started; raises what kept it from starting.

        None: it is on its way, and the run is woken when more is known: then call it again.
        """
        if job.engine == THIS_MACHINE:
            return Job(THIS_MACHINE, self._local.start(group()))
        desk = self._desks.get(job.engine)
        if desk is None:
            raise Unavailable(f"The engine '{job.engine}' cannot be used.", why="See server.log.")
        outcome = desk.started.pop(job.id, None)
        if outcome is None:
            if job.id not in desk.starting:
                desk.start(group(), lambda: self._wake(run_id))
            return None
        if isinstance(outcome, Exception):
            raise outcome
        return Job(job.engine, outcome)

    def drop_start(self, id: JobId) -> Job | None:
        """The job of a start that nobody waits for any more; None if none was under way."""
        for key, desk in list(self._desks.items()):
            if desk.drop_start(id):
                return Job(key, id)
        return None

    def look(self, jobs: Iterable[Job]) -> list[tuple[Job, JobStatus]]:
        """How the jobs are, as far as it is known; of what is elsewhere, what was heard last."""
        sorted_out = _by_engine(jobs)
        ours = sorted_out.pop(THIS_MACHINE, [])
        here = self._local.poll(ours) if ours else {}
        found = [(Job(THIS_MACHINE, id), status) for id, status in here.items()]
        for key, ids in sorted_out.items():
            desk = self._desks.get(key)
            news = desk.take_news() if desk is not None else {}
            found += [(Job(key, id), news[id]) for id in ids if id in news]
        return found

    def ask(self, jobs: Iterable[Job], used: Iterable[EngineRef]) -> None:
        """Have all other engines asked how their jobs are, each in one round trip.

        To be called after what the last look brought was dealt with, so that nothing is dealt
        with twice. Who has no job and is not `used` by a target is asked nothing any more.
        """
        sorted_out = _by_engine(jobs)
        have_targets = set[str]()
        for ref in used:
            have_targets.add(engine_key(ref))
            with contextlib.suppress(RunyardError):  # of which a run is told
                self._desk(ref)
        for key, desk in list(self._desks.items()):
            self._mark(desk, has_target=key in have_targets)
            is_over = desk.has_listed or _read_ref(self._path(key)) is None
            if not desk.is_left or key in sorted_out or desk.is_busy or not is_over:
                desk.ask(sorted_out.get(key, []))
                continue
            with self._lock:
                del self._desks[key]
            desk.close()
            self._path(key).unlink(missing_ok=True)

    def kept(self) -> list[tuple[str, Sequence[JobId]]]:
        """What engines keep from before this server's time, of each once."""
        return [
            (key, found)
            for key, desk in list(self._desks.items())
            if (found := desk.take_kept()) is not None
        ]

    def local_jobs(self) -> Sequence[JobId]:
        """What this machine keeps."""
        return self._local.jobs()

    def stop(self, job: Job) -> None:
        """Ask the job's agents to end."""
        if job.engine == THIS_MACHINE:
            self._local.stop(job.id)
        elif (desk := self._desks.get(job.engine)) is not None:
            desk.stop(job.id)

    def remove(self, job: Job, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """End what is left of a job and forget it; blocks for this machine's, so not for others.

        `failed` is called if something of it may still run, `done` if nothing does.
        """
        if job.engine == THIS_MACHINE:
            _remove(self._local, job.id, done, failed)
        elif (desk := self._desks.get(job.engine)) is None:
            failed()
        else:
            desk.remove(job.id, done, failed)

    def close(self) -> None:
        """Ask nobody any more; calls that are on their way are left alone."""
        for desk in self._desks.values():
            desk.close()

    def _desk(self, ref: EngineRef) -> "_Desk":
        key = engine_key(ref)
        with self._lock:
            desk = self._desks.get(key)
            if desk is not None and ref.secret in desk.sealed:
                return desk
            secrets = unseal(ref.secret, self._secret, of=f"the {ref.kind} cluster")
            if desk is None:
                desk = self._desks[key] = _Desk(key, self._open(ref, secrets), secrets)
            elif secrets != desk.secrets:
                desk.replace(self._open(ref, secrets), secrets)
            desk.sealed.add(ref.secret)  # the same is never sealed to the same text twice
            self._write_ref(ref)
            return desk

    def _write_ref(self, ref: EngineRef) -> None:
        """Have a next server know of the cluster, whatever becomes of its targets."""
        path = self._path(engine_key(ref))
        if _read_ref(path) == ref:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(str(path), msgspec.json.encode(ref))
        except OSError as error:
            log.warning("%s cannot be written: %s", path, error)

    def _mark(self, desk: "_Desk", *, has_target: bool) -> None:
        """Note whether a cluster has a target; since when not, is kept in its file's time."""
        if not has_target and not desk.is_left:
            with contextlib.suppress(OSError):
                os.utime(self._path(desk.key))
        desk.is_left = not has_target

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def _open(self, ref: EngineRef, secrets: Mapping[str, str]) -> Engine:
        opener = self._openers.get(ref.kind)
        if opener is None:
            raise Unsupported(
                f"There is no engine '{ref.kind}'.",
                why=f"This server has: {', '.join(sorted(self._openers))}.",
            )
        return opener(self._folder / engine_key(ref), ref.options, secrets)


class _Desk:
    """Asks one engine, one call after the other, in threads that die with the process."""

    def __init__(self, key: str, engine: Engine, secrets: Mapping[str, str]) -> None:
        self.key = key
        self.engine = engine
        self.secrets = secrets
        self.sealed: set[str] = set()  # texts that are known to hold them, or older ones
        self.trouble = ""
        self.is_left = False  # no target is of this cluster any more
        # Until when, by the monotonic clock, it is taken for granted that such nodes exist.
        self.has_room: dict[tuple[int, NodeResources | None], float] = {}
        self.statuses: dict[JobId, JobStatus] = {}
        self.starting: set[JobId] = set()
        self.started: dict[JobId, JobId | Exception] = {}
        self._dropped: set[JobId] = set()  # of those that are starting
        self._left_alone_until = 0.0  # by the monotonic clock
        self._calls = _Line(f"engine {key}")
        self._removals = _Line(f"engine {key}, removals")
        self._lock = threading.Lock()
        self._news: dict[JobId, JobStatus] = {}
        self._kept: Sequence[JobId] | None = None
        self.has_listed = False
        self._quiet_until = time.monotonic() + QUIET_SECONDS
        self._is_asked = False
        self._to_stop: dict[JobId, None] = {}

    def replace(self, engine: Engine, secrets: Mapping[str, str]) -> None:
        """The same cluster is opened by another secret now."""
        self.engine, self.secrets = engine, secrets
        self._left_alone_until = 0.0

    def remove(self, job: JobId, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """End and forget a job when its turn comes; `failed` if the cluster is away then."""
        self.statuses.pop(job, None)

        def act() -> None:
            if time.monotonic() < self._left_alone_until:
                failed()
            else:
                _remove(self.engine, job, done, failed, self.secrets.values())

        self._removals.put(act)

    def close(self) -> None:
        """Make no further calls."""
        self._calls.put(None)
        self._removals.put(None)

    @property
    def is_busy(self) -> bool:
        """True if something is still to be done or told."""
        is_due = self._is_asked or self.starting or self.started
        return bool(is_due or self._calls.is_busy or self._removals.is_busy)

    def start(self, group: NodeGroup, done: Callable[[], None]) -> None:
        """Start a group; how that went is in `started` when `done` is called."""
        id = JobId(group.key)
        self.starting.add(id)

        def act() -> None:
            try:
                self._try_away()
                outcome: JobId | Exception = self.engine.start(group)
            except _AWAY as error:
                outcome = self._is_away(error)
            except RunyardError as error:
                outcome = _without(error, self.secrets.values())
            except Exception as error:  # noqa: BLE001 - raised again in the conductor's thread
                outcome = error
            with self._lock:
                self.starting.discard(id)
                if id not in self._dropped:
                    self.started[id] = outcome
                self._dropped.discard(id)
            done()

        self._calls.put(act)

    def drop_start(self, id: JobId) -> bool:
        """Have nobody told how a start went; False if there was none."""
        with self._lock:
            is_known = self.started.pop(id, None) is not None
            if id in self.starting:
                self._dropped.add(id)
            return is_known or id in self.starting

    def stop(self, job: JobId) -> None:
        """Have a job's agents asked to end, as soon as the cluster can be reached."""
        with self._lock:
            self._to_stop[job] = None
        self._calls.put(lambda: self._guarded(self._stop_all))

    def ask(self, jobs: Sequence[JobId]) -> None:
        """Ask how those jobs are; what is not answered yet is not asked again."""
        is_due = bool(jobs or self.trouble or not self.has_listed or self._to_stop)
        is_quiet = not is_due and time.monotonic() >= self._quiet_until
        if self._is_asked or not (is_due or is_quiet):
            return
        self._is_asked = True
        self._quiet_until = time.monotonic() + QUIET_SECONDS

        def act() -> None:
            try:
                self._guarded(self._see_that_it_is_there if is_quiet else lambda: self._ask(jobs))
            finally:
                self._is_asked = False

        self._calls.put(act)

    def take_news(self) -> dict[JobId, JobStatus]:
        """What was heard since the last time."""
        with self._lock:
            news, self._news = self._news, {}
        return news

    def take_kept(self) -> Sequence[JobId] | None:
        """The jobs that the engine had at the first look, once; None: not known, or not new."""
        with self._lock:
            kept, self._kept = self._kept, None
        return kept

    # ---- in its own thread -------------------------------------------------------------------

    def _ask(self, jobs: Sequence[JobId]) -> None:
        # A poll that is answered says enough. Whether it would take another job is no reason not
        # to hear of those it has, so that is asked only where there is none.
        if self.trouble and not jobs:
            self.engine.check()
        if not self.has_listed:
            kept = self.engine.jobs()
            with self._lock:
                self._kept, self.has_listed = kept, True
        found = dict(self.engine.poll(jobs)) if jobs else {}
        with self._lock:
            self._news |= found
        known = {id: one for id, one in dict(self.statuses).items() if id in self.starting}
        self.statuses = {**known, **found}
        if self.trouble:
            log.warning("%s can be used again", self.key)
            self.trouble = ""
        self._stop_all()

    def _see_that_it_is_there(self) -> None:
        """Nobody has a job there, so nobody else would notice."""
        try:
            self.engine.check()
        except _AWAY:
            raise
        except RunyardError as error:  # it answers, and that is enough; a run is told the rest
            log.info("%s: %s", self.key, _without(error, self.secrets.values()))

    def _stop_all(self) -> None:
        """Stop what is to be stopped; one that cannot be keeps no other from it."""
        for job in list(self._to_stop):
            try:
                self.engine.stop(job)
            except _AWAY:
                raise
            except RunyardError as error:  # it is tried again after the next poll
                log.warning("job %s: %s", job, _without(error, self.secrets.values()))
            else:
                with self._lock:
                    self._to_stop.pop(job, None)

    def _guarded(self, act: Callable[[], None]) -> None:
        if time.monotonic() < self._left_alone_until:
            return
        try:
            act()
        except RunyardError as error:
            self._is_away(error)

    def _try_away(self) -> None:
        if time.monotonic() < self._left_alone_until:
            raise Unavailable(self.trouble)

    def _is_away(self, error: RunyardError) -> Exception:
        words = _without(error, self.secrets.values())
        # A token that is refused does not mend itself, as a link does.
        more = (words.why, words.fix if isinstance(error, Denied) else "")
        said = " ".join(text for text in (words.what, *more) if text)
        if said != self.trouble:
            log.warning("%s cannot be used now: %s", self.key, said)
        self.trouble = said
        if time.monotonic() >= self._left_alone_until:
            self._left_alone_until = time.monotonic() + RETRY_SECONDS
        return Unavailable(said)


class _Line:
    """A thread that makes one call after the other, and dies with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._left = 0  # calls that are not over; the thread takes off, others put on
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, call: Callable[[], None] | None) -> None:
        """Have a call made when its turn comes; None: no further ones."""
        with self._lock:
            self._left += 1
        self._calls.put(call)

    @property
    def is_busy(self) -> bool:
        """True while a call is made or waits for its turn."""
        return self._left > 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:  # the thread's own edge
                log.exception("%s: a call failed by a bug", self._name)
            with self._lock:
                self._left -= 1


def _remove(
    engine: Engine,
    job: JobId,
    done: Callable[[], None],
    failed: Callable[[], None],
    secrets: Iterable[str] = (),
) -> None:
    try:
        engine.kill(job)  # whatever became of its agent, nothing is left behind
    except Exception as error:
        failed()  # once more, soon: what may still run must not meet a next attempt
        if not isinstance(error, RunyardError):
            raise
        log.warning("job %s: %s", job, _without(error, secrets))
        return
    try:
        engine.forget(job)
    finally:
        done()


def _by_engine(jobs: Iterable[Job]) -> dict[str, list[JobId]]:
    found: dict[str, list[JobId]] = {}
    for job in jobs:
        found.setdefault(job.engine, []).append(job.id)
    return found


def _without(error: RunyardError, secrets: Iterable[str]) -> RunyardError:
    """The error without any secret in its words."""
    hidden = tuple(secrets)
    return type(error)(
        redact(error.what, hidden), why=redact(error.why, hidden), fix=redact(error.fix, hidden)
    )


def _read_ref(path: Path) -> EngineRef | None:
    """The cluster that a file names; None if there is none, or it is from long ago."""
    try:
        if time.time() - path.stat().st_mtime > LEFT_BEHIND_SECONDS:
            return None
        return msgspec.json.decode(path.read_bytes(), type=EngineRef)
    except (OSError, msgspec.DecodeError):
        return None


def pending_words(status: JobStatus | None, name: str) -> str:
    """What a run waits for that its cluster has but does not run yet; empty if that is not so."""
    if status is None or status.phase not in (JobPhase.PENDING, JobPhase.ACTIVE):
        return ""
    if status.phase is JobPhase.ACTIVE:
        return f"is starting on {name}: {status.detail}" if status.detail else ""
    return f"waits in the line of {name}" + (f": {status.detail}" if status.detail else "")
