"""A real Ray cluster on this machine, for tests: a head and further nodes.

with ray_cluster(nodes=3) as cluster:
    engine = RayEngine(folder, {"address": cluster.address}, {"token": cluster.token})

with ray_cluster(nodes=3, apart=True) as cluster:       # each node a host of its own
    cluster.cut(2)

Ray is installed once, by uv, into an environment beside uv's cache. Any number of clusters run side
by side, each with its own folder, ports and token. When it is left, nothing of it is: its processes
carry a mark by which they are found. Of a test that was killed, the next cluster to be started ends
what is left. Nodes that are hosts of their own have a network namespace, an
address and a hostname each, which needs root; `why_not_apart` says what is missing.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uv

from runyard_runtime import job_folder, ports, processes, wire

log = logging.getLogger(__name__)

REQUIREMENT = "ray[default]==2.60.0"
_UP_SECONDS = 120.0  # a busy machine
_TRIES = 2
_DOWN_SECONDS = 5.0
_STORE_BYTES = 80 * 2**20  # the least that Ray takes
_PATIENT = {
    # A machine that runs all tests at once is slow to answer, which is no reason to be lost.
    "RAY_health_check_timeout_ms": "60000",
    "RAY_raylet_start_wait_time_s": "180",
}
# By its name: of the type that stands for it Ray's wheel lacks the file of defaults.
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_HEAD_ID = "f" * 51 + "00000"  # by which the provider of nodes knows the head
_GROWING = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
}
_COMMANDS = (  # of a provider of real machines
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"),
    *("rsync_exclude", "rsync_filter"),
)
_WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "10000",  # a node that comes up is slow to answer
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # a node that is cut off ends by itself
    "RAY_raylet_start_wait_time_s": "180",
}


_PREFIX, _USERS = "ry-ray-", "users.json"
_HOLDER = "host-of-"  # what the mark of a process begins with that holds a host

User = tuple[int, int]  # a process that uses a cluster: its number, and when it started
Growth = tuple[int, int]  # the cores of a node that Ray may add, and how many it may


class RayCluster:
    """A running cluster: `address` is that of its dashboard, node 0 its head."""

    def __init__(
        self,
        folder: Path,
        *,
        cores: int,
        apart: bool,
        gpus: int = 0,
        growth: Growth | None = None,
        pending_seconds: int = 900,
        python: Path = Path(sys.executable),
    ) -> None:
        self.token = secrets.token_hex(24)
        self.mark = _mark(folder)
        self._nodes = 0
        self._cut: set[int] = set()  # hosts without a link
        self.folder = folder
        self._cores = cores
        self._gpus = gpus  # that Ray is told of: it does not look for them
        self._apart = apart
        self._growth = growth
        self._pending_seconds = pending_seconds  # Ray gives up a job that has no node for so long
        self._ports = ports.Reservation().take("127.0.0.1", 3)
        self._net = _Net(folder) if apart else None
        self._bin = ray_environment(python) / "bin"
        head = "127.0.0.1" if self._net is None else self._net.address(0)
        self.address = f"http://{head}:{self._ports.ports[1]}"

    @property
    def gateway(self) -> str:
        """The address of this machine, as the nodes see it."""
        return "127.0.0.1" if self._net is None else self._net.gateway

    def start(self, nodes: int) -> None:
        """Start the head and the other nodes, and wait until all are there; RuntimeError if not."""
        gcs, web, client = self._ports.ports
        if self._net is not None:
            self._net.open()
        where = "127.0.0.1" if self._net is None else self._net.address(0)
        self._add(
            0,
            *("--head", f"--port={gcs}", f"--ray-client-server-port={client}"),
            *("--include-dashboard=true", f"--dashboard-port={web}", f"--dashboard-host={where}"),
            f"--temp-dir={self.folder / 'ray'}",
            *(self._growing(gcs) if self._growth is not None else ()),
        )
        self._wait(1)
        for number in range(1, nodes):
            self.add_node()
            self._wait(number + 1)

    def _growing(self, gcs: int) -> tuple[str, ...]:
        """What has the head start Ray's autoscaler, with a provider of nodes on this machine."""
        assert self._growth is not None
        cores, most = self._growth
        head = {"resources": {"CPU": self._cores}, "node_config": {}, "max_workers": 0}
        more = {"CPU": cores, "object_store_memory": _STORE_BYTES}
        config = {
            "cluster_name": "growing",
            "max_workers": most,
            "provider": {
                **{"type": "external", "module": _PROVIDER, "gcs_address": f"127.0.0.1:{gcs}"},
                **{"head_node_id": _HEAD_ID, "launch_multiple": True},
                **{"disable_node_updaters": True, "disable_launch_config_check": True},
            },
            "available_node_types": {
                "ray.head.default": head,
                "more": {"resources": more, "node_config": {}, "max_workers": most},
            },
            "head_node_type": "ray.head.default",
            "upscaling_speed": 10.0,
            "idle_timeout_minutes": 0.05,
            **{name: {} for name in ("auth", "docker", "file_mounts")},
            **{name: [] for name in _COMMANDS},
        }
        path = self.folder / "growing.yaml"
        path.write_text(json.dumps(config))
        return (f"--autoscaling-config={path}", "--node-ip-address=127.0.0.1")

    def nodes(self) -> int:
        """How many nodes it has now."""
        return self._states().count("ALIVE")

    def add_node(self, cores: int | None = None) -> None:
        """Start another node, of another size if that is said."""
        self._join(self._nodes, cores)

    def cut(self, node: int) -> None:
        """Take the link of a host away."""
        assert self._net is not None
        self._net.cut(node)
        self._cut.add(node)

    def mend(self) -> None:
        """Give the hosts whose links were cut their links back, and have them be nodes again."""
        assert self._net is not None
        for number in sorted(self._cut):
            processes.end_processes(partial(self._net.pids, number), 0)
            self._net.mend(number)
            self._join(number)
            self._cut.discard(number)
            self._wait(self._nodes - len(self._cut), may_have_lost=True)

    def restart(self) -> None:
        """End it and start it anew, at the same address: it knows nothing of what it did before."""
        nodes, self._nodes = self._nodes, 0
        processes.end_processes(lambda: processes.job_processes(self.mark), _DOWN_SECONDS)
        self.start(nodes)

    def stop(self) -> None:
        """End all that was started, and remove what it left."""
        processes.end_processes(lambda: processes.job_processes(self.mark), _DOWN_SECONDS)
        if self._net is not None:
            self._net.close()
        self.release_ports()
        shutil.rmtree(self.folder, ignore_errors=True)

    def release_ports(self) -> None:
        """Let go of what kept others off the ports."""
        self._ports.release()

    def pids(self, node: int) -> list[int]:
        """The processes on a host of its own, without the one that holds it."""
        assert self._net is not None
        return self._net.pids(node)

    def _join(self, number: int, cores: int | None = None) -> None:
        known = self._get("/api/v0/nodes")["data"]["result"]["result"]
        head = next(node["node_ip"] for node in known if node["is_head_node"])
        self._add(number, f"--address={head}:{self._ports.ports[0]}", cores=cores)

    def _add(self, number: int, *arguments: str, cores: int | None = None) -> None:
        command = [
            *(str(self._bin / "ray"), "start", "--block", "--disable-usage-stats"),
            *(f"--num-cpus={cores or self._cores}", f"--object-store-memory={_STORE_BYTES}"),
            f"--num-gpus={self._gpus}",
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
            *arguments,
        ]
        if self._net is not None:
            address = self._net.address(number)
            if number == self._nodes:
                self._net.add(number)
            command = [*self._net.enter(number), *command, f"--node-ip-address={address}"]
        tuned = _WATCHFUL if self._apart else _PATIENT
        environment = {
            **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
            **tuned,
            "PATH": f"{self._bin}:{os.environ.get('PATH', os.defpath)}",
            wire.JOB_KEY: self.mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_TMPDIR": str(self.folder / "ray"),
            "RAY_JOB_START_TIMEOUT_SECONDS": str(self._pending_seconds),
            **(_GROWING if self._growth is not None and number == 0 else {}),
        }
        with (self.folder / f"node-{number}.log").open("wb") as log:
            # Nobody's child: of those who share a cluster, the last one stops it.
            subprocess.run(
                ["setsid", "--fork", *command],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
        self._nodes = max(self._nodes, number + 1)

    def _states(self) -> list[str]:
        """How its nodes are, in Ray's words."""
        try:
            found = self._get("/api/v0/nodes")["data"]["result"]["result"]
        except (OSError, ValueError, KeyError):
            return []
        return [node["state"] for node in found]

    def _get(self, path: str) -> Any:
        bearer = {"Authorization": f"Bearer {self.token}"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(
            urllib.request.Request(self.address + path, headers=bearer), timeout=10
        ) as answer:
            return json.loads(answer.read())

    def _wait(self, nodes: int, *, may_have_lost: bool = False) -> None:
        """Until so many nodes are there; RuntimeError as soon as it is seen that they are not."""
        deadline = time.monotonic() + _UP_SECONDS
        while (states := self._states()).count("ALIVE") < nodes:
            is_lost = "DEAD" in states and not may_have_lost
            is_late = time.monotonic() >= deadline
            if is_lost or is_late or not processes.job_processes(self.mark):
                logs = sorted(self.folder.glob("node-*.log"))
                words = "\n".join(path.read_text(errors="replace")[-2000:] for path in logs)
                why = (
                    "it gave a node up" if is_lost else "it is too slow" if is_late else "it ended"
                )
                raise RuntimeError(f"Ray does not come up, {why}: {words}")
            time.sleep(0.2)


class _Net:
    """Hosts of their own: network namespaces with a bridge of this machine among them."""

    def __init__(self, folder: Path) -> None:
        self._bridge = _bridge(folder)
        self._mark = _HOLDER + _mark(folder)
        low = secrets.randbelow(250)
        self._prefix = f"10.{200 + secrets.randbelow(50)}.{low}."
        self._holders: list[subprocess.Popen[bytes]] = []
        self.gateway = self._prefix + "1"

    def address(self, number: int) -> str:
        """The address of a host."""
        return f"{self._prefix}{number + 10}"

    def open(self) -> None:
        """Make the bridge."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def add(self, number: int) -> None:
        """Make a host."""
        hosts = "".join(f"{self.address(one)} ray-{one}\\n" for one in range(20))
        script = (
            f"hostname ray-{number} && ip link set lo up && d=$(mktemp) && "
            f"printf '127.0.0.1 localhost\\n{self.gateway} gateway\\n{hosts}' > $d && "
            "mount --bind $d /etc/hosts && rm -f $d; echo up; exec sleep infinity"
        )
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script],
            env={**os.environ, wire.JOB_KEY: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n", "a namespace cannot be made"
        pid, ours, theirs = str(holder.pid), self._link(number), f"{self._link(number)}p"
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        _ip("link", "set", ours, "master", self._bridge, "up")
        _ip("link", "set", theirs, "netns", pid)
        inside = ("nsenter", "-t", pid, "-n", "ip")
        for command in (
            ("link", "set", theirs, "name", "eth0"),
            ("addr", "add", f"{self.address(number)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", self.gateway),
        ):
            subprocess.run([*inside, *command], check=True)

    def enter(self, number: int) -> list[str]:
        """What a command begins with to run on that host."""
        return ["nsenter", "-t", str(self._holders[number].pid), "-n", "-u", "-m"]

    def cut(self, number: int) -> None:
        """Take a host's link away."""
        _ip("link", "set", self._link(number), "down")

    def mend(self, number: int) -> None:
        """Give a host its link back."""
        _ip("link", "set", self._link(number), "up")

    def pids(self, number: int) -> list[int]:
        """The processes of a host, without the one that holds it."""
        holder = self._holders[number].pid
        own = os.readlink(f"/proc/{holder}/ns/net")
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != holder:
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/ns/net") == own:
                        found.append(int(name))
        return found

    def close(self) -> None:
        """Remove hosts and bridge, and whatever is left on the hosts."""
        for number, holder in enumerate(self._holders):
            processes.end_processes(partial(self.pids, number), 0)
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        for name in [*map(self._link, range(len(self._holders))), self._bridge]:
            with contextlib.suppress(subprocess.CalledProcessError):  # it went with its host
                _ip("link", "del", name)

    def _link(self, number: int) -> str:
        return f"{self._bridge}-{number}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_not_apart() -> str:
    """What keeps nodes from being hosts of their own here; empty: nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else tried.stderr.decode(errors="replace").strip()


@contextlib.contextmanager
def ray_cluster(
    *,
    nodes: int = 1,
    cores: int = 4,
    apart: bool = False,
    growth: Growth | None = None,
    pending_seconds: int = 900,
    python: Path = Path(sys.executable),
) -> Iterator[RayCluster]:
    """A cluster for as long as it is held; with `growth` Ray's own autoscaler adds nodes to it."""
    make = partial(
        RayCluster,
        cores=cores,
        apart=apart,
        growth=growth,
        pending_seconds=pending_seconds,
        python=python,
    )
    cluster = _started(nodes, make)
    try:
        yield cluster
    finally:
        cluster.stop()


def _started(nodes: int, make: Callable[[Path], RayCluster]) -> RayCluster:
    """A cluster that is up. On a machine that is too busy the first one may not come up."""
    end_abandoned()
    for attempt in range(1, _TRIES + 1):
        # A short path: sockets lie below it, whose names may have 107 characters.
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        _write_users(folder, [_this_process()])
        cluster = make(folder)
        try:
            cluster.start(nodes)
            return cluster
        except RuntimeError as error:
            cluster.stop()
            if attempt == _TRIES:
                raise
            log.warning("another Ray cluster is started in the place of one: %s", error)
        except BaseException:
            cluster.stop()
            raise
    raise AssertionError("the last try returned or raised")


@contextlib.contextmanager
def shared_ray_cluster(
    place: Path, *, nodes: int, cores: int = 4, gpus: int = 0
) -> Iterator[tuple[str, str]]:
    """(address, token) of a cluster that all who name that place share: the last one stops it."""
    note = place / "ray-cluster.json"
    with _locked(place):
        known: dict[str, str] = json.loads(note.read_text()) if note.exists() else {}
        folder = Path(known.get("folder", place / "none"))
        users = _living_users(folder)
        if not users:
            _end(folder)
            make = partial(RayCluster, cores=cores, apart=False, gpus=gpus)
            cluster = _started(nodes, make)
            cluster.release_ports()  # Ray listens there
            folder = cluster.folder
            known = {"folder": str(folder), "address": cluster.address, "token": cluster.token}
            note.write_text(json.dumps(known))
        _write_users(folder, [*users, _this_process()])
    try:
        yield known["address"], known["token"]
    finally:
        with _locked(place):
            users = [one for one in _living_users(folder) if one != _this_process()]
            if users:
                _write_users(folder, users)
            else:
                _end(folder)


def end_abandoned() -> None:
    """End the clusters whose users were killed, and so could not stop them."""
    for folder in Path("/tmp").glob(_PREFIX + "*"):
        if (folder / _USERS).exists() and not _living_users(folder):
            _end(folder)


def _end(folder: Path) -> None:
    for mark in (_mark(folder), _HOLDER + _mark(folder)):
        processes.end_processes(partial(processes.job_processes, mark), _DOWN_SECONDS)
    with contextlib.suppress(subprocess.CalledProcessError, OSError):  # most have none
        _ip("link", "del", _bridge(folder))
    shutil.rmtree(folder, ignore_errors=True)


def _mark(folder: Path) -> str:
    """By which the processes of the cluster in that folder are known."""
    return f"ray-cluster-{folder.name}"


def _bridge(folder: Path) -> str:
    return "ry" + hashlib.sha256(folder.name.encode()).hexdigest()[:8]


def _this_process() -> User:
    return os.getpid(), processes.start_time(os.getpid())


def _living_users(folder: Path) -> list[User]:
    """Those who use the cluster in that folder and are alive."""
    try:
        found = json.loads((folder / _USERS).read_text())
    except (OSError, ValueError):
        return []
    return [(pid, start) for pid, start in found if processes.is_alive(pid, start)]


def _write_users(folder: Path, users: Sequence[User]) -> None:
    job_folder.write_atomically(str(folder / _USERS), json.dumps(users).encode())


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "ray-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ray_environment(python: Path = Path(sys.executable)) -> Path:
    """The environment of that Python that Ray is installed in; made once, beside uv's cache."""
    program = uv.find_uv_bin()
    cache = subprocess.run([program, "cache", "dir"], capture_output=True, text=True, check=True)
    asked = [str(python), "-c", "import sys; print(sys.version, end='')"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    name = "ray-" + hashlib.sha256(f"{version}{REQUIREMENT}".encode()).hexdigest()[:16]
    folder = Path(cache.stdout.strip()) / "runyard-tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed: others wait here
        if not folder.exists():
            _install(program, python, folder)
    return folder


def _install(program: str, python: Path, folder: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    made = building / "environment"
    commands: tuple[list[str | Path], ...] = (
        [program, "venv", "--quiet", "--relocatable", "--python", python, made],
        [
            *(program, "pip", "install", "--quiet", "--python", made, REQUIREMENT),
            *("--index-strategy", "unsafe-best-match"),  # as pip chooses
        ],
    )
    try:
        for command in commands:
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            if ended.returncode:
                pytest.skip(f"Ray cannot be installed here: {ended.stderr[-500:]}")
        made.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
