"""Runs jobs on a Ray cluster, through its Jobs API over HTTP alone.

Nothing of Ray is imported here, so server and cluster may be of any two versions. What runs on the
cluster is the text of `ray_driver`, see there; agents fetch all else from the server.

Options: `address` (that of the dashboard), `autoscale` ("true": Ray adds nodes when they are
needed), `python` (what runs the driver; "python"), `place_seconds` (how long nodes are waited
for), `url` (the server as nodes reach it, where that differs), `node_folder`. Secret: `token`.
"""

import base64
import json
import logging
import re
import threading
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from runyard.domain.errors import Denied, EngineFailed, Invalid, Unavailable, Unsupported
from runyard.engines.base import (
    Capabilities,
    JobId,
    JobPhase,
    JobStatus,
    NodeGroup,
    NodeResources,
)
from runyard.engines.ray_driver import STATE
from runyard_runtime import job_folder, remote

log = logging.getLogger(__name__)

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_OWNER = "runyard_owner"  # the key of the metadata that says whose job it is
_NAME = "runyard_job"
_NEED = "runyard_need"
_ENTRYPOINT = (
    " -c 'import os, sys, zlib, base64; "
    'text = zlib.decompress(base64.b64decode(os.environ["RUNYARD_RAY_DRIVER"])).decode(); '
    "exec(text); sys.exit(main(text))'"
)
_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 30.0
_PLACE_SECONDS = 600.0  # Ray gives up by itself after 900
_STOP_SECONDS = 3600  # what Ray leaves a job that was stopped; ours ends before, or is killed
_KILL_SECONDS, _LET_GO_SECONDS = 20.0, 5.0
_LOOK_SECONDS = 0.05
_OVER = ("SUCCEEDED", "FAILED", "STOPPED")
_TAIL = 2000


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


class RayEngine:
    """Starts agents on the nodes of a Ray cluster, one Ray job for each group."""

    name = "ray"

    def __init__(
        self, folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._options = options
        self._api = _Api(options.get("address", ""), secrets.get("token", ""))
        self._stopped: set[JobId] = set()  # before they began
        self._lock = threading.Lock()
        self._known_owner = ""
        self.capabilities = Capabilities(
            multi_node=True, gpus=True, autoscale=options.get("autoscale") == "true"
        )

    def check(self) -> None:
        """Ask the cluster whether it takes jobs; raises what is wrong."""
        self._api.jobs()

    def start(self, group: NodeGroup) -> JobId:
        """Submit the group's job, or find it."""
        if not _KEY.fullmatch(group.key):
            raise Invalid(
                f"'{group.key}' cannot be the key of a job.",
                why="It becomes a name and a folder: letters, digits, '.', '_' and '-' only.",
            )
        need = plan_need(group.nodes, group.resources)
        job = JobId(group.key)
        if self._api.job(self._submission(job)) is not None:
            return job
        if not self.capabilities.autoscale:
            nodes = self._api.nodes()
            if not _can_hold(need, nodes):
                raise Unsupported(
                    f"The Ray cluster at {self._api.address} cannot hold this: {need.words()}.",
                    why=describe_nodes(nodes),
                    fix="Ask for less, or attach the cluster with autoscale if it adds nodes "
                    "when they are needed.",
                )
        self._api.submit(self._request(group, need))
        return job

    def poll(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobStatus]:
        """The status of each, from the one list of all jobs."""
        listed = self._api.jobs() if jobs else {}
        return {job: self._status(job, listed) for job in jobs}

    def stop(self, job: JobId) -> None:
        """Have the driver told to end: it tells the agents."""
        name = self._submission(job)
        info = self._api.job(name)
        if info is None or info["status"] in _OVER:
            return
        if info["status"] == "PENDING":
            with self._lock:
                self._stopped.add(job)
        self._api.stop(name)

    def kill(self, job: JobId) -> None:
        """Have the driver told to end all at once, and wait until it did."""
        name = self._submission(job)
        info = self._api.job(name)
        if info is None or info["status"] in _OVER:
            return
        owner = {_OWNER: self._owner(), _NAME: ""}
        self._api.submit({"submission_id": name + ".kill", "entrypoint": ":", "metadata": owner})
        begun = time.monotonic()
        while info is not None and info["status"] not in _OVER:
            is_pending = info["status"] == "PENDING"
            if is_pending:
                self._api.stop(name)  # nothing of ours hears; Ray ends it as soon as it has begun
            if time.monotonic() - begun >= (_LET_GO_SECONDS if is_pending else _KILL_SECONDS):
                log.warning("job %s: Ray still has it as %s", job, info["status"])
                return
            time.sleep(_LOOK_SECONDS)
            info = self._api.job(name)

    def jobs(self) -> Sequence[JobId]:
        """Every job in Ray's list that was started from this folder."""
        owner = self._owner()
        told = [info.get("metadata") or {} for info in self._api.jobs().values()]
        return [JobId(one[_NAME]) for one in told if one.get(_OWNER) == owner and one.get(_NAME)]

    def forget(self, job: JobId) -> None:
        """Remove the job from Ray's list."""
        name = self._submission(job)
        deadline = time.monotonic() + _KILL_SECONDS
        while (info := self._api.job(name)) is not None:
            # Ray refuses to forget what has not ended in its own eyes, and ours end a bit earlier.
            if info["status"] in _OVER:
                self._api.delete(name)
            elif info["status"] == "PENDING" or time.monotonic() >= deadline:
                log.warning("job %s: Ray keeps it, because it is %s", job, info["status"])
                return
            else:
                time.sleep(_LOOK_SECONDS)
        with self._lock:
            self._stopped.discard(job)
        note = self._api.job(name + ".kill")
        if note is not None and note["status"] in _OVER:
            self._api.delete(name + ".kill")

    def _status(self, job: JobId, listed: Mapping[str, Any]) -> JobStatus:
        name = self._submission(job)
        info = listed.get(name)
        if info is None:
            detail = "Ray does not know this job; it may have been started anew"
            return JobStatus(phase=JobPhase.GONE, detail=detail, node_lost=True)
        told = info.get("metadata") or {}
        state = json.loads(told.get(STATE) or "null")
        if state is None and info["status"] == "RUNNING":
            state = self._api.printed_state(name)
        if state is None:
            with self._lock:
                was_stopped = job in self._stopped
            if name + ".kill" in listed:
                return JobStatus(phase=JobPhase.GONE, detail="it was killed", node_lost=True)
            if info["status"] == "STOPPED" or was_stopped:
                detail = "it was stopped before it had a node"
                return JobStatus(phase=JobPhase.EXITED, exit_code=-15, detail=detail)
        waits = info["status"] == "PENDING" or (state or {}).get("phase") == "waits"
        if waits and info["status"] not in _OVER:
            need = msgspec.json.decode(told.get(_NEED) or "{}", type=_Need)
            return self._waiting(need, time.time() - info["start_time"] / 1000)
        return read_status(info["status"], state, str(info.get("message") or ""))

    def _waiting(self, need: _Need, seconds: float) -> JobStatus:
        """The status of a job that has no nodes yet, which is overdue after a while."""
        if seconds < 2 * _CONNECT_SECONDS:
            return JobStatus(phase=JobPhase.PENDING, detail="Ray starts it")
        nodes = self._api.nodes()
        what = "free nodes" if _can_hold(need, nodes) else "Ray to add nodes"
        words = f"needs {need.words()}; {describe_nodes(nodes)}"
        limit = float(self._options.get("place_seconds") or _PLACE_SECONDS)
        if seconds < limit:
            return JobStatus(phase=JobPhase.PENDING, detail=f"waits for {what}: {words}")
        detail = f"it had no nodes after {limit:g} s of waiting for {what}: {words}"
        return JobStatus(phase=JobPhase.EXITED, detail=detail)

    def _request(self, group: NodeGroup, need: _Need) -> dict[str, object]:
        """The job as Ray's API takes it. What is secret is in its environment only."""
        name = self._submission(JobId(group.key))
        plan = json.loads(group.plan)
        told = remote.variables(group.key, plan)
        if url := self._options.get("url"):
            told[remote.PREFIX + "URL"] = url
        if folder := self._options.get("node_folder"):
            told[remote.PREFIX + "FOLDER"] = folder
        spec = {
            "key": name,
            "nodes": need.nodes,
            "bundle": need.bundle(),
            "boot": remote.boot_text(),
            "lost": sorted(remote.WORDS),
            "environment": told,
        }
        driver = Path(__file__).with_name("ray_driver.py").read_bytes()
        variables = {
            "RUNYARD_RAY_SPEC": json.dumps(spec),
            "RUNYARD_RAY_DRIVER": base64.b64encode(zlib.compress(driver)).decode(),
            "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS),
        }
        # The driver of one node is on that node; of several, where Ray has its head.
        asked = need.bundle() if need.nodes == 1 else {}
        return {
            "submission_id": name,
            "entrypoint": self._options.get("python", "python") + _ENTRYPOINT,
            "runtime_env": {"env_vars": variables},
            "metadata": {
                _OWNER: self._owner(),
                _NAME: group.key,
                _NEED: msgspec.json.encode(need).decode(),
                "run": str(plan.get("run_id")),
            },
            "entrypoint_num_cpus": asked.get("CPU"),
            "entrypoint_num_gpus": asked.get("GPU"),
            "entrypoint_memory": asked.get("memory"),
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


def plan_need(nodes: int, resources: NodeResources | None) -> _Need:
    """What a group asks of the cluster. Pure."""
    asked = resources or NodeResources()
    return _Need(
        nodes=nodes,
        cores=asked.cores or 1,
        gpus=asked.gpus or 0,
        memory=int((asked.memory_gb or 0) * 2**30),
    )


def read_status(status: str, state: Mapping[str, Any] | None, message: str) -> JobStatus:
    """A job's status from Ray's word for it and what its driver said last. Pure."""
    phase = state["phase"] if state else ""
    hosts = tuple(state.get("hosts", ())) if state else ()
    if phase == "exited" and state:
        words = str(state.get("words", ""))
        code = int(state["exit_code"])
        return JobStatus(phase=JobPhase.EXITED, exit_code=code, detail=words, hosts=hosts)
    if phase in ("lost", "gone") and state:
        node = int(state["node"])
        where = f" ({hosts[node]})" if node < len(hosts) and hosts[node] else ""
        how = "Ray lost it" if phase == "lost" else "its agent cannot be kept up"
        detail = f"node {node}{where}: {how}: {state['words']}"
        return JobStatus(phase=JobPhase.GONE, detail=detail, hosts=hosts, node_lost=True)
    if status in _OVER:
        detail = "it was killed" if phase == "killed" else message[-_TAIL:]
        return JobStatus(phase=JobPhase.GONE, detail=detail, hosts=hosts, node_lost=True)
    if phase == "active":
        return JobStatus(phase=JobPhase.ACTIVE, hosts=hosts)
    return JobStatus(phase=JobPhase.PENDING, detail="its agents are starting")


def describe_nodes(nodes: Sequence[Mapping[str, float]]) -> str:
    """What a cluster has, for people, equal nodes counted together. Pure."""
    if not nodes:
        return "The cluster has no nodes now."
    seen: dict[str, int] = {}
    for node in nodes:
        cores, gpus = int(node.get("CPU", 0)), int(node.get("GPU", 0))
        words = _count(cores, "core") + (f", {_count(gpus, 'GPU')}" if gpus else "")
        words += f", {node.get('memory', 0) / 2**30:.3g} GB"
        seen[words] = seen.get(words, 0) + 1
    parts = [f"{count} with {words}" for words, count in sorted(seen.items())]
    return f"the cluster has {_count(len(nodes), 'node')}: {'; '.join(parts)}."


def _can_hold(need: _Need, nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether enough nodes have as much, whatever runs on them now. Pure."""
    fit = [
        all(node.get(name, 0) >= value for name, value in need.bundle().items()) for node in nodes
    ]
    return sum(fit) >= need.nodes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


class _Api:
    """Ray's HTTP API: jobs and nodes."""

    def __init__(self, address: str, token: str) -> None:
        self.address = _web_address(address)
        self._token = token
        self._pool: Any = None

    def jobs(self) -> dict[str, Any]:
        """All jobs that were submitted, by their ids."""
        listed = self._call("GET", "/api/jobs/")
        if not isinstance(listed, list):
            raise self._not_ray("it answers with something that is no list of jobs")
        return {one["submission_id"]: one for one in listed if one.get("submission_id")}

    def job(self, name: str) -> Any:
        """What Ray knows of a job; None: nothing."""
        return self._call("GET", f"/api/jobs/{name}", missing=True)

    def submit(self, request: Mapping[str, object]) -> None:
        """Submit a job, unless one of that id is there."""
        self._call("POST", "/api/jobs/", body=request, accept="already exists")

    def stop(self, name: str) -> None:
        """Have a job's process told to end."""
        self._call("POST", f"/api/jobs/{name}/stop", missing=True)

    def delete(self, name: str) -> None:
        """Forget a job that is over."""
        self._call("DELETE", f"/api/jobs/{name}", missing=True)

    def printed_state(self, name: str) -> Any:
        """The last state that a driver printed: for a Ray whose table it could not write to."""
        answer = self._call("GET", f"/api/jobs/{name}/logs", missing=True) or {}
        lines = str(answer.get("logs") or "").splitlines()
        mark = STATE + " "
        said = [line[len(mark) :] for line in lines if line.startswith(mark)]
        return json.loads(said[-1]) if said else None

    def nodes(self) -> list[Mapping[str, float]]:
        """What each living node has in all."""
        answer = self._call("GET", "/api/v0/nodes?limit=10000&detail=false")
        found = answer["data"]["result"]["result"]
        return [one.get("resources_total") or {} for one in found if one["state"] == "ALIVE"]

    def _call(
        self,
        verb: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        missing: bool = False,
        accept: str = "",
    ) -> Any:
        import urllib3

        if self._pool is None:
            timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_ANSWER_SECONDS)
            self._pool = urllib3.PoolManager(timeout=timeout, retries=False, maxsize=8)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        given = {"json": body} if body is not None else {}
        try:
            answer = self._pool.request(verb, self.address + path, headers=headers, **given)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(
                f"No Ray answers at {self.address}.",
                why=str(error),
                fix="The address is that of Ray's dashboard, usually http://HEAD:8265, and it "
                "must be reached from the server.",
            ) from error
        text = answer.data.decode("utf-8", "replace")
        if answer.status == 404 and missing:
            return None
        if answer.status in (401, 403):
            raise Denied(
                f"The Ray cluster at {self.address} refuses the token.",
                why=text[:_TAIL] or f"It answers {answer.status}.",
                fix="Attach it with the token that `ray get-auth-token` prints on the cluster.",
            )
        if answer.status >= 400:
            if accept and accept in text:
                return None
            if answer.status == 404:
                raise self._not_ray(f"there is nothing at {path}")
            raise EngineFailed(
                f"The Ray cluster at {self.address} failed to do {verb} {path}.",
                why=text.strip()[-_TAIL:] or f"It answers {answer.status}.",
            )
        try:
            return json.loads(text)
        except ValueError:
            raise self._not_ray("it answers with something that is no JSON") from None

    def _not_ray(self, why: str) -> EngineFailed:
        return EngineFailed(
            f"What answers at {self.address} is not Ray's Jobs API.",
            why=why,
            fix="The address is that of Ray's dashboard, usually http://HEAD:8265.",
        )


def _web_address(address: str) -> str:
    """The address with a scheme and without an end, or Invalid."""
    text = address.strip().rstrip("/")
    if "://" not in text:
        text = "http://" + text
    if not re.fullmatch(r"https?://[^/\s:]+(:\d+)?(/.*)?", text):
        raise Invalid(
            f"'{address}' is not an address of a Ray cluster.",
            fix="Give that of its dashboard, such as http://ray-head:8265.",
        )
    return text


def open_ray(folder: Path, options: Mapping[str, str], secrets: Mapping[str, str]) -> RayEngine:
    """The engine for a Ray cluster."""
    return RayEngine(folder, options, secrets)
