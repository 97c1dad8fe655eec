"""The process on a node: lays out, starts the ranks, watches them, ships what they leave.

    lock → plan → lay out → start or find the ranks → report → watch → ship, keep outputs → report

It can be killed at any of these arrows: ranks go on without it, and the next agent in the same
folder takes over. It may be a bare interpreter (`-S -E`) of Python 3.6 or newer. What needs the
network is imported after the ranks run, because a short script should not wait for it.

State in `agent-NODE/`: lock, pid ({"pid", "start"}), state.json (why the ranks are being ended),
rank-R.json and rank-R.exit (see `ranks`), streams.json (see `shipping`), exit.json (it is over).
"""

import fcntl
import json
import os
import sys
import time

from runyard_runtime import (
    contained,
    job_folder,
    launch,
    layout,
    processes,
    ranks,
    supervision,
    wire,
)

ALIVE_SECONDS = 5.0  # between two reports that say only that we live
CHECKPOINT_SECONDS = 30.0  # between two looks for new outputs, unless the plan says otherwise
CRASHED = 70  # the agent's own exit code when it has a bug; the next agent takes over
_DEFAULT_NICE = 5
_FIRST_SAMPLE = 1.0
_MOUNT_LOOK = 1.0
_BLOB_PATIENCE = 5.0  # how long it is doubted that the server lacks a content of the snapshot


class _Stopped(Exception):
    """A stop was asked for before the ranks were started."""


_CANNOT_BEGIN = (
    layout.LayoutFailed,
    layout.InputFailed,
    ranks.StartFailed,
    launch.UnknownLauncher,
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
        self.wake = supervision.Wake()
        self.plan = None
        self.data = None  # what the run reads and writes beside its folder, if anything
        self._lock = None
        self._link = None

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
        try:
            code = self._work()
        except _CANNOT_BEGIN as error:
            code = self._fail(error)
        if self.is_wanted():
            exits.settle({"exit_code": code, "at": time.time()})
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
        keeps_work = self._lay_out()
        self._prepare_data()
        hosts = plan.get("hosts") or ["127.0.0.1"] * (plan.get("nodes") or 1)
        processes_of_all = self._plan_processes(hosts)
        mine = [one for one in processes_of_all if one.node == self.node]
        state = job_folder.read_json(os.path.join(self.own, "state.json")) or {}
        is_subreaper = processes.become_subreaper()  # before a rank can orphan anything
        running, adopted = self._start(mine, len(processes_of_all), state)
        limit = plan.get("max_run_duration_seconds")
        supervisor = supervision.Supervisor(
            running,
            self.wake,
            plan.get("grace_seconds", 10.0),
            min(rank.started_at for rank in running) + limit if limit and running else None,
            self.marker,
            self.note,
        )
        supervisor.reason = state.get("reason")
        # What runs in a container is nobody's child here, so none need come to us.
        supervisor.is_subreaper = is_subreaper and not plan.get("prefix")
        helpers = Helpers(self, supervisor, processes_of_all, keeps_work, fresh=not adopted)
        helpers.start()
        supervisor.run(self._remember)
        return helpers.finish()

    def _lay_out(self):
        """Lay the snapshot out; True if this node is the one that keeps what is written there."""
        snapshot, blobs = self.plan["snapshot"], self.plan.get("blobs")
        self.note("laying out %d files" % len(snapshot))
        try:
            done_by = layout.lay_out(self.folder, self.node, snapshot, blobs, self._fetch)
        except _Stopped:
            return True  # no rank will start, so there is nothing to lay out for
        return done_by == self.node

    def _fetch(self, digest, stream):
        from runyard_runtime.server_link import Refused

        try:
            link = self.link()
            link.download("/api/v1/blobs/" + digest, stream, self.pause, _BLOB_PATIENCE)
        except Refused as error:
            raise layout.LayoutFailed("A content of the snapshot cannot be had: %s." % error)

    def _prepare_data(self):
        """Have inputs in place, and folders for outputs."""
        if not self.plan.get("inputs") and not self.plan.get("outputs"):
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

    def _plan_processes(self, hosts):
        base = {name: value for name, value in os.environ.items() if name != wire.JOB_KEY}
        home = os.path.dirname(os.path.dirname(self.plan.get("interpreter") or ""))
        is_venv = bool(home) and os.path.exists(os.path.join(home, "pyvenv.cfg"))
        data = self.data.told() if self.data is not None else None
        return launch.plan(self.plan, self.folder, hosts, base, is_venv, self.marker, data)

    def _start(self, mine, total, state):
        """The ranks of this node, found or started, and whether any was found."""
        adopted = any(ranks.find(one.rank, self.own) for one in mine)
        if not adopted and (self.wake.asked_to_stop or state.get("reason")):
            self.wake.asked_to_stop = True
            return [], False  # it was to stop before it began
        running = []
        for process in mine:
            rank = ranks.find(process.rank, self.own)
            if rank is not None:
                self.note("taking over rank %d, process %d" % (rank.number, rank.pid))
            else:
                rank = ranks.start(
                    process,
                    self.own,
                    self._path(wire.driver_log(process.rank, total)),
                    self._path(wire.WORK_DIR),
                    int(self.plan.get("nice", _DEFAULT_NICE)),
                )
                self.note("started rank %d: %s" % (process.rank, self._command_as_asked()))
            running.append(rank)
        return running, adopted

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
        return ServerLink(plan["url"], token, address_file, sleep=sleep, is_wanted=self.is_wanted)

    def note_path(self):
        """The file of the agent's account."""
        return self._path(self.control_log())

    def report(self, link, phase, patience=None, **facts):
        """Tell the server; a stop may be the answer."""
        from runyard_runtime.server_link import run_path

        body = dict(facts, attempt=self.plan.get("attempt") or 1, node=self.node, phase=phase)
        path = run_path(self.plan["run_id"], "reports")
        orders = link.call_json("POST", path, body, patience)
        if orders and orders.get("stop"):
            self.wake.stop()

    def _fail(self, error):
        """Report that the job could not begin; the exit code."""
        from runyard_runtime.server_link import Abandoned, Refused
        from runyard_runtime.shipping import Shipper

        self.note("failed: %s" % error)
        if self.data is not None:
            self.data.close()
        processes.end_processes(
            lambda: processes.job_processes(self.marker, (os.getpid(),)),
            self.plan.get("grace_seconds", 10.0),
        )
        shipper = Shipper(self.link(), self.plan, self.folder, self.own, (), None, self.note, False)
        shipper.finish()
        facts = {"code": type(error).__name__, "message": str(error)}
        try:
            self.report(self.link(), wire.FAILED, error=facts)
        except (Refused, Abandoned) as refusal:
            self.note("warning: the end could not be reported: %s" % refusal)
        return 1

    def _remember(self, reason):
        try:
            text = json.dumps({"reason": reason}).encode("utf-8")
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
        return wire.CONTROL_LOG if self.node == 0 else control_log(self.node)

    def _path(self, name):
        return os.path.join(self.folder, name)


class Helpers:
    """What goes on beside the ranks: shipping, reports, checkpoints, samples; and the end."""

    def __init__(self, agent, supervisor, processes_of_all, keeps_work, fresh):
        from runyard_runtime.outputs import Outputs
        from runyard_runtime.shipping import Shipper

        self._agent = agent
        self._supervisor = supervisor
        self._total = len(processes_of_all)
        self._fresh = fresh
        theirs = _names(processes_of_all, lambda node: node != agent.node)
        own = _names(processes_of_all, lambda node: node == agent.node)
        own |= {control_log(agent.node), wire.events_file("agent-%d" % agent.node)}
        self._shipper = Shipper(
            agent.link(),
            agent.plan,
            agent.folder,
            agent.own,
            theirs,
            None if keeps_work else own,
            agent.note,
            fresh,
        )
        work = os.path.join(agent.folder, wire.WORK_DIR)
        self._outputs = Outputs(agent.plan["run_id"], work, agent.note) if keeps_work else None
        self._data = agent.data
        self._links = []
        self._threads = []

    def start(self):
        """Begin; returns at once."""
        agent = self._agent
        self._shipper.before_all(self._say_started)
        self._shipper.start()
        if self._supervisor.ranks:
            self._every("reporting", ALIVE_SECONDS, self._say_alive, self._new_link())
            if self._outputs is not None:
                seconds = agent.plan.get("checkpoint_seconds", CHECKPOINT_SECONDS)
                self._every("keeping outputs", seconds, self._checkpoint, self._new_link())
            if self._data is not None and self._data.has_mounts():
                self._every("looking after mounts", _MOUNT_LOOK, self._data.look_after)
            self._start_sampling()

    def finish(self):
        """After the ranks: end the leftovers, ship all, report; the job's exit code."""
        from runyard_runtime.server_link import Abandoned, Refused

        agent, supervisor = self._agent, self._supervisor
        reporting = self._end_threads()
        if self._data is not None:
            self._data.close()
        for pid in supervisor.end_leftovers():
            agent.note("warning: process %d could not be ended" % pid)
        contained.remove(agent.plan, agent.marker, [rank.number for rank in supervisor.ranks])
        facts = self._facts()
        if facts.get("error"):
            agent.note("failed: %s" % facts["error"]["message"])
        files = self._outputs.pending() if self._outputs is not None else []
        data = self._data if self._outputs is not None else None
        data = data if data is not None and data.has_outputs() else None
        self._shipper.finish()
        try:
            if (files or data) and self._shipper.given_up is None:
                agent.report(agent.link(), wire.ENDED, **facts)
                self._outputs.upload(agent.link(), files)
                if data is not None:
                    data.upload(agent.link())
            if self._outputs is not None and self._outputs.kept:
                agent.note("kept %d outputs" % self._outputs.kept)
            if files or data:
                self._shipper.ship_rest()
            agent.report(agent.link(), wire.FINISHED, **facts)
        except (Refused, Abandoned) as error:
            agent.note("warning: the end could not be reported: %s" % error)
        finally:
            for thread in reporting:
                thread.end()
            agent.link().close()
        failed = supervisor.first_failure()
        return failed.exit_code if failed is not None else 0

    def _facts(self):
        """What the last reports say of the ranks."""
        supervisor = self._supervisor
        facts = {
            "ranks": [
                {"rank": rank.number, "exit_code": rank.exit_code} for rank in supervisor.ranks
            ],
            "stopped": supervisor.reason == supervision.STOPPED
            or not supervisor.ranks
            and self._agent.wake.asked_to_stop,
            "timed_out": supervisor.reason == supervision.TIMED_OUT,
        }
        failed = supervisor.first_failure()
        if facts["timed_out"]:
            limit = self._agent.plan["max_run_duration_seconds"]
            facts["error"] = {
                "code": "MaxRunDurationExceeded",
                "message": "The run took longer than max_run_duration_seconds=%g." % limit,
            }
        elif failed is not None and not facts["stopped"]:
            facts["error"] = self._diagnose(failed)
        return facts

    def _diagnose(self, rank):
        from runyard_runtime import diagnosis

        log = os.path.join(self._agent.folder, wire.driver_log(rank.number, self._total))
        tail = _tail(log, diagnosis.TAIL_BYTES)
        return diagnosis.diagnose(None if rank.is_lost else rank.exit_code, tail, rank.number)

    def _say_started(self):
        from runyard_runtime.server_link import DENIED, Refused

        try:
            self._agent.report(self._agent.link(), wire.STARTED)
        except Refused as error:
            if error.status in DENIED:
                raise  # then logs and metrics will not be taken either
            self._agent.note("warning: the start could not be reported: %s" % error)

    def _say_alive(self, link):
        from runyard_runtime.server_link import Abandoned

        try:
            self._agent.report(link, "alive", patience=0)
        except Abandoned:
            self._agent.wake.stop()

    def _checkpoint(self, link):
        self._outputs.upload(link, self._outputs.pending(only_stable=True))
        if self._data is not None:
            self._data.checkpoint(link)

    def _start_sampling(self):
        seconds = self._agent.plan.get("sample_seconds") or 0
        if seconds > 0:
            from runyard_runtime.sampling import Sampler

            name = wire.events_file("agent-%d" % self._agent.node)
            sampler = Sampler(
                os.path.join(self._agent.folder, name), self._supervisor.processes, self._fresh
            )
            self._every("sampling", seconds, sampler.sample, first=min(_FIRST_SAMPLE, seconds))

    def _new_link(self):
        link = self._agent.new_link()
        self._links.append(link)
        return link

    def _every(self, name, seconds, work, link=None, first=None):
        from runyard_runtime.periodic import Periodic

        task = work if link is None else lambda: work(link)
        thread = Periodic(name, seconds, task, self._agent.note, first)
        self._threads.append((thread, link))
        thread.start()

    def _end_threads(self):
        """End the threads but those that report, which go on while outputs are uploaded."""
        kept = []
        for thread, link in self._threads:
            if thread.name == "reporting":
                kept.append(thread)
                continue
            thread.end()
            if link is not None:
                link.abandon()
                thread.join()  # it and the end of the job share the list of what was uploaded
        return kept


def control_log(node):
    """The account of the agent on that node."""
    if node == 0:
        return wire.CONTROL_LOG
    return wire.CONTROL_LOG.replace(".txt", "_%d.txt" % node)


def _names(processes_of_all, belongs):
    total = len(processes_of_all)
    chosen = [one.rank for one in processes_of_all if belongs(one.node)]
    return {wire.driver_log(rank, total) for rank in chosen} | {
        wire.events_file(str(rank)) for rank in chosen
    }


def _tail(path, size):
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(stream.tell() - size, 0))
            return stream.read()
    except OSError:
        return b""
