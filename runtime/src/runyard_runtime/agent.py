"""The process on a node: lays out, starts the ranks, watches them, ships what they leave.

    lock → plan → lay out → gather → start or find the ranks → report → watch → ship → report

It can be killed at any of these arrows: ranks go on without it, and the next agent in the same
folder takes over. It may be a bare interpreter (`-S -E`) of Python 3.6 or newer. What needs the
network is imported after the ranks run, because a short script should not wait for it.

State in `agent-NODE/`: lock, pid ({"pid", "start"}), state.json (why the ranks are being ended),
ports.json (what is reserved), rank-R.json and rank-R.exit (see `ranks`), streams.json (see
`shipping`), silent (since when the server cannot be reached), why.json (why nodes were taken away,
if their batch system does that), exit.json (it is over). A job of several nodes has an agent on
each: see `gang`.
"""

import fcntl
import json
import os
import sys
import time

from runyard_runtime import (
    job_folder,
    launch,
    layout,
    processes,
    ranks,
    supervision,
    wire,
)
from runyard_runtime.beside import Beside, control_log, new_shipper

CRASHED = 70  # the agent's own exit code when it has a bug; the next agent takes over
_DEFAULT_NICE = 5
_TERMINATED = {-15, 143}  # the exit codes of ranks that SIGTERM ended; of a shell, too
_SIGNAL_SECONDS = 1.0
_WHY_SECONDS = 7.0  # for who stands by us to find out why we are told to stop
# For which processes of a service have the machine to themselves while they load: what is imported,
# reported and shipped beside them can wait. If one of them ends or all are to stop, we go on.
_LOADING_SECONDS = 0.3
_BLOB_PATIENCE = 5.0  # how long it is doubted that the server lacks a content of the snapshot

# Launchers whose ranks may be started by another program: the module that knows how, with
# facts(agent) → what other nodes must know of this one's, as JSON, and
# starter(agent, processes, hosts, facts) → a starter (see `ranks`), or None: the agents fork them.
# `facts` are those of all nodes in order, so all come to the same answer.
_STARTERS = {"mpi": "runyard_runtime.mpi_starter"}


class _Stopped(Exception):
    """A stop was asked for before the ranks were started."""


_CANNOT_BEGIN = (
    layout.LayoutFailed,
    layout.InputFailed,
    ranks.CannotBegin,
    launch.CannotLaunch,
)


def main(folder, node):
    """Be the agent of a node; the exit code of the process."""
    agent = Agent(os.path.realpath(folder), node)
    if not agent.lock():
        return 0  # another agent has the job
    try:
        return agent.run()
    except Exception:  # noqa: BLE001 - a bug of ours: the next agent takes over
        import traceback

        agent.note("the agent failed and will be replaced:\n%s" % traceback.format_exc())
        traceback.print_exc()
        return CRASHED


class Agent:
    """What is done on one node for one job."""

    def __init__(self, folder, node):
        self.folder = folder
        self.node = node
        self.own = os.path.join(folder, wire.agent_dir(node))
        self.marker = processes.job_marker(folder)
        self.node_marker = self.marker  # of the processes on this node
        self.wake = supervision.Wake()
        self.plan = None
        self.data = None  # what the run reads and writes beside its folder, if anything
        self.gang = None  # the other nodes, if there are any
        self.processes = []  # of all nodes, once they are planned
        self.is_shipped = False  # the server has all that the job left here, and said so
        self.trouble = ""  # why the server did not take the end of the job, in words
        self._ports = None
        self._parent = os.getppid()
        self._lock = None
        self._link = None
        self._is_silent = None  # the server cannot be reached; None: what an earlier agent noted

    def lock(self):
        """Take the node's place; False if another agent has it. Held as long as we live."""
        for name in (self.own, self._path("azureml-logs"), self._path(wire.EVENTS_DIR)):
            os.makedirs(name, exist_ok=True)
        # A record lock, because the keepers that we fork must not inherit it.
        self._lock = open(os.path.join(self.own, "lock"), "a")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def run(self):
        """Do the job, or the rest of it; its exit code."""
        if job_folder.read_json(os.path.join(self.own, "exit.json")) is not None:
            return 0
        self.wake.catch_signals()
        self._say_who()
        exits = job_folder.Reserved(os.path.join(self.own, "exit.json"))
        self.plan = job_folder.read_json(self._path(wire.PLAN_FILE))
        if self.plan is None:
            raise RuntimeError("%s is missing or damaged" % self._path(wire.PLAN_FILE))
        if (self.plan.get("nodes") or 1) > 1:
            self.node_marker = processes.node_marker(self.marker, self.node)
        try:
            code = self._work()
        except _CANNOT_BEGIN as error:
            code = self._fail(error)
        if self.is_wanted():
            end = {"exit_code": code, "at": time.time(), "shipped": self.is_shipped}
            exits.settle(dict(end, trouble=self.trouble) if self.trouble else end)
        return 0

    def is_wanted(self):
        """False once somebody removed the job's folder: then there is nothing to wait for."""
        return os.path.exists(self._path(wire.PLAN_FILE))

    def note(self, text):
        """Say something in the agent's account, which users read. Never fails."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            handle = os.open(self.note_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, ("%s %s\n" % (stamp, text)).encode("utf-8", "replace"))
            finally:
                os.close(handle)
        except OSError:
            pass  # a full disk must not end the agent

    def _work(self):
        plan = self.plan
        host = self._join() if (plan.get("nodes") or 1) > 1 else self._place()
        self._prepare_environment()
        self._lay_out()
        self._prepare_data()
        try:
            hosts, told = self._gather(host)
            self.processes = self._plan_processes(hosts, told)
        except _Stopped:  # before all nodes were ready: no rank will start anywhere
            hosts = []
            self.gang.post("stop", reason=supervision.STOPPED)
        mine = [self._marked(one) for one in self.processes if one.node == self.node]
        if plan.get("restore"):
            logs = [self._path(one.log) for one in mine]
            _restoring().announce(plan["attempt"], logs, plan.get("restarted_after"))
        is_subreaper = processes.become_subreaper()  # before a rank can orphan anything
        starter = self._starter(hosts)
        state = self._read_state()  # a stop may have come since
        running, adopted = self._start(starter, mine, state)
        limit = plan.get("max_run_duration_seconds")
        supervisor = supervision.Supervisor(
            running,
            self.wake,
            plan.get("grace_seconds", 10.0),
            _began(running) + limit if limit and running else None,
            self.node_marker,
            self.note,
            starter,
        )
        supervisor.gang = self.gang
        if any(one.serves for one in self.processes):
            from runyard_runtime.idle_ranks import IdleRanks

            ending = [one.rank for one in self.processes if not one.serves]
            supervisor.idle_ranks = IdleRanks(ending, self.node_marker, self.note)
        supervisor.reason = state.get("reason")
        supervisor.ending_since = state.get("at")
        # What runs in a container is nobody's child here, so none need come to us.
        supervisor.is_subreaper = is_subreaper and not plan.get("prefix")
        if not adopted and any(one.restarts for one in running):
            self.wake.wait(_LOADING_SECONDS)
        beside = Beside(self, supervisor, fresh=not adopted)
        supervisor.is_consequence = beside.is_consequence
        beside.start()
        supervisor.run(self._remember)
        return beside.finish()

    @property
    def keeps_work(self):
        """True on the node that keeps what is written to work/: one of those that share it."""
        return self.node == 0 or self.plan.get("board") == "server"

    @property
    def nice(self):
        """How much the ranks yield to the rest of the machine."""
        nice = self.plan.get("nice")
        return _DEFAULT_NICE if nice is None else int(nice)

    def _place(self):
        """Where the processes of this node are reached. Its ports are reserved, or found so."""
        plan = self.plan
        count = launch.ports_needed(plan["launcher"], self.node)
        names, hosts = plan.get("node_ids") or (), plan.get("hosts") or ()
        name = names[self.node] if self.node < len(names) else "node-%d" % self.node
        address = hosts[self.node] if self.node < len(hosts) else "127.0.0.1"
        several = (plan.get("nodes") or 1) > 1
        if not several and not count:
            return launch.Host(address, name, [])
        from runyard_runtime import ports

        if several and not hosts:
            if ports.is_loopback(plan["url"]):
                plan["one_machine"] = True  # that of the server, or we could not reach it
            address = ports.own_address(self.node, plan.get("one_machine"), plan["url"])
        self._ports = ports.Reservation()
        path = os.path.join(self.own, "ports.json")
        known = job_folder.read_json(path)
        if known is not None:
            self._ports.take_again(known)
        else:
            self._ports.take(address, count)
            job_folder.write_atomically(path, json.dumps(self._ports.ports).encode("utf-8"))
        return launch.Host(address, name, self._ports.ports)

    def _join(self):
        """Meet the agents of the other nodes; where this one is reached."""
        from runyard_runtime.gang import Gang

        self.gang = Gang(self)
        host = self._place()
        # Of an environment that is to be made nothing is known yet.
        self.gang.come(host, {} if self.plan.get("environment") else self._facts())
        if self.gang.group is None and self._read_state().get("reason"):
            self.wake.asked_to_stop = True  # it was to stop before it began
        return host

    def _gather(self, host):
        """The hosts of all nodes, and what the ranks are told of data."""
        told = self.data.told() if self.data is not None else None
        if self.gang is None:
            return [host], told
        facts = self._facts() if self.plan.get("environment") else None
        hosts, shared = self.gang.gather(told, facts)
        return hosts, told or (launch.Data(*shared) if shared else None)

    def _facts(self):
        module = self._module_that_starts()
        return module.facts(self) if module is not None else {}

    def _starter(self, hosts):
        """What starts the ranks of this node, or finds those that run; see `ranks`."""
        module = self._module_that_starts()
        if module is not None and hosts:
            facts = self.gang.facts() if self.gang is not None else [self._facts()]
            starter = module.starter(self, self.processes, hosts, facts)
            if starter is not None:
                return starter
        return ranks.Direct(self.own, self.folder, self.nice, self.note, self._command_as_asked())

    def _module_that_starts(self):
        name = _STARTERS.get(self.plan["launcher"].get("kind"))
        if name is None:
            return None
        import importlib

        return importlib.import_module(name)

    def _marked(self, process):
        """The process with the marker of this node, by which it is found."""
        return process._replace(env=dict(process.env, **{wire.JOB_KEY: self.node_marker}))

    def _prepare_environment(self):
        """Have the environment on a node that shares no disk with the server."""
        if self.plan.get("environment"):
            from runyard_runtime import node_environment

            try:
                self.plan["interpreter"] = node_environment.prepare(self)
            except _Stopped:
                pass  # no rank will start

    def _lay_out(self):
        """Lay the snapshot out, or find it laid out by another node."""
        snapshot, blobs = self.plan["snapshot"], self.plan.get("blobs")
        self.note("laying out %d files" % len(snapshot))
        try:
            layout.lay_out(self.folder, self.node, snapshot, blobs, self._fetch)
            if self.plan.get("restore") and self.keeps_work:
                _restoring().restore(self)
        except _Stopped:
            pass  # no rank will start, so there is nothing to lay out for
        except OSError as error:
            text = "The snapshot cannot be laid out: %s." % (error.strerror or error)
            raise layout.LayoutFailed(text)

    def _fetch(self, digest, stream):
        from runyard_runtime.server_link import Refused

        try:
            link = self.link()
            link.download("/api/v1/blobs/" + digest, stream, self.pause, _BLOB_PATIENCE)
        except Refused as error:
            raise layout.LayoutFailed("A content of the snapshot cannot be had: %s." % error)

    def _prepare_data(self):
        """Have inputs in place, and folders for outputs; of a shared folder once."""
        if not self.plan.get("inputs") and not self.plan.get("outputs") or not self.keeps_work:
            return
        from runyard_runtime.job_data import JobData

        self.data = JobData(self)
        try:
            self.data.prepare()
        except _Stopped:
            pass  # no rank will start

    def pause(self, seconds):
        """Wait for something before the ranks run: a stop ends the waiting."""
        self.wake.wait(seconds)
        if self.wake.asked_to_stop:
            raise _Stopped

    def _plan_processes(self, hosts, told):
        base = {name: value for name, value in os.environ.items() if name != wire.JOB_KEY}
        home = os.path.dirname(os.path.dirname(self.plan.get("interpreter") or ""))
        is_venv = bool(home) and os.path.exists(os.path.join(home, "pyvenv.cfg"))
        return launch.plan(self.plan, self.folder, hosts, base, is_venv, self.marker, told)

    def _start(self, starter, mine, state):
        """The ranks of this node, found or started, and whether any was found."""
        adopted = any(ranks.find(one, self.own) for one in mine)
        if not adopted and (self.wake.asked_to_stop or state.get("reason")):
            self.wake.asked_to_stop = True
            return [], False  # it was to stop before it began
        if not adopted and self.gang is not None and self.gang.why_end() is not None:
            return [], False  # another node ended it before it began here
        if mine and not adopted:
            for text in launch.remarks(self.plan, self.node, _machine_has_gpus()):
                self.note("warning: %s" % text)
        return starter.start(mine), adopted

    def _command_as_asked(self):
        """The command with $NAME as it was written: what stands for it may be a secret."""
        asked = [str(word) for word in self.plan["arguments"]]
        return " ".join(
            asked if self.plan.get("is_command") else [self.plan["interpreter"]] + asked
        )

    def link(self):
        """The connection of the main thread and the shipper."""
        if self._link is None:
            self._link = self.new_link()
        return self._link

    def new_link(self, sleep=None):
        """Another connection, for a thread of its own."""
        from runyard_runtime.server_link import ServerLink

        plan = self.plan
        token, address_file = plan["agent_token"], plan.get("address_file")
        return ServerLink(plan["url"], token, address_file, sleep=sleep, is_wanted=self._goes_on)

    def _goes_on(self):
        """Asked between two tries to reach the server: whether there is a reason for another.

        The note is for whoever started us: an agent that is not heard may be one of a lost job.
        """
        if not self._is_silent:
            self._is_silent = True
            text = json.dumps({"at": time.time(), "url": self.plan["url"]}).encode("utf-8")
            try:
                job_folder.write_atomically(self._silent_path(), text)
            except OSError:
                pass  # a full disk, or the folder is gone
        # Where who stood by us was killed, the node is not ours any more.
        is_alone = self.plan.get("watched") and os.getppid() != self._parent
        return self.is_wanted() and not is_alone

    def _hear(self):
        """The server has answered."""
        if self._is_silent or self._is_silent is None:
            self._is_silent = False
            try:
                os.unlink(self._silent_path())
            except OSError:
                pass  # it answered always

    def _silent_path(self):
        return os.path.join(self.own, "silent")

    def was_taken_away(self, ended):
        """Whether ranks failed because who takes the node away signals them as well as us."""
        failed = [rank.exit_code for rank in ended if rank.has_failed]
        if not self.plan.get("watched") or not failed or not set(failed) <= _TERMINATED:
            return False
        deadline = time.monotonic() + _SIGNAL_SECONDS
        while not self.wake.heard_signal and time.monotonic() < deadline:
            time.sleep(0.02)  # ours may come a little later
        return self.wake.heard_signal

    def why_stopped(self):
        """The error of a run whose nodes were taken away, where whoever did it says why."""
        if not self.plan.get("watched") or not self.wake.heard_signal:
            return None  # the server told us, and knows
        deadline = time.monotonic() + _WHY_SECONDS
        while True:
            known = job_folder.read_json(os.path.join(self.own, "why.json"))
            if known is not None or time.monotonic() >= deadline:
                return (known or {}).get("error")
            time.sleep(0.05)

    def note_path(self):
        """The file of the agent's account."""
        return self._path(self.control_log())

    def report(self, link, phase, patience=None, **facts):
        """Tell the server; a stop may be the answer."""
        from runyard_runtime.server_link import run_path

        body = dict(facts, attempt=self.plan.get("attempt") or 1, node=self.node, phase=phase)
        path = run_path(self.plan["run_id"], "reports")
        orders = link.call_json("POST", path, body, patience)
        self._hear()
        if orders and orders.get("stop"):
            self.wake.stop()

    def _fail(self, error):
        """Report that the job could not begin; the exit code."""
        from runyard_runtime.server_link import Abandoned, Refused

        self.note("failed: %s" % error)
        facts = _why_not_begun(error)
        if self.gang is not None:
            self.gang.give_up(facts)
        if self.data is not None:
            self.data.close()
        processes.end_processes(
            lambda: processes.job_processes(self.node_marker, (os.getpid(),)),
            self.plan.get("grace_seconds", 10.0),
        )
        shipper = new_shipper(self, fresh=False)
        shipper.finish()
        self.is_shipped = shipper.given_up is None
        if self.gang is not None:
            self.gang.post("shipped")
            if not self.gang.leads:
                return 1
            self.gang.wait_for_last_words()
        try:
            self.report(self.link(), wire.FAILED, error=facts)
        except (Refused, Abandoned) as refusal:
            self.is_shipped, self.trouble = False, str(refusal)
            self.note("warning: the end could not be reported: %s" % refusal)
        return 1

    def _read_state(self):
        return job_folder.read_json(os.path.join(self.own, "state.json")) or {}

    def _remember(self, reason, since):
        try:
            text = json.dumps({"reason": reason, "at": since}).encode("utf-8")
            job_folder.write_atomically(os.path.join(self.own, "state.json"), text)
        except OSError:
            pass  # a full disk; a next agent would be told to stop again

    def _say_who(self):
        me = os.getpid()
        who = json.dumps({"pid": me, "start": processes.start_time(me)}).encode("utf-8")
        try:
            job_folder.write_atomically(os.path.join(self.own, "pid"), who)
        except OSError as error:
            sys.stderr.write("cannot write the pid file: %s\n" % error)

    def control_log(self):
        """The agent's account, below the job folder."""
        return control_log(self.node)

    def _path(self, name):
        return os.path.join(self.folder, name)


def _restoring():
    # Only an attempt after a failed one pays for its import.
    from runyard_runtime import restoring

    return restoring


def _why_not_begun(error):
    """The error of a job that could not begin here: its code, and words for people."""
    code, text = getattr(error, "code", type(error).__name__), str(error)
    if job_folder.is_disk_full(error):
        code = job_folder.NODE_FULL
        if job_folder.MAKE_ROOM not in text:
            text = "%s That is: %s" % (text, job_folder.MAKE_ROOM)
    return {"code": code, "message": text}


def _began(running):
    """When the first of them started; one that is still to start, now."""
    return min(rank.started_at or time.time() for rank in running)


def _machine_has_gpus():
    """Whether there is a device of NVIDIA's driver, or of Windows' for its Linux."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")
