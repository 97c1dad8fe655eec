"""Keeps services running: starts their processes, sees how they are, lets new revisions take over.

A service's processes are runs of a kind of their own (`RunKind.SERVICE`), so the conductor builds
their environment, starts and restarts their agents and keeps their logs as it does for any run.
What is done here follows from what is seen, by `planning.services`; nothing is known that is not
in the store, so a new server goes on where the last one stopped.
"""

import contextlib
import hashlib
import http.client
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from runyard.conductor import runs, service_sockets, services
from runyard.conductor.changes import Changes
from runyard.conductor.service_asking import ask_front
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Conflict, NotFound, Stale
from runyard.domain.files import FileEntry, Manifest, decode_manifest, encode_manifest
from runyard.domain.models import MODELS_FOLDER, ModelRecord
from runyard.domain.runs import LauncherSpec, RunError, RunKind, RunRecord, RunSpec, ScriptSpec
from runyard.domain.services import Revision, ServiceRecord, ServiceState
from runyard.domain.states import RunState
from runyard.planning.services import FRONT, Seen, Step, give_up, in_service_words, plan_service
from runyard.serving.access import hash_key
from runyard.serving.bell import Bell
from runyard.settings import Settings
from runyard.stores.base import Store
from runyard_runtime import job_folder, scoring_wire, wire

log = logging.getLogger(__name__)

SCORING_FILE = "runyard-scoring.json"
_EXPERIMENT = "services"  # of the runs that stand for a service's processes; never listed
# Seconds until the next look: something has just changed, something is waited for, all is well.
# Front ends ring for their news, so most looks are sooner.
_NEXT_LOOK, _BUSY_LOOK, _QUIET_LOOK = 0.02, 0.1, 2.0
_ANSWER_SECONDS = 2.0  # for all the processes of a service together, which are on this machine
_ROUND_SECONDS = 0.5  # for all services; whoever answers later is heard in a later round
_ASKERS = 8  # services that are asked at a time
_WRITERS = 3  # contents that are written at a time, each waiting for the disk
_MEGABYTE = 2**20
# For how long threads of numpy's OpenBLAS wait for work in a busy loop, also when they were just
# loaded: two to the power of it, in cycles. By default that is a tenth of a second on a core that
# the front end needs.
_BLAS_PATIENCE = "OPENBLAS_THREAD_TIMEOUT"
# Of the machine, not of the user's environment: the front end is the platform's own program.
_FRONT_ENVIRONMENT = EnvironmentSpec(
    name="runyard-front-end", user_managed=True, interpreter=sys.executable
)


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a service say of themselves."""

    version: int  # of the record that they were asked by
    front: dict[str, object] | None = None  # None: it does not answer
    coming: int = 0  # workers of the revision being tried that have loaded the model


class Starting(NamedTuple):
    """A run that is about to be started, and what must be kept before."""

    run: RunRecord
    contents: tuple[Future[None], ...]


class Serving:
    """Drives every service of the store, in a thread of its own."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        secret: bytes,
        changes: Changes,
        wake_run: Callable[[str], None],
        now: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._settings = settings
        self._secret = secret
        self._changes = changes
        self._wake_run = wake_run
        self._now = now
        self._folder = settings.home / "services"
        self._bell = Bell(self._folder)
        self._stopping = threading.Event()
        self._written: dict[str, bytes] = {}  # what the front end of a service was told last
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="service-contents")
        self._thread = threading.Thread(target=self._work, name="services", daemon=True)

    def start(self) -> None:
        """Look after all services from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer. Services go on."""
        self._stopping.set()
        self._bell.ring()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._bell.close()
        self._writers.shutdown(wait=False)

    def wake(self) -> None:
        """A service was made, changed or is to end. From any thread."""
        self._bell.ring()

    def _work(self) -> None:
        asked: dict[str, Future[Sight]] = {}
        with ThreadPoolExecutor(_ASKERS, thread_name_prefix="services") as pool:
            while not self._stopping.is_set():
                self._bell.wait(self._look(pool, asked))

    def _look(self, pool: Executor, asked: dict[str, Future[Sight]]) -> float:
        """Look after every service once; the seconds until the next time. A service that takes
        long to say how it is stays in `asked`, and keeps no other one waiting."""
        found = {service.id: service for service in self._load()}
        for gone in asked.keys() - found.keys():
            del asked[gone]
        for service in found.values():
            if service.id not in asked:
                asked[service.id] = pool.submit(self._ask, service)
        pauses = [_QUIET_LOOK]
        waiting = {future: found[id] for id, future in asked.items()}
        try:
            for future in as_completed(waiting, timeout=_ROUND_SECONDS):
                service = waiting[future]
                del asked[service.id]
                pauses.append(self._attend(service, future))
        except TimeoutError:
            pauses.append(_BUSY_LOOK)
        return min(pauses)

    def _load(self) -> list[ServiceRecord]:
        try:
            return services.list_services(self._store, None)
        except Exception:  # the store cannot be read right now
            log.exception("services cannot be looked after")
            return []

    def _attend(self, service: ServiceRecord, future: Future[Sight]) -> float:
        """Do what the service needs next; the seconds until it should be looked at again."""
        try:
            sight = future.result()
            if sight.version != service.version:
                return _NEXT_LOOK  # they were asked by what is no longer true
            step = self._plan(service, sight)
            self._carry_out(service, step)
            if step.service != service:
                return _NEXT_LOOK
            waits = service.coming or service.leaving or service.deleting
            is_well = service.state is ServiceState.HEALTHY and service.settled
            is_quiet = is_well or service.state is ServiceState.FAILED
            return _QUIET_LOOK if is_quiet and not waits else _BUSY_LOOK
        except Stale:
            return _NEXT_LOOK  # somebody changed it
        except NotFound:
            return _QUIET_LOOK
        except Exception:  # one service's trouble must not stop the others
            log.exception("service %s cannot be looked after", service.name)
            return _QUIET_LOOK

    # ---- see ---------------------------------------------------------------------------------

    def _ask(self, service: ServiceRecord) -> Sight:
        """Ask the service's processes how they are. In a thread that may wait for them."""
        keys = self._open(service)
        if service.deleting or isinstance(keys, RunError):
            return Sight(version=service.version)
        deadline = time.monotonic() + _ANSWER_SECONDS
        front = None if service.front is None else self._ask_front(service, keys["control"])
        up = 0
        coming = service.coming
        if coming is not None and coming.run is not None and coming.number not in _revisions(front):
            for path in self._sockets(service, coming):
                up += _says_hello(path, deadline - time.monotonic())
        return Sight(version=service.version, front=front, coming=up)

    def _open(self, service: ServiceRecord) -> dict[str, str] | RunError:
        """The keys of the service, or why they cannot be read."""
        try:
            return services.open_secrets(service, self._secret)
        except Conflict as problem:
            words = " ".join(part for part in (str(problem), problem.why, problem.fix) if part)
            return RunError(code="CredentialsUnreadable", message=words)

    def _plan(self, service: ServiceRecord, sight: Sight) -> Step:
        keys = self._open(service)
        if isinstance(keys, RunError) and not service.deleting:
            return Step(service=_given_up(service, keys))
        seen: dict[str, Seen] = {}
        if service.front is not None:
            self._see(seen, service.front, is_ready=sight.front is not None, answering=1)
        told = _revisions(sight.front)
        for revision in _all_revisions(service):
            if revision.run is None:
                continue
            is_found = revision.number in told
            if is_found or revision is not service.coming:
                up = told.get(revision.number, {}).get("ready_workers", 0)
            else:
                up = sight.coming
            whole = up >= revision.spec.replicas
            self._see(seen, revision.run, is_ready=whole, answering=up, is_found=is_found)
        in_use = [number for number, facts in told.items() if facts.get("in_flight", 0)]
        serving = service.serving.number if service.serving is not None else None
        if serving is not None and told.get(serving, {}).get("ready_workers", 0) < 1:
            in_use += [revision.number for revision in service.leaving]  # not taken over yet
        patience = timedelta(seconds=self._settings.service_start_seconds)
        step = plan_service(service, seen, in_use, self._now(), patience)
        return step if service.settled else self._with_settled(step, sight.front)

    def _with_settled(self, step: Step, front: Mapping[str, object] | None) -> Step:
        """The step with a settled service, if its front end goes by what it is to be told."""
        told = self._told(step.service)
        if told is None or front is None:
            return step
        # A front end of an older server does not say.
        if front.get("configuration", told["configuration"]) != told["configuration"]:
            return step
        settled = msgspec.structs.replace(step.service, settled=True)
        return msgspec.structs.replace(step, service=settled)

    def _see(
        self,
        seen: dict[str, Seen],
        run_id: str,
        *,
        is_ready: bool,
        answering: int,
        is_found: bool = False,
    ) -> None:
        try:
            run = self._store.records.get(RunRecord, run_id)
        except NotFound:
            return
        seen[run_id] = Seen(
            state=run.state,
            error=in_service_words(run.error),
            waiting=run.waiting,
            started=run.started,
            # What answers runs, also before its agent has said so.
            is_ready=is_ready and run.state in (RunState.STARTING, RunState.RUNNING),
            is_answering=answering > 0,
            is_found=is_found,
        )

    def _ask_front(self, service: ServiceRecord, control: str) -> dict[str, object] | None:
        """What the front end says of itself; None if it does not answer."""
        try:
            status, body = ask_front(
                self._settings.host,
                service.port,
                "GET",
                "/_runyard/status",
                headers={"Authorization": f"Bearer {control}"},
                seconds=_ANSWER_SECONDS,
            )
            return json.loads(body) if status == http.client.OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None

    # ---- do ----------------------------------------------------------------------------------

    def _carry_out(self, before: ServiceRecord, step: Step) -> None:
        """Store what follows, then have its effects; doing it twice does no harm."""
        service = step.service
        if step.is_over:
            self._remove(service)
            return
        for number in step.start:
            service = self._with_run(service, number)
        # While the record is stored, what the runs need is. Workers first: they take longer.
        starting = {
            number: self._prepare_start(service, number)
            for number in sorted(step.start, reverse=True)
        }
        if service != before:
            service = self._store.records.replace(service)
            self._changes.notify(service.id)
            if service.state != before.state:
                log.info("service %s is %s", service.name, service.state)
        if not service.deleting:
            self._tell_front(service)
        for number, start in starting.items():
            if isinstance(start, NotFound):
                service = self._without_content(service, number, start)
            else:
                self._start(start)
        for run_id in step.end:
            runs.cancel(self._store, run_id, self._now())
            self._wake_run(run_id)

    def _prepare_start(self, service: ServiceRecord, number: int) -> Starting | NotFound:
        """The run to be started, or what of its content is gone."""
        # The front end is told of the sockets before there are any.
        service_sockets.make_folder(self._folder / service.uid)
        if number == FRONT:
            return self._front_run(service)
        try:
            return self._worker_run(service, number)
        except NotFound as problem:
            return problem

    def _start(self, start: Starting) -> None:
        for content in start.contents:
            content.result()
        with contextlib.suppress(Conflict):  # an earlier server came as far as this
            self._store.records.insert(start.run)
        self._wake_run(start.run.id)

    def _keep(self, content: bytes) -> tuple[str, Future[None]]:
        """Begin to keep a content; its digest."""
        digest = hashlib.sha256(content).hexdigest()
        return digest, self._writers.submit(self._store.blobs.put, digest, [content])

    def _without_content(
        self, service: ServiceRecord, number: int, problem: NotFound
    ) -> ServiceRecord:
        """The service after a start that could not be: its model or code is gone."""
        message = f"{problem} Register or deploy it again."
        error = RunError(code="ContentMissing", message=message)
        if service.coming is not None and service.coming.number == number:
            changed = _given_up(service, error)
        else:
            changed = msgspec.structs.replace(service, error=error)
        changed = self._store.records.replace(changed)
        self._changes.notify(changed.id)
        return changed

    def _with_run(self, service: ServiceRecord, number: int) -> ServiceRecord:
        """The service with the name of the run that is about to be started for it."""
        if number == FRONT:
            name = f"service-{service.uid}-front-{service.version}"
            return msgspec.structs.replace(service, front=name)
        changed = {}
        for field in ("serving", "coming"):
            revision = getattr(service, field)
            if revision is not None and revision.number == number:
                starts = revision.starts + 1
                run = f"service-{service.uid}-r{number}-{starts}"
                changed[field] = msgspec.structs.replace(revision, run=run, starts=starts)
        return msgspec.structs.replace(service, **changed)

    def _tell_front(self, service: ServiceRecord) -> None:
        """Have what the front end is to do in its folder."""
        told = self._told(service)
        if told is None:
            return  # the record says so
        data = json.dumps(told, sort_keys=True).encode()
        if self._written.get(service.id) == data:
            return
        folder = self._folder / service.uid
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        job_folder.write_atomically(str(folder / "front.json"), data, mode=0o600)
        self._written[service.id] = data

    def _told(self, service: ServiceRecord) -> dict[str, object] | None:
        """What the front end is to do; None if the service's keys cannot be read."""
        known = self._open(service)
        if isinstance(known, RunError):
            return None
        access = service.access
        told = {
            "name": service.name,
            "host": self._settings.host,
            "port": service.port,
            "auth": access.auth,
            "key_hashes": [hash_key(known["primary"]), hash_key(known["secondary"])],
            "token_secret": known["tokens"],
            "control_token": known["control"],
            "bell": str(self._bell.path),
            "revisions": [
                {
                    "revision": revision.number,
                    "sockets": self._sockets(service, revision),
                }
                # While nothing serves, the front end looks for what is tried: so it is known to
                # answer as soon as it does.
                for revision in (service.serving or service.coming,)
                if revision is not None
            ],
            "limits": {
                "max_body_bytes": int(access.max_body_mb * _MEGABYTE),
                "queue": access.queue,
                "timeout_seconds": access.timeout_seconds,
                "max_batch_delay_ms": access.batch_delay_ms,
            },
        }
        data = json.dumps(told, sort_keys=True).encode()
        return {**told, "configuration": hashlib.sha256(data).hexdigest()}

    def _sockets(self, service: ServiceRecord, revision: Revision) -> list[str]:
        """Where the workers of a revision listen; nowhere if none can have been started."""
        folder = service_sockets.find_folder(self._folder / service.uid)
        if folder is None:
            return []
        numbers = range(revision.spec.replicas)
        return [str(folder / f"r{revision.number}w{number}.sock") for number in numbers]

    def _front_run(self, service: ServiceRecord) -> Starting:
        snapshot, kept = self._keep(encode_manifest(()))
        folder = str(self._folder / service.uid)
        ready = f"${wire.JOB_DIR}/{wire.ready_file(f'${wire.RANK}')}"
        script = ScriptSpec(
            arguments=("-P", "-m", "runyard.serving.front", folder, ready),
            snapshot=snapshot,
            environment=_FRONT_ENVIRONMENT,
            launcher=LauncherSpec(kind="service"),
        )
        assert service.front is not None
        return Starting(self._new_run(service, service.front, script), (kept,))

    def _worker_run(self, service: ServiceRecord, number: int) -> Starting:
        found = (one for one in (service.serving, service.coming) if one is not None)
        revision = next(one for one in found if one.number == number)
        spec = revision.spec
        assert spec.environment is not None  # chosen when the service was asked for
        tree, told_kept = self._tree(revision, self._sockets(service, revision))
        snapshot, tree_kept = self._keep(encode_manifest(tree))
        variables = {**spec.variables, "AML_APP_ROOT": "."}
        if spec.cores is not None:
            variables.setdefault("OMP_NUM_THREADS", str(max(1, int(spec.cores))))
        if _BLAS_PATIENCE not in spec.environment.variables:
            variables.setdefault(_BLAS_PATIENCE, "20")
        script = ScriptSpec(
            arguments=("-m", "runyard_runtime.scoring", SCORING_FILE, "$RUNYARD_RANK"),
            snapshot=snapshot,
            environment=spec.environment,
            variables=variables,
            launcher=LauncherSpec(kind="service", processes_per_node=spec.replicas),
        )
        assert revision.run is not None
        return Starting(self._new_run(service, revision.run, script), (told_kept, tree_kept))

    def _new_run(self, service: ServiceRecord, run_id: str, script: ScriptSpec) -> RunRecord:
        spec = RunSpec(
            workspace=service.workspace,
            experiment=_EXPERIMENT,
            id=run_id,
            kind=RunKind.SERVICE,
            display_name=service.name,
            script=script,
        )
        return runs.new_run(spec, self._now())

    def _tree(self, revision: Revision, sockets: Sequence[str]) -> tuple[Manifest, Future[None]]:
        """The files of a worker's folder: the user's code, the models, and what it is to do, which
        is about to be kept."""
        entries: list[FileEntry] = []
        snapshot = revision.spec.snapshot
        models = [self._store.records.get(ModelRecord, id) for id in revision.spec.models]
        bases = [f"{MODELS_FOLDER}/{model.name}/{model.number}" for model in models]
        if snapshot is not None:
            source = decode_manifest(b"".join(self._store.blobs.open(snapshot)))
            entries += without_paths(source, (*bases, SCORING_FILE))
        for model, base in zip(models, bases, strict=True):
            entries += [
                msgspec.structs.replace(entry, path=f"{base}/{entry.path}")
                for entry in model.manifest
            ]
        told = {
            "scorer": revision.spec.scorer,
            "models_dir": MODELS_FOLDER,
            "models": [
                {
                    "name": model.name,
                    "version": str(model.number),
                    "path": base,
                    "is_folder": model.is_folder,
                }
                for model, base in zip(models, bases, strict=True)
            ],
            "entry_script": revision.spec.entry_script,
            "source_directory": ".",
            "app_root": ".",
            "sockets": list(sockets),
        }
        data = json.dumps(told, indent=2).encode()
        digest, kept = self._keep(data)
        return (*entries, FileEntry(SCORING_FILE, digest, len(data))), kept

    def _remove(self, service: ServiceRecord) -> None:
        """Nothing of the service runs any more: forget it."""
        service_sockets.remove_folders(self._folder / service.uid)
        self._written.pop(service.id, None)
        with contextlib.suppress(NotFound):
            self._store.records.delete(service)
        self._changes.notify(service.id)
        log.info("service %s is gone", service.name)


def _all_revisions(service: ServiceRecord) -> list[Revision]:
    found = (service.serving, service.coming, *service.leaving)
    revisions = [revision for revision in found if revision is not None]
    if service.deleting and service.failed is not None:
        revisions.append(service.failed)  # it may have been given up with its workers alive
    return revisions


def _given_up(service: ServiceRecord, error: RunError) -> ServiceRecord:
    """The service without what was being tried; what serves goes on."""
    state = ServiceState.FAILED if service.serving is None else service.state
    return msgspec.structs.replace(give_up(service, error), state=state, waiting="")


def without_paths(tree: Manifest, taken: Sequence[str]) -> list[FileEntry]:
    """The files that are in nobody's way: not at, below or in place of a folder above `taken`."""

    def is_free(path: str) -> bool:
        return not any(
            f"{path}/".startswith(f"{other}/") or other.startswith(f"{path}/") for other in taken
        )

    return [entry for entry in tree if is_free(entry.path)]


def _revisions(status: Mapping[str, object] | None) -> dict[int, dict[str, int]]:
    """{revision: facts} of what a front end says."""
    told = (status or {}).get("revisions")
    if not isinstance(told, dict):
        return {}
    return {int(number): facts for number, facts in told.items() if isinstance(facts, dict)}


def _says_hello(path: str, seconds: float) -> bool:
    """True if a worker listens there and has loaded its model."""
    if seconds <= 0:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(seconds)
        try:
            link.connect(path)
            with link.makefile("rb") as stream:
                return bool(scoring_wire.read_hello(stream))
        except (OSError, ValueError, scoring_wire.Broken):
            return False
