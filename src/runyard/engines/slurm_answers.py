"""What Slurm answers, and what that means for a job. Pure."""

import re
import signal
from collections.abc import Mapping, Sequence

import msgspec

from runyard.domain.errors import EngineFailed, Invalid, RunyardError, Unavailable
from runyard.engines.base import JobPhase, JobStatus
from runyard.engines.slurm_script import marker_in
from runyard_runtime import node_watch, remote

# Columns of squeue and their widths: Slurm cuts what is longer, and separates by nothing.
_COLUMNS = (
    ("JobID", 24),
    ("State", 24),
    ("exit_code", 16),
    ("NumNodes", 12),
    ("Reason", 80),
    ("NodeList", 1000),
    ("Name", 300),
    ("Comment", 400),  # the last, because a user's language may need more bytes than letters
)
QUEUE_FORMAT = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
NODES_FORMAT = "%N %T"  # of sinfo, for `parse_nodes`

_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"})
_WAITS |= {"RESV_DEL_HOLD", "SPECIAL_EXIT", "POWER_UP_NODE"}
_RUNS = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_RUNS |= {"RESIZING"}

_LOST = "its agents were lost"
_NODE = re.compile(r"Node failure on (\S+)")
# What a node said that cannot run an agent, see `node_watch.BatchJob`.
_SAID = re.compile(r"Runyard (\d+): (\S*): (.*)")
# The exit codes of such a job: what it means, and the code of the run's error.
_NO_AGENT = {
    **{code: (remote.WORDS[code], name) for code, name in remote.CODES.items()},
    node_watch.NO_PYTHON: ("the node has no Python that can start an agent", "NodePython"),
}

# Why a job was ended by Slurm, and the code of the run's error.
_ENDS = {
    "NODE_FAIL": ("a node of it failed", ""),
    "BOOT_FAIL": ("a node of it could not be started", ""),
    "PREEMPTED": ("it was preempted by a job of higher priority", "Preempted"),
    "TIMEOUT": ("its time limit is over", "ClusterTimeLimit"),
    "DEADLINE": ("its deadline is over", "ClusterTimeLimit"),
    "OUT_OF_MEMORY": ("it used more memory than it asked for", "OutOfMemory"),
    "CANCELLED": ("it was cancelled in Slurm", "CanceledInCluster"),
    "REVOKED": ("another cluster took it", ""),
}
_NEVER_PLACED = "CannotBePlaced"

# Why a job waits. Limits of accounts have many names of one pattern.
_REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "it waits for resources: no nodes are free now",
    "Priority": "it waits for jobs of higher priority",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "Dependency": "it waits for another job to end",
    "BeginTime": "its time to begin has not come",
    "JobHeldUser": "it is held by its user; 'scontrol release' lets it go",
    "JobHeldAdmin": "it is held by an administrator of the cluster",
    "Licenses": "it waits for a licence",
    "Reservation": "it waits for its reservation",
    "Prolog": "a program of the cluster prepares its nodes",
    "Cleaning": "it waits for its last attempt to be cleaned up",
}
_LIMIT = re.compile(r"(?:Assoc|QOS)\w*(?:Limit|Max|Grp|Resource)\w*")
# Such a job would wait for ever.
_HOPELESS = {
    "PartitionConfig": "it asks for more nodes, larger ones, or more time than the partition has",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use the partition",
    "QOSNotAllowed": "its QOS may not be used in the partition",
    "InvalidAccount": "its account does not exist or may not be used by the server's user",
    "InvalidQOS": "its QOS does not exist or may not be used by the account",
}
# Slurm has no short word for some of them, only a sentence.
_HOPELESS_WORDS = (
    (re.compile(r"account not (?:known|permitted)", re.IGNORECASE), "AccountNotAllowed"),
    (re.compile(r"QOS not (?:known|permitted)", re.IGNORECASE), "QOSNotAllowed"),
)


def why_hopeless(reason: str) -> str:
    """Why a job can never run; empty if it may."""
    for pattern, short in _HOPELESS_WORDS:
        if pattern.search(reason):
            return _HOPELESS[short]
    return _HOPELESS.get(reason, "")


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of squeue."""

    id: str
    state: str
    exit_status: int  # as wait(2) has it
    nodes: int
    reason: str
    hosts: tuple[str, ...]
    comment: str = ""

    @property
    def is_over(self) -> bool:
        """True once nothing of it runs or will run."""
        return self.state not in _WAITS | _RUNS

    @property
    def has_lost_node(self) -> bool:
        """True if Slurm ends it, or ended it, because a node failed."""
        return self.state == "NODE_FAIL" or (
            self.reason == "NodeDown" and self.state == "COMPLETING"
        )


def parse_queue(text: str) -> dict[str, list[QueueRow]]:
    """Jobs by what `slurm_script.marker_in` finds in their names, the oldest of each first."""
    rows: dict[str, list[QueueRow]] = {}
    for line in text.splitlines():
        cells, at = [], 0
        for _, width in _COLUMNS:
            cells.append(line[at : at + width].strip())
            at += width
        number, state, status, nodes, reason, hosts, name, comment = cells
        if not number:
            continue
        row = QueueRow(
            id=number,
            state=state,
            exit_status=_number(status),
            nodes=_number(nodes) or 1,
            reason=reason,
            hosts=expand_hosts(hosts),
            comment=comment,
        )
        rows.setdefault(marker_in(name), []).append(row)
    return {marker: sorted(found, key=_age) for marker, found in rows.items()}


def choose(rows: Sequence[QueueRow], number: str) -> QueueRow | None:
    """Which of the jobs of one marker is ours; `number` is that of the one we know, or empty.

    There are several after an `sbatch` whose answer came too late: then it is the oldest, unless
    the one that we know is over. None: Slurm has it no more.
    """
    known = next((row for row in rows if row.id == number), None)
    if number and (known is None or known.is_over):
        return known
    return next((row for row in rows if not row.is_over), rows[-1] if rows else None)


def parse_nodes(text: str) -> dict[str, str]:
    """The states of nodes by name, from what `sinfo` prints for NODES_FORMAT."""
    return dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)


def is_only_on_lost(rows: Sequence[QueueRow], nodes: Mapping[str, str]) -> bool:
    """True if Slurm ends the jobs, and waits for nothing but nodes that do not answer it.

    Slurm names as a job's hosts those that have not ended it yet; a star after the state of a node
    says that it does not respond.
    """
    hosts = {host for row in rows for host in row.hosts if not row.is_over}
    is_ending = all(row.state == "COMPLETING" for row in rows if not row.is_over)
    lost = {name for name, state in nodes.items() if state.startswith("down") or "*" in state}
    return is_ending and bool(hosts) and hosts <= lost


def judge(row: QueueRow | None, *, is_stopping: bool, number: str) -> JobStatus:
    """How a job is, by what Slurm says of it; `is_stopping`: we asked it to end."""
    if row is None:
        return _gone(f"Slurm no longer knows its job {number}")
    said = _SAID.fullmatch(row.comment)
    if said and int(said[1]) in _NO_AGENT:
        # The group cannot be whole any more, so the others need not wait for that node.
        words = f"{said[3].rstrip('.')} (node {said[2]}, Slurm's job {row.id})"
        return _gone(words, _NO_AGENT[int(said[1])][1])
    if row.state in _WAITS:
        if why_hopeless(row.reason):
            return _hopeless(row)
        return JobStatus(phase=JobPhase.PENDING, detail=f"{explain_wait(row.reason)}, job {row.id}")
    if row.has_lost_node and not row.is_over:
        return _gone(f"Slurm ends its job {row.id}: {_ENDS['NODE_FAIL'][0]}")  # that may take long
    if row.state in _RUNS:
        words = f"node {said[2]} says: {said[3]}" if said else ""
        if row.state != "RUNNING":
            words = f"Slurm says: {row.state.lower()}"
        return JobStatus(phase=JobPhase.ACTIVE, hosts=row.hosts, detail=words)
    if row.state == "CANCELLED" and is_stopping and not row.hosts:
        words = "it was stopped before Slurm had started it"
        return JobStatus(phase=JobPhase.EXITED, exit_code=-signal.SIGTERM, detail=words)
    if row.state in ("COMPLETED", "FAILED"):
        return _judge_end(row)
    words, code = _ENDS.get(row.state, (f"it is {row.state}", ""))
    where = f" on {', '.join(row.hosts)}" if row.hosts else ""
    return _gone(f"Slurm ended its job {row.id}{where}: {words} ({row.state})", code)


def _judge_end(row: QueueRow) -> JobStatus:
    """How a job is whose script ended by itself, or that Slurm could not run at all."""
    code = row.exit_status >> 8
    if why_hopeless(row.reason):
        return _hopeless(row)
    if code in _NO_AGENT:
        words, name = _NO_AGENT[code]
        return _gone(f"{words} (Slurm's job {row.id} on {', '.join(row.hosts)})", name)
    if row.exit_status & 127 or code == node_watch.LOST or not row.hosts:
        return _gone(f"{_LOST} in Slurm's job {row.id} ({row.reason})")
    return JobStatus(phase=JobPhase.EXITED, exit_code=remote.exit_code(code), hosts=row.hosts)


def with_words(status: JobStatus, words: str) -> JobStatus:
    """The status with what the job's own log adds: which node it was, or all there is to know."""
    if found := _NODE.search(words):
        return msgspec.structs.replace(status, detail=f"{status.detail}: {found[1]}")
    if words and status.exit_code and not status.detail:
        return msgspec.structs.replace(status, detail=words)  # no agent ever came up, it seems
    if words and status.detail.startswith(_LOST):
        return msgspec.structs.replace(status, detail=f"{status.detail}; its last words: {words}")
    return status


def explain_wait(reason: str) -> str:
    """Why a job waits, for people."""
    short = reason.strip("()").split(",")[0].strip()
    if words := _REASONS.get(short):
        return f"{words} ({short})" if short not in ("None", "") else words
    if _LIMIT.fullmatch(short):
        return f"a limit of its account or QOS is reached ({short})"
    return f"it waits ({short})" if short else "it waits, and Slurm does not say why"


def explain_refusal(program: str, said: str, *, has_worked: bool = False) -> RunyardError:
    """The error for what one of Slurm's programs said when it failed.

    `has_worked`: Slurm has answered this server before, so what is wrong with its set-up may pass.
    """
    lines = [line.partition("error: ")[2] or line for line in said.splitlines() if line.strip()]
    why = " ".join(dict.fromkeys(lines)) or "It says nothing more."
    for pattern, what, fix, kind in _REFUSALS:
        if re.search(pattern, said, re.IGNORECASE):
            may_pass = pattern is _SET_UP and has_worked
            return (Unavailable if may_pass else kind)(what, why=why, fix=fix)
    return EngineFailed(f"Slurm's '{program}' failed.", why=why)


# Who may use the cluster, and where it is: wrong from the beginning, or a daemon that restarts.
_SET_UP = r"configuration source|slurm\.conf|munge|authentication|credential"
_FULL = "The cluster takes no further job of this account now: it has as many as it may have."
_FULL_FIX = (
    "It is tried again by itself. A compute target with 'max_nodes' lets runs wait here instead."
)
# The first that is found counts: what may pass, then what a text says most precisely.
_REFUSALS: Sequence[tuple[str, str, str, type[RunyardError]]] = (
    (r"(?:Assoc|QOS)\w*Submit\w*", _FULL, _FULL_FIX, Unavailable),
    (
        r"unable to contact slurm controller|connection refused|connection reset|timed out"
        r"|communication (?:connection|shutdown) failure|message (?:send|receive) failure"
        r"|zero bytes were transmitted|transport endpoint|standby mode|temporarily un"
        r"|try again|(?:talking|connect) to (?:the )?database",
        "Slurm's controller does not answer.",
        "Look whether slurmctld runs: 'scontrol ping'. The server asks again by itself.",
        Unavailable,
    ),
    (
        _SET_UP,
        "Slurm cannot be used from the server's machine.",
        "See that 'sinfo' works there for the server's user: slurm.conf and munge must be those "
        "of the cluster.",
        EngineFailed,
    ),
    (
        _LIMIT.pattern,
        "The cluster's limits do not allow that job.",
        "Ask for less, or ask the cluster's administrators.",
        EngineFailed,
    ),
    # An older Slurm does not say which limit it is, and of the submit limit the run is not to die.
    (r"violates accounting/qos policy", _FULL, _FULL_FIX, Unavailable),
    (
        r"invalid partition",
        "Slurm does not have that partition.",
        "'sinfo' lists the partitions; attach the compute target with one of them.",
        Invalid,
    ),
    (
        r"invalid account|account/partition combination",
        "Slurm does not take jobs of that account, or not in that partition.",
        "'sacctmgr show associations user=…' lists the accounts of the server's user.",
        Invalid,
    ),
    (r"invalid qos", "Slurm does not have that QOS, or not for that account.", "", Invalid),
    (
        r"time limit|time specification",
        "Slurm does not take that time limit.",
        "Give minutes or days-hours:minutes:seconds, no more than the partition allows.",
        Invalid,
    ),
    (
        r"node configuration is not available|memory specification|generic resource"
        r"|feature specification"
        r"|more processors|node count|cpu count|\bgres\b",
        "No node of the cluster has what the job asks for.",
        "'sinfo -N -o \"%N %c %m %G\"' shows what nodes have; choose a smaller size or another "
        "partition.",
        Invalid,
    ),
    (
        r"job size|limit",
        "The cluster's limits do not allow that job.",
        "Ask for less, or ask the cluster's administrators.",
        EngineFailed,
    ),
)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names in Slurm's short form: "gpu[1-2,07],head" is gpu1, gpu2, gpu07, head."""
    names: list[str] = []
    for prefix, ranges, suffix, plain in _HOSTS.findall(text):
        if plain:
            names.append(plain)
        for one in ranges.split(",") if ranges else ():
            first, _, last = one.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{prefix}{number:0{len(first)}d}{suffix}")
    return tuple(names)


_HOSTS = re.compile(r"([^\[\],]*)\[([\d,-]+)\]([^\[\],]*)|([^\[\],]+)")


def _hopeless(row: QueueRow) -> JobStatus:
    return _gone(f"Slurm cannot run its job {row.id}: {why_hopeless(row.reason)}", _NEVER_PLACED)


def _gone(words: str, code: str = "") -> JobStatus:
    return JobStatus(phase=JobPhase.GONE, detail=words, node_lost=True, code=code)


def _age(row: QueueRow) -> int:
    return _number(row.id)


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else 0
