"""A real Slurm cluster on this machine, for tests: its controller and a few nodes.

with slurm_cluster(nodes=2) as cluster:
    engine = SlurmEngine(folder, {"conf": str(cluster.conf), "one_machine": "true"})

Needs root and Debian's slurm-wlm and munge; `why_not` says what is missing. All nodes are this
machine, so any number of clusters run side by side: each has its own folder, ports, key and
munge. When it is left, nothing of it is: no daemon, no job, no file.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from runyard_runtime import processes

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel", "sinfo")
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_UP_SECONDS = 60.0
_DOWN_SECONDS = 10.0
_WATCH_SECONDS = 2.0

# Noticing a lost node takes Slurm `SlurmdTimeout`; a real site has 300 s unless it is tuned. A job
# that Slurm did not start at once waits for its next round: a minute, without `sched_interval`.
_CONF = """\
ClusterName=runyard
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1,bf_interval=1
GresTypes=gpu
SlurmdParameters=config_overrides
DefMemPerNode=200
ReturnToService=2
SlurmdTimeout=4
SlurmctldTimeout=4
MessageTimeout=2
KillWait=5
CompleteWait=0
{extra}
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
PartitionName=short Nodes=ALL MaxTime=5 State=UP
PartitionName=small Nodes=ALL MaxNodes=1 State=UP
PartitionName=others Nodes=ALL AllowAccounts=somebody State=UP
PartitionName=closed Nodes=ALL State=DOWN
"""


class SlurmCluster:
    """A running cluster. `conf` is its slurm.conf; nodes are n1, n2, …

    Beside `main` it has partitions for all that a site may refuse or take away: `urgent` preempts,
    `short` and `small` have limits, `others` is somebody else's, `closed` is down. GPUs are null
    devices, but Slurm hands them out as it does real ones.
    """

    def __init__(
        self, folder: Path, nodes: int, *, cores: int, memory_mb: int, gpus: int, extra: str
    ) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": _PATH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        port, *ports = _free_ports(nodes + 1)
        host = socket.gethostname()
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={each} "
            f"CPUs={cores} RealMemory={memory_mb}" + (f" Gres=gpu:{gpus}" if gpus else "")
            for name, each in zip(self.nodes, ports, strict=True)
        ]
        self.conf.write_text(
            _CONF.format(host=host, port=port, folder=folder, nodes="\n".join(lines), extra=extra)
        )
        devices = {
            name: [folder / f"{name}-gpu{index}" for index in range(gpus)] for name in self.nodes
        }
        for device in (one for each in devices.values() for one in each):
            os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # a file would be refused
        (folder / "gres.conf").write_text(
            "".join(
                f"NodeName={name} Name=gpu File={device}\n"
                for name, each in devices.items()
                for device in each
            )
        )

    def start(self) -> None:
        """Start the daemons and wait until all nodes take jobs."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            "--num-threads=2",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        self._wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self._wait_for(lambda: self.idle() == len(self.nodes), "the nodes")

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", "-D", "-f", str(self.conf))

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        for below in (name, f"tmp-{name}"):  # PMIx meets there, and nodes are one machine
            (self.folder / below).mkdir(exist_ok=True)
        self._spawn("slurmd", "-D", "-N", name, "-f", str(self.conf), called=name)

    def stop_controller(self) -> None:
        """End slurmctld; it saves its state, of which it would lose seconds if it were killed."""
        self._end("slurmctld", signal.SIGTERM)

    def lose_node(self, name: str, *, is_told: bool = True) -> None:
        """Have a node vanish: its daemon and all that it started.

        Slurm is told; otherwise it notices by itself, after `SlurmdTimeout` and some seconds more.
        """
        frozen: dict[int, object] = {}
        while found := {pid: one for pid, one in self._started_by(name).items()
                        if pid not in frozen}:  # fmt: skip
            for pid in found:  # or one would still start another while its like are killed
                processes.send(pid, signal.SIGSTOP)
            frozen |= found
        for pid in frozen:
            processes.send(pid, signal.SIGKILL)
        self._daemons.pop(name).wait()
        left = processes.end_processes(lambda: self._started_by(name), 0)
        if left:
            raise RuntimeError(f"processes {sorted(left)} of {name} could not be ended")
        if is_told:
            self._say_down(name)

    def lose_daemon(self, name: str) -> None:
        """Have the daemon of a node die, while all that it started lives on; Slurm is told."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()
        self._say_down(name)

    def freeze_daemon(self, name: str) -> None:
        """Have a node answer Slurm no more, as one does whose link is cut; `clear` mends it."""
        self._daemons[name].send_signal(signal.SIGSTOP)
        self.ask("scontrol", "update", f"nodename={name}", "state=noresp")

    def _say_down(self, name: str) -> None:
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def running(self, *nodes: str) -> list[int]:
        """What jobs have on those nodes, by default on all: Slurm's own processes, and theirs."""
        daemons = {one.pid for one in self._daemons.values()}
        return sorted(set(self._started_by(*(nodes or self.nodes))) - daemons)

    def ask(self, *command: str) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(
            command,
            env=self.environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}")
        return done.stdout

    def idle(self) -> int:
        """How many nodes take jobs and have none."""
        with contextlib.suppress(RuntimeError):
            return (
                len(self.ask("sinfo", "-N", "-h", "-p", "main", "-t", "idle", "-r").split("\n")) - 1
            )
        return 0

    def clear(self) -> None:
        """Cancel all jobs, start what a test has ended, and wait until all nodes are free.

        RuntimeError if a job has left anything behind.
        """
        if "slurmctld" not in self._daemons:
            self.start_controller()
        for name in self.nodes:
            if name not in self._daemons:
                self.start_node(name)
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGCONT)
        self._wait_for(self.answers, "the controller")
        self._end_jobs()
        self._wait_for(lambda: self.idle() == len(self.nodes), "the nodes")
        deadline = time.monotonic() + _UP_SECONDS
        while left := self.running():
            if time.monotonic() > deadline:
                words = [Path(f"/proc/{pid}/cmdline").read_bytes()[:200] for pid in left]
                raise RuntimeError(f"jobs have left processes behind: {left} {words}")
            time.sleep(0.1)

    def _end_jobs(self) -> None:
        """End all jobs at once: our watches are quicker at that than Slurm is."""
        every = ("scancel", "--quiet", "--user=root")
        self.ask(*every, "--state=PENDING")
        deadline = time.monotonic() + _WATCH_SECONDS
        while self.ask("squeue", "--noheader") and time.monotonic() < deadline:
            self.ask(*every, "--full", "--signal=USR2")
            time.sleep(0.1)
        self.ask(*every, "--full", "--signal=KILL")
        self.ask(*every)

    def answers(self) -> bool:
        """Whether the controller does."""
        with contextlib.suppress(RuntimeError):
            return bool(self.ask("squeue", "-h") or True)
        return False

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(RuntimeError):
            if "slurmctld" in self._daemons:
                self.ask("scancel", "--quiet", "--signal=KILL", "--full", "--user=root")
                self.ask("scancel", "--quiet", "--user=root")
        for name in [*self.nodes, "slurmctld", "munged"]:
            self._end(name, signal.SIGTERM)
        left = processes.end_processes(lambda: self._started_by(*self.nodes), 0)
        if left:
            raise RuntimeError(f"processes {sorted(left)} of the cluster could not be ended")

    def _started_by(self, *nodes: str) -> dict[int, object]:
        """What runs on those nodes: Slurm's own processes for jobs, and the jobs'."""
        logs = {str(self.folder / f"{name}.log") for name in nodes}
        names = {f"SLURMD_NODENAME={name}".encode() for name in nodes}
        conf = f"SLURM_CONF={self.conf}".encode()
        roots = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            variables = processes.environment(pid).split(b"\0")
            if _has(pid, logs) or (conf in variables and not names.isdisjoint(variables)):
                roots.append(pid)
        below = processes.job_processes(str(self.folder), roots)
        return {
            **below,
            **{pid: one for pid in roots if (one := processes.stat(pid)) and one.state != "Z"},
        }

    def _spawn(self, program: str, *arguments: str, called: str = "") -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None
        name = called or program
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [path, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
            )

    def _end(self, name: str, number: signal.Signals) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(number)
        try:
            daemon.wait(_DOWN_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _wait_for(self, check: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _UP_SECONDS
        while not check():
            dead = [name for name, one in self._daemons.items() if one.poll() is not None]
            if dead or time.monotonic() > deadline:
                words = "".join(_tail(self.folder / f"{name}.out") for name in dead)
                raise RuntimeError(f"{what} did not come: {', '.join(dead)} {words}")
            time.sleep(0.05)


def why_not() -> str:
    """Why no cluster can be started here; empty if one can."""
    missing = [one for one in PROGRAMS if shutil.which(one, path=_PATH) is None]
    if missing:
        return f"Slurm is not installed (no {', '.join(missing)}): scripts/system-packages does it"
    return "" if os.geteuid() == 0 else "a Slurm cluster for tests is started by root only"


def why_not_pmix() -> str:
    """Why `srun --mpi=pmix` cannot be used here; empty if it can."""
    found = [
        *Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"),
        *Path("/usr/lib").glob("*/libpmix.so"),
    ]
    return "" if found else "PMIx is not installed (no libpmix.so): scripts/system-packages does it"


@contextlib.contextmanager
def slurm_cluster(
    nodes: int = 2, *, cores: int = 4, memory_mb: int = 4000, gpus: int = 0, extra: str = ""
) -> Iterator[SlurmCluster]:
    """A cluster that runs as long as this is open."""
    # Not pytest's own folder: a socket's path may have 107 characters only.
    folder = Path(tempfile.mkdtemp(prefix="ry-slurm-"))
    folder.chmod(0o755)
    try:
        cluster = SlurmCluster(
            folder, nodes, cores=cores, memory_mb=memory_mb, gpus=gpus, extra=extra
        )
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_of_session() -> Iterator[SlurmCluster]:
    """One cluster of three nodes for all tests of a session; skipped where there is no Slurm.

    For a conftest: each module that imported it would have a cluster of its own.
    """
    if reason := why_not():
        pytest.skip(reason)
    with slurm_cluster(nodes=3, gpus=2) as cluster:
        yield cluster


def _free_ports(count: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _has(pid: int, files: Collection[str]) -> bool:
    """True if the process has one of those files open."""
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        return any(os.readlink(f"{folder}/{one}") in files for one in os.listdir(folder))
    return False


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[-1000:]
    return ""
