"""A real Ray cluster on this machine, for tests: a head and further nodes.

with ray_cluster(nodes=3) as cluster:
    engine = RayEngine(folder, {"address": cluster.address}, {"token": cluster.token})

with ray_cluster(nodes=3, apart=True) as cluster:       # each node a host of its own
    cluster.cut(2)

Ray is installed once, by uv, into an environment beside uv's cache. Any number of clusters run side
by side, each with its own folder, ports and token. When it is left, nothing of it is: its processes
carry a mark by which they are found. Nodes that are hosts of their own have a network namespace, an
address and a hostname each, which needs root; `why_not_apart` says what is missing.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uv

from runyard_runtime import ports, processes, wire

REQUIREMENT = "ray[default]==2.60.0"
_UP_SECONDS = 180.0  # a busy machine
_DOWN_SECONDS = 5.0
_STORE_BYTES = 80 * 2**20  # the least that Ray takes
_PATIENT = {
    # A machine that runs all tests at once is slow to answer, which is no reason to be lost.
    "RAY_health_check_timeout_ms": "60000",
    "RAY_raylet_start_wait_time_s": "180",
}
_WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "10000",  # a node that comes up is slow to answer
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",  # a node that is cut off ends by itself
    "RAY_raylet_start_wait_time_s": "180",
}


class RayCluster:
    """A running cluster: `address` is that of its dashboard, node 0 its head."""

    def __init__(self, folder: Path, *, cores: int, apart: bool, gpus: int = 0) -> None:
        self.token = secrets.token_hex(24)
        self.mark = f"ray-cluster-{folder.name}"
        self._nodes = 0
        self._folder = folder
        self._cores = cores
        self._gpus = gpus  # that Ray is told of: it does not look for them
        self._apart = apart
        self._ports = ports.Reservation().take("127.0.0.1", 3)
        self._net = _Net(folder.name) if apart else None
        self._bin = ray_environment() / "bin"
        head = "127.0.0.1" if self._net is None else self._net.address(0)
        self.address = f"http://{head}:{self._ports.ports[1]}"

    @property
    def gateway(self) -> str:
        """The address of this machine, as the nodes see it."""
        return "127.0.0.1" if self._net is None else self._net.gateway

    def start(self, nodes: int) -> None:
        """Start the head and the other nodes, and wait until all are there."""
        gcs, web, client = self._ports.ports
        if self._net is not None:
            self._net.open()
        where = "127.0.0.1" if self._net is None else self._net.address(0)
        self._add(
            *("--head", f"--port={gcs}", f"--ray-client-server-port={client}"),
            *("--include-dashboard=true", f"--dashboard-port={web}", f"--dashboard-host={where}"),
            f"--temp-dir={self._folder / 'ray'}",
        )
        self._wait(partial(self._has, 1))
        for number in range(1, nodes):
            self.add_node()
            self._wait(partial(self._has, number + 1))

    def add_node(self) -> None:
        """Start another node."""
        known = self._get("/api/v0/nodes")["data"]["result"]["result"]
        head = next(node["node_ip"] for node in known if node["is_head_node"])
        self._add(f"--address={head}:{self._ports.ports[0]}")

    def cut(self, node: int) -> None:
        """Take the link of a host away."""
        assert self._net is not None
        self._net.cut(node)

    def stop(self) -> None:
        """End all that was started."""
        processes.end_processes(lambda: processes.job_processes(self.mark), _DOWN_SECONDS)
        if self._net is not None:
            self._net.close()
        self.release_ports()

    def release_ports(self) -> None:
        """Let go of what kept others off the ports."""
        self._ports.release()

    def pids(self, node: int) -> list[int]:
        """The processes on a host of its own, without the one that holds it."""
        assert self._net is not None
        return self._net.pids(node)

    def _add(self, *arguments: str) -> None:
        number = self._nodes
        command = [
            *(str(self._bin / "ray"), "start", "--block", "--disable-usage-stats"),
            *(f"--num-cpus={self._cores}", f"--object-store-memory={_STORE_BYTES}"),
            f"--num-gpus={self._gpus}",
            *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
            *arguments,
        ]
        if self._net is not None:
            address = self._net.add(number)
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
            "RAY_TMPDIR": str(self._folder / "ray"),
        }
        with (self._folder / f"node-{number}.log").open("wb") as log:
            # Nobody's child: of those who share a cluster, the last one stops it.
            subprocess.run(
                ["setsid", "--fork", *command],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
            )
        self._nodes += 1

    def _has(self, nodes: int) -> bool:
        try:
            found = self._get("/api/v0/nodes")["data"]["result"]["result"]
        except (OSError, ValueError, KeyError):
            return False
        return len([node for node in found if node["state"] == "ALIVE"]) >= nodes

    def _get(self, path: str) -> Any:
        bearer = {"Authorization": f"Bearer {self.token}"}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(
            urllib.request.Request(self.address + path, headers=bearer), timeout=10
        ) as answer:
            return json.loads(answer.read())

    def _wait(self, check: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while not check():
            if time.monotonic() >= deadline or not processes.job_processes(self.mark):
                logs = sorted(self._folder.glob("node-*.log"))
                words = "\n".join(path.read_text(errors="replace")[-2000:] for path in logs)
                raise RuntimeError(f"Ray does not come up: {words}")
            time.sleep(0.2)


class _Net:
    """Hosts of their own: network namespaces with a bridge of this machine among them."""

    def __init__(self, name: str) -> None:
        self._bridge = "ry" + hashlib.sha256(name.encode()).hexdigest()[:8]
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

    def add(self, number: int) -> str:
        """Make a host; its address."""
        hosts = "".join(f"{self.address(one)} ray-{one}\\n" for one in range(20))
        script = (
            f"hostname ray-{number} && ip link set lo up && d=$(mktemp) && "
            f"printf '127.0.0.1 localhost\\n{self.gateway} gateway\\n{hosts}' > $d && "
            "mount --bind $d /etc/hosts && rm -f $d; echo up; exec sleep infinity"
        )
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script],
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
        return self.address(number)

    def enter(self, number: int) -> list[str]:
        """What a command begins with to run on that host."""
        return ["nsenter", "-t", str(self._holders[number].pid), "-n", "-u", "-m"]

    def cut(self, number: int) -> None:
        """Take a host's link away."""
        _ip("link", "set", self._link(number), "down")

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
def ray_cluster(*, nodes: int = 1, cores: int = 4, apart: bool = False) -> Iterator[RayCluster]:
    """A cluster for as long as it is held."""
    # A short path: sockets lie below it, whose names may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ry-ray-", dir="/tmp"))
    cluster = RayCluster(folder, cores=cores, apart=apart)
    try:
        cluster.start(nodes)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def shared_ray_cluster(
    place: Path, *, nodes: int, cores: int = 4, gpus: int = 0
) -> Iterator[tuple[str, str]]:
    """(address, token) of a cluster that all who name that place share: the last one stops it."""
    note = place / "ray-cluster.json"
    with _locked(place):
        known: dict[str, Any] = {"users": 0}
        if note.exists():
            known = json.loads(note.read_text())
        if not known["users"]:
            folder = Path(tempfile.mkdtemp(prefix="ry-ray-", dir="/tmp"))
            cluster = RayCluster(folder, cores=cores, apart=False, gpus=gpus)
            try:
                cluster.start(nodes)
            except BaseException:
                cluster.stop()
                raise
            finally:
                cluster.release_ports()  # by now Ray listens there
            told = {"address": cluster.address, "token": cluster.token, "mark": cluster.mark}
            known = {"users": 0, "folder": str(folder), **told}
        known["users"] += 1
        note.write_text(json.dumps(known))
    try:
        yield known["address"], known["token"]
    finally:
        with _locked(place):
            known = json.loads(note.read_text())
            known["users"] -= 1
            note.write_text(json.dumps(known))
            if not known["users"]:
                processes.end_processes(
                    lambda: processes.job_processes(known["mark"]), _DOWN_SECONDS
                )
                shutil.rmtree(known["folder"], ignore_errors=True)


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    with (place / "ray-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ray_environment() -> Path:
    """The environment that Ray is installed in; made once, beside uv's cache."""
    program = uv.find_uv_bin()
    cache = subprocess.run([program, "cache", "dir"], capture_output=True, text=True, check=True)
    name = "ray-" + hashlib.sha256(f"{sys.version}{REQUIREMENT}".encode()).hexdigest()[:16]
    folder = Path(cache.stdout.strip()) / "runyard-tests" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed: others wait here
        if not folder.exists():
            _install(program, folder)
    return folder


def _install(program: str, folder: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    made = building / "environment"
    commands: tuple[list[str | Path], ...] = (
        [program, "venv", "--quiet", "--relocatable", "--python", sys.executable, made],
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
