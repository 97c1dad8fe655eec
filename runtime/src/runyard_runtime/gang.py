"""Several nodes as one job: who leads, who is there, what ends all.

Every node has its agent. Node 0's is the *leader* and speaks for the job to the server; the
others are *members*: what they have to say goes to the leader over the `board`. A note is

    here      I am up: address, hostname, ports; `facts` of what starts the ranks
    ready     my share of the preparations is done; `facts`, if they were not known before
    group     (leader, once) all are ready: the hosts in order, and what ranks are told of data.
              Before this note no rank starts
    ended     these ranks of mine are over and good; only in jobs whose ranks do not all end
    failed    a rank of mine failed: rank, exit_code, at. All end their ranks
    cannot    I cannot do my share: error. All end
    stop      the job is to end: reason
    over      my ranks are over: ranks, candidates for the job's error, stopped, timed_out, why (the
              error of a job whose nodes were taken away)
    shipped   what my ranks left is on the server

Other kinds belong to what starts the ranks, see `ranks`. An agent that takes over reads all of
them anew, so it makes no difference whether it or its predecessor saw them.
"""

import time

from runyard_runtime import board, launch, ranks, supervision

GROUP_SECONDS = 300.0  # for all agents to come up, unless the plan says otherwise
_SOON_LOOK, _SOON_SECONDS = 0.01, 5.0  # agents that are started together come up together
_CLOCK_SECONDS = 60.0  # less may be a note that was left late
_LAST_WORDS_SECONDS = 30.0  # how long a leader that gives up waits for the logs of others


class GroupNotFormed(ranks.CannotBegin):
    """Not all nodes came up; the text says which."""


class NodeFailed(ranks.CannotBegin):
    """Another node cannot do its share. `code` is that of its error."""

    def __init__(self, error):
        ranks.CannotBegin.__init__(self, error["message"])
        self.code = error["code"]


class Gang:
    """The nodes of a job, as one of their agents sees them."""

    def __init__(self, agent):
        plan = agent.plan
        self._agent = agent
        self._board = _open_board(agent)
        self._node = agent.node
        self._nodes = plan["nodes"]
        self._names = plan.get("node_ids") or ()
        self._seconds = plan.get("group_seconds") or GROUP_SECONDS
        self._since = 0
        self._unseen = []  # notes that what starts the ranks has not seen
        self._said = set()  # what is said once and needs no look at the board
        self.leads = agent.node == 0
        self.here = {}  # node → its note
        self.ready = {}  # node → its note
        self.group = None
        self.good = set()  # ranks of all nodes that are over and good
        self.failed = []  # such notes, in order
        self.cannot = None  # the first such note
        self.stop_reason = None
        self.over = {}  # node → its note
        self.shipped = set()
        self.read()

    def post(self, kind, **facts):
        """Leave a note for the others."""
        self._board.post(dict(facts, node=self._node, kind=kind))

    def read(self):
        """Take in the new notes."""
        notes, self._since = self._board.read(self._since)
        for note in notes:
            self._take(note)
        self._unseen += notes

    def come(self, host, facts):
        """Say that this node is up; once."""
        if self._node not in self.here:
            self.post("here", facts=facts, **host._asdict())

    def gather(self, data, facts=None):
        """Wait until all nodes are ready; the hosts in order, and the data that ranks are told.

        `data` is what the leader knows of it; `facts` are those that were not known when this node
        came up. GroupNotFormed, or NodeFailed, if it is not to be.
        """
        if self.group is None:
            self._check_whether_to_go_on()
            self.post("ready", **({} if facts is None else {"facts": facts}))
        if self.leads and self.group is None:
            self._wait_for(lambda: len(self.here) == self._nodes, self._seconds)
            self._wait_for(lambda: len(self.ready) == self._nodes)
            hosts = [self._host(node) for node in range(self._nodes)]
            self.post("group", hosts=hosts, data=data)
        # A leader that never came up can say nothing. One that did says what it cannot do, however
        # long it prepares; and if it is lost, its engine sees to that.
        self._wait_for(lambda: 0 in self.here, 2 * self._seconds)
        self._wait_for(lambda: self.group is not None)
        hosts = [launch.Host(*one) for one in self.group["hosts"]]
        return hosts, self.group["data"]

    def facts(self):
        """What every node said of what starts its ranks, in order."""
        return [
            self.ready.get(node, {}).get("facts", self.here[node]["facts"])
            for node in range(self._nodes)
        ]

    def look(self, supervisor, good):
        """Tell the others what happened here; (why all must end or None, the new notes)."""
        self._board.listen()
        self.read()
        notes, self._unseen = self._unseen, []
        failed = supervisor.failure_to_end_for()
        if failed is not None and not supervisor.is_ended_by_us(failed):
            self._say("failed", rank=failed.number, exit_code=failed.exit_code, at=failed.ended_at)
        elif supervisor.starter_failure() is not None:
            self._say("failed", rank=None, exit_code=None, at=time.time())
        if supervisor.reason in (supervision.STOPPED, supervision.TIMED_OUT):
            self._say("stop", reason=supervisor.reason)
        if supervisor.idle_ranks is not None and good - self.good:
            if self._try_to_post("ended", ranks=sorted(good - self.good)):
                self.good |= good
        return self.why_end(), notes

    def why_end(self):
        """Why the ranks of all nodes must end; None if they need not."""
        if self.stop_reason is not None:
            return self.stop_reason
        return supervision.RANK_FAILED if self.failed or self.cannot is not None else None

    def is_over(self):
        """True if an agent whose ranks are over need not wait: a leader waits for all others."""
        return not self.leads or all(node in self.over for node in self._others())

    def wait_for_shipped(self, seconds=None):
        """Until the others have shipped what their ranks left; at most so long."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._agent.is_wanted() and (deadline is None or time.monotonic() < deadline):
            if all(node in self.shipped for node in self._others()):
                return
            self._board.wait(board.LOOK_SECONDS)
            self.read()

    def give_up(self, error):
        """Tell the others that there is nothing to be done, unless they told us."""
        if self.cannot is None:
            self.post("cannot", error=error)
        ended = {"stopped": False, "timed_out": False, "why": None}
        self.say_over(dict(ended, ranks=[], candidates=[]))

    def wait_for_last_words(self):
        """Until those others that came up have shipped their logs, or long enough."""
        self.wait_for_shipped(_LAST_WORDS_SECONDS)

    def say_over(self, facts):
        """Say that the ranks of this node are over."""
        self.post("over", **facts)

    def name_of(self, node):
        """A node for people."""
        if node < len(self._names):
            return "Node %d (%s)" % (node, self._names[node])
        return "Node %d" % node

    def _say(self, kind, **facts):
        # Ranks must be ended whether or not the disk has room for a note.
        if kind not in self._said and self._try_to_post(kind, **facts):
            self._said.add(kind)

    def _try_to_post(self, kind, **facts):
        return self._board.try_to_post(dict(facts, node=self._node, kind=kind))

    def _take(self, note):
        kind, node = note.get("kind"), note.get("node")
        if kind == "here":
            self.here.setdefault(node, note)
        elif kind == "ready":
            self.ready.setdefault(node, note)
        elif kind == "group":
            self.group = self.group or note
        elif kind == "ended":
            self.good.update(note["ranks"])
        elif kind == "failed":
            self.failed.append(note)
        elif kind == "cannot":
            self.cannot = self.cannot or note
        elif kind == "stop":
            self.stop_reason = self.stop_reason or note["reason"]
        elif kind == "over":
            self.over[node] = note
            self.good.update(one["rank"] for one in note["ranks"] if not one["exit_code"])
        elif kind == "shipped":
            self.shipped.add(node)

    def _others(self):
        """The nodes to wait for: without a group no rank ran, so only those that came up."""
        nodes = range(self._nodes) if self.group is not None else self.here
        return [node for node in nodes if node != self._node]

    def _host(self, node):
        note = self.here[node]
        return launch.Host(note["address"], note["hostname"], note["ports"])

    def _wait_for(self, check, seconds=None):
        begun = time.monotonic()
        while True:
            self.read()
            if self.group is None:  # else ranks may run, and are ended as ranks are
                self._check_whether_to_go_on()
            if check():
                return
            if seconds is not None and time.monotonic() >= begun + seconds:
                raise GroupNotFormed(self._who_is_missing(seconds))
            is_soon = time.monotonic() < begun + _SOON_SECONDS
            self._board.wait(_SOON_LOOK if is_soon else board.LOOK_SECONDS)
            self._agent.pause(0)

    def _check_whether_to_go_on(self):
        if self.cannot is not None:
            raise NodeFailed(self.error_of_other())
        if self.stop_reason is not None or not self._agent.is_wanted():
            self._agent.wake.stop()
        self._agent.pause(0)

    def error_of_other(self):
        """The error of the node that cannot do its share, with its name."""
        error = self.cannot["error"]
        if self.cannot["node"] == self._node:
            return error
        text = "%s: %s" % (self.name_of(self.cannot["node"]), error["message"])
        return dict(error, message=text)

    def _who_is_missing(self, seconds):
        if self.leads:
            missing = [node for node in range(self._nodes) if node not in self.here]
        else:
            missing = [0]
        names = " and ".join(self.name_of(node).replace("Node", "node", 1) for node in missing)
        return (
            "%s of %d %s not come up within %g s: the engine may lack room for all nodes at once, "
            "or their machines cannot reach %s. Ask for fewer nodes, or look at the engine's own "
            "log."
            % (
                names[:1].upper() + names[1:],
                self._nodes,
                "has" if len(missing) == 1 else "have",
                seconds,
                "the server" if self._agent.plan.get("board") == "server" else "the job's folder",
            )
        )


def combined(notes, failed=()):
    """What the last report says, from the `over` notes of all nodes; the error not yet. Pure.

    `failed` are the notes of that kind in order: they show whose clock is behind.
    """
    behind = clocks_behind(failed)
    ends = [one for note in notes for one in note["ranks"]]
    return {
        "ranks": sorted(ends, key=lambda one: one["rank"]),
        "stopped": any(note["stopped"] for note in notes),
        "timed_out": any(note["timed_out"] for note in notes),
        "why": next((note["why"] for note in notes if note.get("why")), None),
        "candidates": [
            _later(one, behind.get(note["node"], 0)) for note in notes for one in note["candidates"]
        ],
    }


def clocks_behind(failed):
    """{node: seconds} that its clock is behind those of others, where its note shows it. Pure.

    Notes stand in the order in which they were left, whatever the clocks of their nodes say: else
    the error of a job would be that of the node whose clock is slow.
    """
    found, latest = {}, None
    for note in failed:
        node, at = note["node"], note.get("at")
        if at is None or node in found:
            continue
        is_behind = latest is not None and latest - at > _CLOCK_SECONDS
        found[node] = latest - at if is_behind else 0
        latest = max(latest or 0, at + found[node])
    return found


def _later(candidate, seconds):
    if not seconds or candidate.get("ended_at") is None:
        return candidate
    return dict(candidate, ended_at=candidate["ended_at"] + seconds)


def _open_board(agent):
    kind = agent.plan.get("board") or "folder"
    if kind not in board.BOARDS:
        known = ", ".join(sorted(board.BOARDS))
        raise ranks.CannotBegin("There is no board '%s'; this runtime has: %s." % (kind, known))
    return board.BOARDS[kind](agent.folder, agent.wake)
