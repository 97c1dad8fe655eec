"""What a Ray job of ours runs on the cluster: an agent on each of its nodes.

The text of this file travels with the job and runs on the cluster's own Python (3.8 or newer); it
needs nothing of Runyard there. It is three programs:

    driver   the job's entrypoint: has the nodes found, starts the keepers, tells how all are
    keeper   one on each node, in a Ray actor that holds the node's cores and GPUs; of a job of
             one node it is in the driver, which then is on that node
    guard    one on each node, a plain process that Ray does not know: the parent of the agent and
             of all that the agent starts. It ends them when its keeper is gone, for whatever reason

The driver's *state* is kept in the job's metadata, where one `GET /api/jobs/` shows that of every
job. A stop is the job's SIGTERM; that a job is to be killed is a *note*: an empty job with its name
and that word, KEY.kill. Both are in the same table of Ray's, which the driver reads without asking
the dashboard.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

STATE, TOKEN = "runyard_state", "runyard_token"  # keys of the metadata
_TABLE, _PREFIX = b"job", "_ray_internal_job_info_"  # where Ray keeps jobs
_LOOK_SECONDS = 0.2
_SOON_SECONDS = 3.0  # nodes that are free are had in that time; only then do we say that we wait
_WATCH_SECONDS = 5.0
_ABSENT_SECONDS = 45.0  # a driver that has not asked for so long is out of reach, or dead
_WORDS = 2000
STOP_SECONDS = 30.0  # for an agent whose keeper is gone to stop its ranks and keep what they left
_TRIES, _TRIES_SECONDS = 3, 600.0  # how often an agent may be lost in that time
_SAY_AGAIN_SECONDS = 60.0
_DEAF_SECONDS = 15.0  # for an agent to come so far that it understands a stop
_GUARD = (
    "import json; given = json.loads(open(0, 'rb', 0, closefd=False).readline()); space = {}; "
    "exec(given['text'], space); space['guard'](given['spec'], given['node'])"
)
_PR_SET_CHILD_SUBREAPER = 36


# ---- guard -----------------------------------------------------------------------------------


def guard(spec: dict[str, Any], node: int) -> None:
    """Be the guard of a node's agent, until the keeper is gone and nothing is left."""
    if os.fork():
        os._exit(0)  # Ray ends children of its workers: this must be nobody's child
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what is orphaned comes to us
    Guard(spec, node).run()


class Guard:
    """An agent and all that it started."""

    def __init__(self, spec: dict[str, Any], node: int) -> None:
        self._spec = spec
        self._node = node
        self._agent: int | None = None
        self._lost: list[float] = []  # when agents were lost
        self._words: Any = None
        self._told_bytes = 0  # how much of them the keeper knows
        self._stop_since: float | None = None
        self._is_ending = False
        self._heard = b""
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        self._wake = ours

    def run(self) -> None:
        """Start the agent, do as the keeper says, and end all when it is gone."""
        self._start()
        word = ""
        while word != "kill":
            quick = self._stop_since is not None
            ready, _, _ = select.select([0, self._wake], [], [], 0.05 if quick else _WATCH_SECONDS)
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            self._pass_stop_on()
            self._pass_words_on()
            for word in self._hear() if 0 in ready else ():
                if word == "stop":
                    self._stop_since = self._stop_since or time.monotonic()
                elif word == "gone":  # what is not on the server yet stays where it is
                    self._let_end()
                    self._kill()
                    return
                elif word == "kill":
                    break
        self._kill()
        self._say(phase="killed")
        self._tidy()

    def _hear(self) -> list[str]:
        try:
            data = os.read(0, 4096)
        except OSError:
            data = b""
        if not data:
            return ["gone"]
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [line.decode() for line in lines]

    def _say(self, **facts: object) -> None:
        with contextlib.suppress(OSError):  # the keeper is gone; that is read, too
            os.write(1, json.dumps(facts).encode() + b"\n")

    def _start(self) -> None:
        env = self._environment()
        command = [sys.executable, "-S", "-E", "-c", self._spec["boot"]]
        self._words, self._told_bytes = _words_file(), 0
        self._agent = os.posix_spawn(
            sys.executable,
            command,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, self._words.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, self._words.fileno(), 2),
            ],
            setsid=True,
        )
        self._say(phase="active", host=os.uname().nodename, words="")

    def _environment(self) -> dict[str, str]:
        """What the agent sees; it keeps from its ranks what is not for them."""
        told = dict(self._spec["environment"], RUNYARD_NODE_INDEX=str(self._node))
        if not self._spec["bundle"].get("GPU"):
            told["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides those of others only from who has some
        return dict(os.environ, **told)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent:
                self._agent = None
                self._tell_end(status)

    def _tell_end(self, status: int) -> None:
        end = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        words = self._last_words()
        if end >= 0 and end not in self._spec["lost"]:
            self._say(phase="exited", exit_code=128 - end if 128 < end < 193 else end)
            return
        if end in self._spec["hopeless"]:  # it was patient enough
            self._say(phase="gone", status=end, words=words)
            return
        recently = time.monotonic() - _TRIES_SECONDS
        self._lost = [at for at in self._lost if at > recently] + [time.monotonic()]
        if len(self._lost) < _TRIES and not self._is_ending:
            self._start()  # it takes over what its predecessor left
        else:
            self._say(phase="gone", words=words or f"its agent ended without a word ({end})")

    def _last_words(self) -> str:
        handle = self._words.fileno()
        last = max(0, os.fstat(handle).st_size - _WORDS)
        return os.pread(handle, _WORDS, last).decode("utf-8", "replace").strip()

    def _pass_words_on(self) -> None:
        """Tell what the agent has trouble with while it comes up, such as a server out of reach."""
        known = os.fstat(self._words.fileno()).st_size
        if self._agent is not None and known != self._told_bytes:
            self._told_bytes = known
            self._say(phase="active", words=self._last_words())

    def _pass_stop_on(self) -> None:
        """Tell the agent, but not before it can understand."""
        if self._stop_since is None or self._agent is None:
            return
        if (
            _catches(self._agent, signal.SIGTERM)
            or time.monotonic() - self._stop_since > _DEAF_SECONDS
        ):
            _send(self._agent, signal.SIGTERM)
            self._stop_since = None

    def _let_end(self) -> None:
        """Have the agent end by itself, for a while."""
        self._is_ending = True
        if self._agent is not None:
            _send(self._agent, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while self._agent is not None and time.monotonic() < deadline:
            select.select([self._wake], [], [], 0.2)
            self._reap()

    def _kill(self) -> None:
        """End the agent and all that it started."""
        self._is_ending = True
        if self._agent is not None:
            _send(self._agent, signal.SIGKILL)  # first, or it would see its ranks fail
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            self._reap()
            left = _descendants(os.getpid())
            if not left:
                return
            for pid in left:
                _send(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _tidy(self) -> None:
        """Have the node's folder of this job removed, if that can be done now."""
        env = dict(self._environment(), RUNYARD_NODE_ACTION="end", RUNYARD_NODE_PATIENCE="1")
        command = [sys.executable, "-S", "-E", "-c", self._spec["boot"]]
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def _words_file() -> Any:
    """What an agent's words go to; in memory, because it may have to say that the disk is full."""
    with contextlib.suppress(AttributeError, OSError):  # an old C library
        return os.fdopen(os.memfd_create("words"), "w+b")
    return tempfile.TemporaryFile()


def _descendants(root: int) -> set[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stream:
                    text = stream.read()
            except OSError:
                continue
            parents[int(name)] = int(text[text.rindex(b")") + 2 :].split()[1])
    found: set[int] = set()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid in [pid for pid, its in parents.items() if its == parent and pid not in found]:
            found.add(pid)
            waiting.append(pid)
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):  # it ended meanwhile
        os.kill(pid, number)


def _catches(pid: int, number: int) -> bool:
    """True if the process has a handler for that signal."""
    try:
        with open(f"/proc/{pid}/status") as stream:
            caught = next(line for line in stream if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


# ---- keeper ----------------------------------------------------------------------------------


class Keeper:
    """Holds a node for the job: starts its guard, passes words to it, knows how its agent is."""

    def __init__(self, text: str, spec: dict[str, Any], node: int) -> None:
        self._changed = threading.Condition()
        self._version = 0
        self._state: dict[str, Any] = {"phase": "starting"}
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        # Not by its command line or environment: others can read those.
        self.tell(json.dumps({"text": text, "spec": spec, "node": node}))
        self._asked_at = time.monotonic()
        threading.Thread(target=self._listen, daemon=True).start()
        if spec["nodes"] > 1:
            threading.Thread(target=self._mind_driver, daemon=True).start()

    def watch(self, seen: int, seconds: float) -> tuple[int, dict[str, Any]]:
        """The state, as soon as it is another than the one seen, or after so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen, seconds)
            self._asked_at = time.monotonic()
            return self._version, self._state

    def tell(self, word: str) -> None:
        """Pass a word on to the guard: stop or kill."""
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(word.encode() + b"\n")
            self._guard.stdin.flush()
        except (OSError, ValueError):
            pass  # it is gone, which is heard where it speaks

    def _mind_driver(self) -> None:
        """Let the guard end all on a node that is cut off, which Ray itself may leave for long."""
        while time.monotonic() - self._asked_at < _ABSENT_SECONDS:
            time.sleep(1.0)
        assert self._guard.stdin is not None
        self._guard.stdin.close()

    def _listen(self) -> None:
        assert self._guard.stdout is not None
        for line in self._guard.stdout:
            self._take(json.loads(line))
        if self._state["phase"] not in ("exited", "gone", "killed"):
            self._take({"phase": "gone", "words": "the process that guards its agent was ended"})
        self._guard.wait()

    def _take(self, state: dict[str, Any]) -> None:
        with self._changed:
            self._state = dict(self._state, **state)
            self._version += 1
            self._changed.notify_all()


# ---- driver ----------------------------------------------------------------------------------


class Near:
    """The one node of a job, which is the node that the driver is on."""

    def __init__(self, text: str, spec: dict[str, Any]) -> None:
        self._keeper = Keeper(text, spec, 0)
        self._seen = 0
        self.states: list[dict[str, Any]] = [{"phase": "starting"}]

    def wait(self, seconds: float) -> None:
        """Until the state is another, or so long."""
        self._seen, self.states[0] = self._keeper.watch(self._seen, seconds)

    def tell(self, node: int, word: str) -> None:
        """Pass a word on to the node's keeper."""
        self._keeper.tell(word)


class Far:
    """Nodes of the cluster, each with a keeper in an actor."""

    def __init__(self, ray: Any, group: Any, text: str, spec: dict[str, Any]) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._ray = ray
        table = importlib.import_module("ray.util.placement_group").placement_group_table
        self._hosts: dict[int, str] = table(group).get("bundles_to_node_id") or {}
        self._keepers = []
        for node in range(spec["nodes"]):
            where = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=node
            )
            options = {
                "num_cpus": spec["bundle"].get("CPU", 0),
                "num_gpus": spec["bundle"].get("GPU", 0),
                "scheduling_strategy": where,
                "max_concurrency": 4,  # one watches, others pass words on
            }
            if "memory" in spec["bundle"]:
                options["memory"] = spec["bundle"]["memory"]
            self._keepers.append(ray.remote(Keeper).options(**options).remote(text, spec, node))
        self._seen = [0] * spec["nodes"]
        self.states: list[dict[str, Any]] = [{"phase": "starting"} for _ in self._keepers]
        self._asked = {self._watch(node): node for node in range(spec["nodes"])}

    def wait(self, seconds: float) -> None:
        """Until the state of a node is another, or so long."""
        ready, _ = self._ray.wait(list(self._asked), timeout=seconds)
        for answer in ready:
            node = self._asked.pop(answer)
            try:
                self._seen[node], self.states[node] = self._ray.get(answer)
            except self._ray.exceptions.RayError as error:
                text = str(error).strip()
                lost = {"phase": "lost", "words": text[-_WORDS:], "is_there": self._is_there(node)}
                self.states[node] = dict(self.states[node], **lost)
            else:
                self._asked[self._watch(node)] = node

    def tell(self, node: int, word: str) -> None:
        """Pass a word on to a node's keeper."""
        if self.states[node]["phase"] != "lost":
            self._keepers[node].tell.remote(word)

    def _is_there(self, node: int) -> bool:
        """True if the node itself lives, and so its guard, which is ending all on it."""
        living = {one["NodeID"] for one in self._ray.nodes() if one["Alive"]}
        return self._hosts.get(node) in living

    def _watch(self, node: int) -> Any:
        return self._keepers[node].watch.remote(self._seen[node], _WATCH_SECONDS)


class Book:
    """Where the driver's state is kept and its notes are found, in a thread of its own."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._state: dict[str, Any] = {}
        self._is_over = False
        self._wake = threading.Event()
        self.notes: frozenset[str] = frozenset()
        self.has_looked = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def write(self, **state: Any) -> None:
        """Keep this state, soon. It is printed as well, for people and for other versions."""
        if state != self._state:
            self._state = state
            _print(f"{STATE} {json.dumps(state)}")
            self._wake.set()

    def close(self) -> None:
        """Return when the last state is kept."""
        self._is_over = True
        self._wake.set()
        self._thread.join(30.0)

    def _work(self) -> None:
        address = os.environ["RAY_ADDRESS"]
        table = importlib.import_module("ray._raylet").GcsClient(address=address)
        own = (_PREFIX + self._key).encode()
        written = None
        said_at = -_SAY_AGAIN_SECONDS
        while True:
            self._wake.clear()
            is_over, state = self._is_over, self._state
            try:
                if state and state != written:
                    job = json.loads(table.internal_kv_get(own, _TABLE))
                    job["metadata"] = dict(job.get("metadata") or {}, **{STATE: json.dumps(state)})
                    job["metadata"].pop(TOKEN, None)  # we have it, and others can read it here
                    if "runtime_env_json" in job:  # our program's text, in each list of all jobs
                        job["runtime_env_json"] = "{}"
                    table.internal_kv_put(own, json.dumps(job).encode(), 1, _TABLE)
                    written = state
                found = table.internal_kv_keys(own + b".", _TABLE)
                self.notes = frozenset(bytes(one)[len(own) + 1 :].decode() for one in found)
                self.has_looked.set()
            except Exception as error:  # noqa: BLE001 - Ray raises all kinds; it may be back soon
                if time.monotonic() - said_at >= _SAY_AGAIN_SECONDS:
                    said_at = time.monotonic()
                    _print(f"Ray's table cannot be reached: {error}")
                is_over = False
                time.sleep(1.0)
            if is_over:
                return
            self._wake.wait(_LOOK_SECONDS)


class Driver:
    """One job: places, agents, and what becomes of them."""

    def __init__(self, text: str, spec: dict[str, Any]) -> None:
        self._text, self._spec = text, spec
        self._stop_asked = False
        self._catch_signals()  # before there is anything to stop
        self._told: set[str] = set()
        self._book = Book(spec["key"])

    def run(self) -> int:
        """Do the job; the exit code of the process."""
        try:
            places = self._open()
            code = self._watch(places) if places is not None else 1
        finally:
            self._book.close()
        return code

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)

    def _on_stop(self, *_: object) -> None:
        self._stop_asked = True

    def _open(self) -> Near | Far | None:
        """The places of the nodes; None if the job was ended while it waited for them."""
        if self._spec["nodes"] == 1:
            if abs(time.time() - self._spec["submitted"]) > _SOON_SECONDS:
                # It may have been given up while Ray had no room for it: then it must not begin.
                self._book.has_looked.wait(_WATCH_SECONDS)
                if "kill" in self._book.notes:
                    self._book.write(phase="killed")
                    return None
            return Near(self._text, self._spec)
        ray: Any = importlib.import_module("ray")
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        self._catch_signals()  # Ray has put its own in the place of ours
        make = importlib.import_module("ray.util.placement_group").placement_group
        bundles = [dict(self._spec["bundle"]) for _ in range(self._spec["nodes"])]
        group = make(bundles, strategy="STRICT_SPREAD")
        begun = time.monotonic()
        while not group.wait(_LOOK_SECONDS):
            if "kill" in self._book.notes:
                self._book.write(phase="killed")
                return None
            if time.monotonic() - begun > _SOON_SECONDS:
                self._book.write(phase="waits")
                if self._stop_asked:
                    self._book.write(
                        phase="exited", exit_code=-signal.SIGTERM, words="it had no nodes yet"
                    )
                    return None
        return Far(ray, group, self._text, self._spec)

    def _watch(self, places: Near | Far) -> int:
        cause: dict[str, Any] = {}  # why it all ends; what follows from that is no news
        while True:
            places.wait(_LOOK_SECONDS)
            state = cause or combined(places.states)
            if state["phase"] in ("lost", "gone"):
                cause = state
            if state["phase"] != "starting":
                self._book.write(**state)
            if state["phase"] == "exited":
                return 1 if state["exit_code"] else 0
            if cause or "kill" in self._book.notes:
                self._tell(places, "kill")  # of one that is lost the others are of no use
                if all(one["phase"] not in ("starting", "active") for one in places.states):
                    return 1
            elif self._stop_asked:
                self._tell(places, "stop")

    def _tell(self, places: Near | Far, word: str) -> None:
        """Pass a word on to all keepers, once."""
        if word not in self._told:
            self._told.add(word)
            for node in range(self._spec["nodes"]):
                places.tell(node, word)


def combined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a job from those of its nodes. Pure."""
    phases = [state["phase"] for state in states]
    state: dict[str, Any] = {"hosts": [state.get("host", "") for state in states]}
    for phase in ("lost", "gone"):
        if phase in phases:
            node = phases.index(phase)
            state.update(phase=phase, node=node, words=states[node]["words"])
            further = ("status", "is_there")
            state.update({name: states[node][name] for name in further if name in states[node]})
            return state
    for phase in ("starting", "active", "killed"):
        if phase in phases:
            state["phase"] = phase
            for node, one in enumerate(states):
                if one["phase"] == phase == "active" and one.get("words"):
                    state.update(node=node, words=one["words"])
            return state
    bad = next((state for state in states if state["exit_code"]), states[0])
    return dict(state, phase="exited", exit_code=bad["exit_code"])


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(text: str) -> int:
    """The job's entrypoint; `text` is that of this file."""
    spec = json.loads(os.environ["RUNYARD_RAY_SPEC"])
    told = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    spec["environment"]["RUNYARD_NODE_TOKEN"] = told["metadata"].pop(TOKEN)
    os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps(told)  # or Ray would keep that, too
    return Driver(text, spec).run()
