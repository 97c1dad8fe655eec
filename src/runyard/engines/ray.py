"""Runs jobs on a Ray cluster, through its Jobs API over HTTP alone.

Nothing of Ray is imported here, so server and cluster may be of any two versions. What runs on the
cluster is the text of `ray_driver`, see there; agents fetch all else from the server.
"""

import base64
import functools
import json
import logging
import shlex
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from runyard.domain.errors import EngineFailed, RunyardError, Unsupported
from runyard.engines.base import (
    Capabilities,
    JobId,
    JobPhase,
    JobStatus,
    NodeGroup,
    NodeResources,
)
from runyard.engines.job_folders import check_job_key
from runyard.engines.options import Seconds, convert_options
from runyard.engines.ray_answers import (
    KEEP_SECONDS,
    NOTE,
    OVER,
    TOO_LATE,
    has_orphans,
    is_not_started,
    last_state,
    plan_sweep,
    read_status,
)
from runyard.engines.ray_api import RayApi
from runyard.engines.ray_driver import STOP_SECONDS, TOKEN
from runyard_runtime import job_folder, remote

log = logging.getLogger(__name__)

_OWNER = "runyard_owner"  # the key of the metadata that says whose job it is
_NAME = "runyard_job"
_NEED = "runyard_need"
_SINCE = "runyard_since"  # when we submitted it, by our clock: that of Ray's head may be wrong
_ENTRYPOINT = (
    " -c 'import os, sys, zlib, base64; "
    'text = zlib.decompress(base64.b64decode(os.environ["RUNYARD_RAY_DRIVER"])).decode(); '
    "exec(text); sys.exit(main(text))'"
)
_SOON_SECONDS = 2.0  # what a cluster lacks for so long is worth a word
_STARTING_SECONDS = 10.0  # Ray takes that long to start a job; only then is it said to wait
_STOP_SECONDS = 3600  # what Ray leaves a job that was stopped; ours ends before, or is killed
_ORPHAN_SECONDS = STOP_SECONDS + 15.0  # when a driver is gone: until its guards have ended all
_KILL_SECONDS, _LET_GO_SECONDS = 20.0, 5.0
_LOOK_SECONDS = 0.05


Nodes = Sequence[Mapping[str, float]]  # what each node of the cluster has in all


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a cluster is reached and used."""

    address: str = ""  # of the dashboard
    autoscale: bool = False  # Ray adds nodes when they are needed
    # How long nodes are waited for that the cluster does not have; for a turn, without end.
    place_seconds: Seconds = 600.0
    python: str = "python"  # the command that runs our program there; for several nodes it has Ray
    url: str = ""  # the server as nodes reach it, where that differs
    # How long a node that comes up tries to reach it: the commonest mistake is a wrong address.
    server_seconds: Seconds = 300.0
    node_folder: str = ""  # where nodes keep what they fetch
    environments: str = ""  # where they make environments, e.g. a folder that all of them share


class _Need(msgspec.Struct, frozen=True):
    """What a group asks of the cluster: so many nodes, each with at least this."""

    nodes: int
    cores: int
    gpus: int = 0
    memory: int = 0  # bytes

    def words(self) -> str:
        """The need, for people."""
        parts = [_count(self.cores, "core")]
        parts += [_count(self.gpus, "GPU")] if self.gpus else []
        parts += [f"{self.memory / 2**30:.3g} GB"] if self.memory else []
        each = " each" if self.nodes > 1 else ""
        return f"{_count(self.nodes, 'node')} with {' and '.join(parts)}{each}"

    def bundle(self) -> dict[str, int]:
        """The need of one node, as Ray names it."""
        asked = {"CPU": self.cores, "GPU": self.gpus, "memory": self.memory}
        return {name: value for name, value in asked.items() if value}

    def of_driver(self) -> dict[str, int]:
        """What the job itself asks for: of one node its driver is there, of several on the head."""
        if self.nodes > 1:
            return {}
        asked = {"num_cpus": self.cores, "num_gpus": self.gpus, "memory": self.memory}
        return {f"entrypoint_{name}": value for name, value in asked.items() if value}


class RayEngine:
    """Starts agents on the nodes of a Ray cluster, one Ray job for each group."""

    name = "ray"

    def __init__(
        self, folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._options = convert_options("Ray", RayOptions, options)
        self._api = RayApi(self._options.address, secrets.get("token", ""))
        self._lock = threading.Lock()  # guards the next; times are of the monotonic clock
        self._stopped: set[JobId] = set()  # before they began
        self._waiting: set[JobId] = set()  # of which nothing had begun when they were seen last
        self._lacking: dict[JobId, float] = {}  # since when the cluster has no such nodes
        self._orphans: dict[JobId, float] = {}  # since when a job is over whose agents may not be
        self._forgotten: dict[str, float] = {}  # since when; by their names in Ray
        self._over: dict[str, float] = {}  # since when Ray has that as over
        self._known_owner = ""
        self.capabilities = Capabilities(
            multi_node=True,
            gpus=True,
            finds_server=bool(self._options.url) or is_here(self._options.address),
            autoscale=self._options.autoscale,
        )

    def check(self, trial: NodeGroup | None = None) -> None:
        """Ask the cluster whether it takes jobs; raises what is wrong."""
        self._api.check()
        if trial is not None:
            self._check_size(plan_need(trial.nodes, trial.resources))

    def start(self, group: NodeGroup) -> JobId:
        """Submit the group's job, or find it."""
        check_job_key(group.key)
        job = JobId(group.key)
        name = self._submission(job)
        info = self._api.job(name)
        if info is not None and not (is_not_started(info) or self._is_forgotten(name)):
            return job
        if info is not None:
            self._api.delete(name)
        with self._lock:
            self._forgotten.pop(name, None)
        self._api.submit(self._request(group, plan_need(group.nodes, group.resources)))
        with self._lock:
            self._waiting.add(job)
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """The status of each, from the one list of all jobs."""
        listed = self._api.jobs() if jobs else {}
        # Asked once, and only if it matters.
        nodes = functools.cache(lambda: list(self._api.living().values()))
        found = {job: self._status(job, listed, nodes) for job in jobs}
        self._sweep(listed)
        return {
            job: msgspec.structs.replace(status, name=self._submission(job))
            for job, status in found.items()
        }

    def stop(self, job: JobId) -> None:
        """Have the driver told to end: it tells the agents."""
        name = self._submission(job)
        info = self._api.job(name)
        if info is None or info["status"] in OVER:
            return
        if info["status"] == "PENDING":
            with self._lock:
                self._stopped.add(job)
        self._api.stop(name)

    def kill(self, job: JobId) -> None:
        """Have the driver told to end all at once, and wait until it did."""
        name = self._submission(job)
        info = self._api.job(name)
        if info is not None and info["status"] not in OVER:
            owner = {_OWNER: self._owner(), _NAME: ""}
            note = {"submission_id": name + NOTE, "entrypoint": ":", "metadata": owner}
            self._api.submit(note)
        begun = time.monotonic()
        while info is not None and (left := self._left(job, info)):
            is_pending = info["status"] == "PENDING"
            late = time.monotonic() - begun
            if is_pending:
                self._api.stop(name)  # nothing of ours hears; Ray ends it as soon as it has begun
            if late >= (_LET_GO_SECONDS if is_pending else _KILL_SECONDS):
                if is_pending:  # nothing runs, and should it begin it sees that it was killed
                    log.warning("job %s: Ray still has it as %s", job, info["status"])
                    return
                if info["status"] == "RUNNING":
                    self._api.stop(name)  # a driver that cannot read Ray's table hears this
                what = f"Job '{job}' could not be ended within {_KILL_SECONDS:g} s."
                raise EngineFailed(what, why=left)
            time.sleep(_LOOK_SECONDS if info["status"] not in OVER else 1.0)
            info = self._api.job(name)

    def _left(self, job: JobId, info: Mapping[str, Any]) -> str:
        """Why something of the job may still run; empty: nothing does."""
        if info["status"] not in OVER:
            return (
                f"Ray still has {info['submission_id']} as {info['status']}: the host of its "
                "driver may be busy, or out of Ray's reach."
            )
        if not has_orphans(info) or self._is_lost_with_its_node(info):
            return ""
        with self._lock:
            since = self._orphans.setdefault(job, time.monotonic())
        if time.monotonic() - since >= _ORPHAN_SECONDS:
            return ""
        return f"Its driver is gone, so what runs on its nodes ends within {_ORPHAN_SECONDS:g} s."

    def _is_lost_with_its_node(self, info: Mapping[str, Any]) -> bool:
        """True if its driver was on its only node, and that is no node of the cluster any more."""
        need = _need_of(info)
        return need.nodes == 1 and info.get("driver_node_id") not in self._api.living()

    def jobs(self) -> Sequence[JobId]:
        """Every job in Ray's list that was started from this folder."""
        owner = self._owner()
        listed = self._api.jobs()
        self._sweep(listed)
        found = []
        for name, info in listed.items():
            told = info.get("metadata") or {}
            if told.get(_OWNER) == owner and told.get(_NAME) and not self._is_forgotten(name):
                found.append(JobId(told[_NAME]))
        return found

    def forget(self, job: JobId) -> None:
        """Have nothing to do with the job any more; people see it in Ray's list for a while."""
        name = self._submission(job)
        with self._lock:
            self._forgotten[name] = time.monotonic()
            self._stopped.discard(job)
            self._waiting.discard(job)
            for times in (self._lacking, self._orphans):
                times.pop(job, None)

    def _is_forgotten(self, name: str) -> bool:
        with self._lock:
            return name in self._forgotten

    def _sweep(self, listed: Mapping[str, Any]) -> None:
        """Remove from Ray's list what nobody needs: jobs that are long over, and notes of kills."""
        now = time.monotonic()
        ours = f"runyard-{self._owner()}-"
        with self._lock:
            over = {
                name: self._over.get(name, now)
                for name, info in listed.items()
                if name.startswith(ours) and info["status"] in OVER
            }
            self._over = over
            for name, at in list(self._forgotten.items()):
                if name not in listed and now - at >= KEEP_SECONDS:
                    del self._forgotten[name]
            names = plan_sweep(listed, over, self._forgotten, now)
        try:
            for name in names:
                self._api.delete(name)
        except RunyardError as error:  # the next one does it
            log.info("what is over stays in Ray's list for now: %s", error)

    def _status(
        self, job: JobId, listed: Mapping[str, Any], nodes: Callable[[], Nodes]
    ) -> JobStatus:
        name = self._submission(job)
        info = None if self._is_forgotten(name) else listed.get(name)
        with self._lock:
            was_stopped, was_waiting = job in self._stopped, job in self._waiting
            self._waiting.discard(job)
        if info is None:
            detail = "Ray does not know this job; it may have been started anew"
            return JobStatus(phase=JobPhase.GONE, detail=detail, node_lost=not was_waiting)
        told = info.get("metadata") or {}
        state = last_state(info)
        if state is None and info["status"] == "RUNNING":
            state = self._api.printed_state(name)
        if state is None:
            if name + NOTE in listed:
                return JobStatus(phase=JobPhase.GONE, detail="it was killed", node_lost=True)
            if info["status"] == "STOPPED" or was_stopped:
                detail = "it was stopped before it had a node"
                return JobStatus(phase=JobPhase.EXITED, exit_code=-15, detail=detail)
        if state is None and told and info.get("error_type") == TOO_LATE:
            with self._lock:
                self._waiting.add(job)  # so that it is started again should this not succeed
            self._api.delete(name)
            self._api.submit(plan_again(name, info))
            info = {**info, "status": "PENDING"}
        waits = info["status"] == "PENDING" or (state or {}).get("phase") == "waits"
        if waits and info["status"] not in OVER:
            with self._lock:
                self._waiting.add(job)
            need = _need_of(info)
            since = float(told.get(_SINCE) or info["start_time"] / 1000)
            return self._wait_status(job, need, time.time() - since, nodes())
        return read_status(info, state)

    def _check_size(self, need: _Need) -> None:
        """Refuse what fits on no node, unless Ray may add others; without any they are to come."""
        nodes = [] if self.capabilities.autoscale else list(self._api.living().values())
        if nodes and not _can_hold(need, nodes):
            raise Unsupported(
                f"The Ray cluster at {self._api.address} cannot hold this: {need.words()}.",
                why=describe_nodes(nodes).replace("the", "The", 1),
                fix="Ask for less, or attach the cluster with autoscale if it adds nodes "
                "when they are needed.",
            )

    def _wait_status(self, job: JobId, need: _Need, seconds: float, nodes: Nodes) -> JobStatus:
        """The status of a job that has no nodes yet.

        For its turn it waits as long as it takes. Nodes that the cluster does not have may be on
        their way, or lost and soon back: those are waited for, but not for ever.
        """
        now = time.monotonic()
        can_hold = _can_hold(need, nodes)
        with self._lock:
            lacking = 0.0 if can_hold else now - self._lacking.setdefault(job, now)
            if can_hold:
                self._lacking.pop(job, None)
        if seconds < _STARTING_SECONDS and lacking < _SOON_SECONDS:
            return JobStatus(phase=JobPhase.PENDING, detail="Ray starts it")
        missing = "Ray to add nodes" if self._options.autoscale else "nodes that the cluster lacks"
        what = "free nodes" if can_hold else missing
        words = f"needs {need.words()}; {describe_nodes(nodes)}"
        limit = self._options.place_seconds
        if lacking < limit:
            return JobStatus(phase=JobPhase.PENDING, detail=f"waits for {what}: {words}")
        detail = f"it had no nodes after {limit:g} s of waiting for {what}: {words}"
        return JobStatus(phase=JobPhase.EXITED, detail=detail)

    def _request(self, group: NodeGroup, need: _Need) -> dict[str, object]:
        """The job as Ray's API takes it.

        What is secret is in its metadata only: Ray has the variables of a job on the command
        lines of its own processes, for a moment.
        """
        name = self._submission(JobId(group.key))
        plan = json.loads(group.plan)
        told = remote.variables(group.key, plan)
        token = told.pop(remote.PREFIX + "TOKEN")
        told[remote.PREFIX + "PATIENCE"] = f"{self._options.server_seconds:g}"
        if self._options.url:
            told[remote.PREFIX + "URL"] = self._options.url
        if self._options.node_folder:
            told[remote.PREFIX + "FOLDER"] = self._options.node_folder
        if self._options.environments:
            told[remote.PREFIX + "ENVIRONMENTS"] = self._options.environments
        spec = {
            "key": name,
            "nodes": need.nodes,
            "submitted": time.time(),
            "bundle": need.bundle(),
            "boot": remote.boot_text(),
            "lost": sorted(remote.WORDS),
            "hopeless": sorted(remote.CODES),
            "environment": told,
        }
        driver = Path(__file__).with_name("ray_driver.py").read_bytes()
        variables = {
            "RUNYARD_RAY_SPEC": json.dumps(spec),
            "RUNYARD_RAY_DRIVER": base64.b64encode(zlib.compress(driver)).decode(),
            "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS),
        }
        return {
            "submission_id": name,
            "entrypoint": quoted_program(self._options.python) + _ENTRYPOINT,
            "runtime_env": {"env_vars": variables},
            "metadata": {
                _OWNER: self._owner(),
                _NAME: group.key,
                _NEED: msgspec.json.encode(need).decode(),
                _SINCE: f"{time.time():.3f}",
                TOKEN: token,
                "run": str(plan.get("run_id")),
            },
            **need.of_driver(),
        }

    def _submission(self, job: JobId) -> str:
        """The job's name in Ray: ours, and no other server's."""
        return f"runyard-{self._owner()}-{job}"

    def _owner(self) -> str:
        """What tells our jobs from those of other servers on the same cluster."""
        with self._lock:
            path = self._folder / "ray-owner.json"
            if not self._known_owner:
                known = job_folder.read_json(str(path))
                self._known_owner = str(known or uuid.uuid4().hex[:12])
                if known is None:
                    self._folder.mkdir(parents=True, exist_ok=True)
                    data = json.dumps(self._known_owner).encode()
                    job_folder.write_atomically(str(path), data)
            return self._known_owner


def is_here(address: str) -> bool:
    """Whether a cluster's address is this machine itself. Pure."""
    host = urlsplit(address if "//" in address else f"//{address}").hostname
    return host in ("127.0.0.1", "localhost", "::1")


def plan_need(nodes: int, resources: NodeResources | None) -> _Need:
    """What a group asks of the cluster. Pure."""
    asked = resources or NodeResources()
    return _Need(
        nodes=nodes,
        cores=asked.cores or 1,
        gpus=asked.gpus or 0,
        memory=int((asked.memory_gb or 0) * 2**30),
    )


def plan_again(name: str, info: Mapping[str, Any]) -> dict[str, object]:
    """The request for a job as Ray has it that never began. Pure."""
    need = _need_of(info)
    same = {key: info[key] for key in ("entrypoint", "runtime_env", "metadata")}
    return {"submission_id": name, **same, **need.of_driver()}


def _need_of(info: Mapping[str, Any]) -> _Need:
    """What a job that Ray has asked for; nothing, if Ray has lost what we told it."""
    told = (info.get("metadata") or {}).get(_NEED)
    return msgspec.json.decode(told, type=_Need) if told else _Need(nodes=0, cores=0)


def quoted_program(path: str) -> str:
    """A program's name or path as a shell takes it; ~ is the home folder there. Pure."""
    home, rest = ("~/", path[2:]) if path.startswith("~/") else ("", path)
    return home + shlex.quote(rest)


def describe_nodes(nodes: Nodes) -> str:
    """What a cluster has, for people, equal nodes counted together. Pure."""
    if not nodes:
        return "the cluster has no nodes now."
    seen: dict[str, int] = {}
    for node in nodes:
        cores, gpus = int(node.get("CPU", 0)), int(node.get("GPU", 0))
        words = _count(cores, "core") + (f", {_count(gpus, 'GPU')}" if gpus else "")
        words += f", {node.get('memory', 0) / 2**30:.3g} GB"
        seen[words] = seen.get(words, 0) + 1
    parts = [f"{count} with {words}" for words, count in sorted(seen.items())]
    return f"the cluster has {_count(len(nodes), 'node')}: {'; '.join(parts)}."


def _can_hold(need: _Need, nodes: Nodes) -> bool:
    """Whether enough nodes have as much, whatever runs on them now. Pure."""
    fit = [
        all(node.get(name, 0) >= value for name, value in need.bundle().items()) for node in nodes
    ]
    return sum(fit) >= need.nodes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def open_ray(folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]) -> RayEngine:
    """The engine for a Ray cluster."""
    return RayEngine(folder, options, secrets)
