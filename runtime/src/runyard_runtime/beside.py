"""What goes on beside the ranks: shipping, reports, checkpoints, samples; and the end.

Of several agents, only the leader's reports move the run; the others say that they live, and tell
the leader how their ranks ended (see `gang`).
"""

import os

from runyard_runtime import contained, job_folder, node_storage, supervision, wire

ALIVE_SECONDS = 5.0  # between two reports that say only that we live
DENIED_SECONDS = 300.0  # that a server which does not know the run any more is doubted
CHECKPOINT_SECONDS = 30.0  # between two looks for new outputs, unless the plan says otherwise
_FIRST_SAMPLE = 1.0
_MOUNT_LOOK = 1.0
_MOST_CANDIDATES = 8  # of a node: a note that all agents read should stay short


class Beside:
    """What an agent does while its ranks run, and when they are over."""

    def __init__(self, agent, supervisor, fresh):
        from runyard_runtime.outputs import Outputs

        self._agent = agent
        self._supervisor = supervisor
        self._gang = agent.gang
        self._logs = {one.rank: one.log for one in agent.processes}
        self._consequences = {}  # rank → whether its failure is one
        self._fresh = fresh
        self._shipper = new_shipper(agent, fresh)
        work = os.path.join(agent.folder, wire.WORK_DIR)
        keeps = agent.keeps_work
        self._outputs = Outputs(agent.plan["run_id"], work, agent.note) if keeps else None
        if keeps and agent.plan.get("restore"):
            from runyard_runtime import restoring

            self._outputs.take_as_kept(restoring.restored(agent))
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
            if agent.plan.get("environments"):
                self._every("staying", node_storage.TOUCH_SECONDS, self._touch)
            self._start_sampling()

    def _touch(self):
        node_storage.touch(self._agent.plan)

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
        own = self._own_facts()
        facts = self._facts_of_all(own)
        try:
            if self._gang is None or self._gang.leads:
                self._end_job(facts)
            else:
                self._end_share()
            agent.is_shipped = self._shipper.given_up is None
        except (Refused, Abandoned) as error:
            agent.trouble = str(error)
            agent.note("warning: the end could not be reported: %s" % error)
        finally:
            for thread in reporting:
                thread.end()
            agent.link().close()
        return _exit_code(facts)

    def _end_share(self):
        """The end of a member: the leader hears of it, and reports."""
        try:
            self._shipper.finish()
            if self._outputs is not None:
                self._keep(self._outputs.pending(), self._data_to_keep())
        finally:
            self._gang.post("shipped")  # or all that the server takes

    def _end_job(self, facts):
        """The end of the job."""
        agent = self._agent
        if facts.get("error"):
            agent.note("failed: %s" % facts["error"]["message"])
        files, data = self._outputs.pending(), self._data_to_keep()
        self._shipper.finish()
        if self._gang is not None:
            self._gang.wait_for_shipped()
            if agent.plan.get("board") == "server":
                # Others may have kept another file of the same name since: the first node's counts.
                files = self._outputs.written()
                if self._data is not None:
                    self._data.keep_again()
                    data = self._data_to_keep()
        phase = facts.pop("phase", wire.FINISHED)
        if (files or data) and self._shipper.given_up is None:
            agent.report(agent.link(), wire.ENDED, **facts)
        self._keep(files, data)
        agent.report(agent.link(), phase, **facts)

    def _keep(self, files, data):
        """Upload what the ranks left in their folders."""
        agent = self._agent
        if self._shipper.given_up is None:
            self._outputs.upload(agent.link(), files)
            if data is not None:
                data.upload(agent.link())
        if self._outputs.kept:
            agent.note("kept %d outputs" % self._outputs.kept)
        if files or data:
            self._shipper.ship_rest()

    def _data_to_keep(self):
        return self._data if self._data is not None and self._data.has_outputs() else None

    def _own_facts(self):
        """What is known of the ranks of this node."""
        supervisor = self._supervisor
        stopped = supervisor.reason == supervision.STOPPED
        stopped = stopped or not supervisor.ranks and self._agent.wake.asked_to_stop
        stopped = stopped or self._agent.was_taken_away(supervisor.ranks)
        return {
            "ranks": [
                {"rank": rank.number, "exit_code": 0 if rank.is_done else rank.exit_code}
                for rank in supervisor.ranks
            ],
            "stopped": stopped,
            "why": self._agent.why_stopped() if stopped else None,
            "timed_out": supervisor.reason == supervision.TIMED_OUT,
            "candidates": self._candidates(),
        }

    def _candidates(self):
        """The ranks that failed, each with what its log says of it; the likeliest first."""
        supervisor = self._supervisor
        failed = [rank for rank in supervisor.ranks if rank.has_failed]
        failed.sort(key=lambda rank: (supervisor.is_ended_by_us(rank), rank.ended_at, rank.number))
        starter = supervisor.starter_failure()
        return ([] if starter is None else [starter]) + [
            {
                "rank": rank.number,
                "node": self._agent.node,
                "host": None if self._agent.plan.get("one_machine") else os.uname()[1],
                "exit_code": None if rank.is_lost else rank.exit_code,
                "ended_at": rank.ended_at,
                "ended_by_us": supervisor.is_ended_by_us(rank),
                "error": self._diagnose(rank),
            }
            for rank in failed[:_MOST_CANDIDATES]
        ]

    def _facts_of_all(self, own):
        """What the last reports say: of all nodes if this one leads, else of its own ranks."""
        facts = dict(own)
        if self._gang is not None:
            from runyard_runtime import gang

            self._gang.say_over(own)
            if self._gang.leads:
                self._gang.read()  # our own note, too
                facts = gang.combined(self._gang.over.values(), self._gang.failed)
        candidates, why = facts.pop("candidates"), facts.pop("why")
        if facts["timed_out"]:
            limit = self._agent.plan["max_run_duration_seconds"]
            facts["error"] = {
                "code": "MaxRunDurationExceeded",
                "message": "The run took longer than max_run_duration_seconds=%g." % limit,
            }
        elif self._gang is not None and self._gang.cannot is not None and not facts["stopped"]:
            facts["error"] = self._gang.error_of_other()
            facts["phase"] = wire.FAILED
        elif candidates and not facts["stopped"]:
            facts["error"] = self._cause(candidates, facts["ranks"])
        elif facts["stopped"] and why is not None:
            facts["error"] = why
        return facts

    def _cause(self, candidates, ends):
        from runyard_runtime import diagnosis

        nodes = self._agent.plan.get("nodes") or 1
        candidates = self._supervisor.starter.explain(candidates)
        good = [one["rank"] for one in ends if one["exit_code"] == 0]
        names = {rank: wire.task_name(log) for rank, log in self._logs.items()}
        places = self._agent.plan.get("node_ids") or ()
        return diagnosis.choose_cause(candidates, len(self._logs), nodes, good, names, places)

    def _diagnose(self, rank):
        from runyard_runtime import diagnosis

        log = os.path.join(self._agent.folder, self._logs[rank.number])
        tail = job_folder.tail(log, diagnosis.TAIL_BYTES)
        return diagnosis.diagnose(None if rank.is_lost else rank.exit_code, tail, rank.number)

    def is_consequence(self, rank):
        """Whether a rank that failed did so because another had, as far as its log tells."""
        from runyard_runtime import diagnosis

        if rank.number not in self._consequences:
            self._consequences[rank.number] = diagnosis.is_consequence(self._diagnose(rank))
        return self._consequences[rank.number]

    def _say_started(self):
        from runyard_runtime.server_link import DENIED, SUPERSEDED, Refused

        try:
            leads = self._gang is None or self._gang.leads
            self._agent.report(self._agent.link(), wire.STARTED if leads else wire.ALIVE)
        except Refused as error:
            if error.status in DENIED or error.status == SUPERSEDED:
                raise  # then logs and metrics will not be taken either
            self._agent.note("warning: the start could not be reported: %s" % error)

    def _say_alive(self, link):
        from runyard_runtime.server_link import SUPERSEDED, Abandoned, Refused

        plan = self._agent.plan
        try:
            patience = plan.get("denied_seconds", DENIED_SECONDS)
            self._agent.report(link, wire.ALIVE, patience=patience)
        except Abandoned:
            self._agent.wake.stop()
        except Refused as error:
            # Whoever does not know our token may be the server of another home, or ours with a
            # wrong secret or name: that ends no training. Only ours knows that nobody wants it.
            if error.status != SUPERSEDED and not (error.status == 404 and error.is_told):
                raise
            self._agent.note("ending the ranks: nobody wants this run any more, %s" % error)
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
            path = os.path.join(self._agent.folder, name)
            group = "system" if self._gang is None else "system/node%d" % self._agent.node
            sampler = Sampler(path, self._supervisor.processes, self._fresh, group)
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


def new_shipper(agent, fresh):
    """What ships the logs and events of an agent's node: each file is one agent's."""
    from runyard_runtime.shipping import Shipper

    nodes = range(agent.plan.get("nodes") or 1)
    theirs = [_names(agent, node) for node in nodes if node != agent.node]
    return Shipper(
        agent.link(),
        agent.plan,
        agent.folder,
        agent.own,
        frozenset().union(*theirs),
        None if agent.keeps_work else _names(agent, agent.node),
        agent.note,
        fresh,
        wire.logs_folder(agent.node) if agent.keeps_work else "logs",
    )


def control_log(node):
    """The account of the agent on that node."""
    if node == 0:
        return wire.CONTROL_LOG
    return wire.CONTROL_LOG.replace(".txt", "_%d.txt" % node)


def _names(agent, node):
    """The files that are that node's to ship."""
    own = [one for one in agent.processes if one.node == node]
    names = {one.log for one in own} | {wire.events_file(str(one.rank)) for one in own}
    names |= {control_log(node), wire.mpirun_log(node)}
    return names | {wire.events_file("agent-%d" % node)}


def _exit_code(facts):
    """The code of the rank that is the cause, else of the first that failed; 1 if none ran."""
    error = facts.get("error") or {}
    failed = [one["exit_code"] for one in facts["ranks"] if one["exit_code"]]
    return error.get("exit_code") or (failed[0] if failed else int(bool(error)))
