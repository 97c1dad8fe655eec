"""A run: what was asked (`RunSpec`) and what the platform knows of it (`RunRecord`)."""

import re
from datetime import datetime
from enum import StrEnum
from signal import Signals

import msgspec

from runyard.domain.compute import NodeUse
from runyard.domain.data import DataInput, DataOutput
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.files import Manifest
from runyard.domain.secrets import redact_all
from runyard.domain.states import RunState

LOCAL = "local"  # the compute target every workspace has


class RunKind(StrEnum):
    """What stands behind a run; the words are v1's `run.type`."""

    SCRIPT = "azureml.scriptrun"  # the platform runs a script
    INTERACTIVE = "interactive"  # somebody's own process logs to it
    SERVICE = "azureml.service"  # the processes of a service; never listed, never queued


class LauncherSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How processes are laid over nodes; `kind` names a row of the runtime's launcher table."""

    kind: str = "single"
    nodes: int = 1
    processes_per_node: int = 1
    workers: int = 1
    parameter_servers: int = 0
    backend: str = ""


class ScriptSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A script, or a command, with all it needs."""

    arguments: tuple[str, ...]  # script mode: the script first, then its arguments
    is_command: bool = False  # True: `arguments` is run as it is, without the interpreter
    snapshot: str  # id of the source tree, see files.manifest_digest
    environment: EnvironmentSpec
    variables: dict[str, str] = {}
    launcher: LauncherSpec = LauncherSpec()
    target: str = LOCAL
    max_run_duration_seconds: int | None = None
    max_restarts: int = 0
    inputs: tuple[DataInput, ...] = ()
    outputs: tuple[DataOutput, ...] = ()


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    workspace: str
    experiment: str
    id: str | None = None  # None: the server makes one in v1's form
    kind: RunKind = RunKind.SCRIPT
    parent: str | None = None
    display_name: str | None = None
    script: ScriptSpec | None = None  # None: an interactive run
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    definition: dict[str, object] = {}  # v1's `runDefinition`, kept as it was sent
    warnings: tuple[str, ...] = ()  # what was chosen for the user at submit; shown with the run's
    submitted_by: str = ""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A run spec together with the source tree that its snapshot id stands for."""

    spec: RunSpec
    manifest: Manifest | None = None


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed or was canceled, in words."""

    code: str  # UserError, EnvironmentFailed, NodeLost, MaxRunDurationExceeded, …
    message: str
    rank: int | None = None
    node: int | None = None  # the index of the node the rank ran on, where there are several
    exit_code: int | None = None  # negative: the signal that killed the rank
    traceback: str = ""


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """A state the run entered, and when."""

    state: RunState
    at: datetime


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed and was followed by another one."""

    attempt: int  # from 1
    started: datetime | None = None  # None: its script never ran
    ended: datetime
    error: RunError
    nodes: tuple[NodeUse, ...] = ()
    job: str | None = None  # the engine's id of it
    cluster_job: str = ""  # what the cluster itself called it


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform knows of a run: an immutable snapshot with a `version`."""

    id: str
    uid: str  # ours, never the user's: safe in paths
    spec: RunSpec
    version: int = 0  # the store counts it; see stores.base.Records.replace
    number: int = 0  # within the experiment, from 1; given by the store at insert
    state: RunState = RunState.NOT_STARTED
    waiting: str = ""  # what an unfinished run waits for, in words
    error: RunError | None = None
    warnings: tuple[str, ...] = ()
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    history: tuple[Transition, ...] = ()
    tags: dict[str, str | None] = {}
    properties: dict[str, str] = {}
    display_name: str = ""
    attempt: int = 1
    attempts: tuple[Attempt, ...] = ()  # those before the present one, in order
    job: str | None = None  # the engine's id of the running incarnation
    cluster_job: str = ""  # what its cluster calls that: a number of Slurm, a name of Ray
    environment: EnvironmentUse | None = None
    nodes: tuple[NodeUse, ...] = ()  # where it works, or worked last
    takeovers: int = 0  # how often a lost agent was replaced, of late
    taken_over: datetime | None = None  # when it was the last time


def all_warnings(run: RunRecord) -> tuple[str, ...]:
    """What was chosen for the user or left out, at submit and since."""
    return tuple(dict.fromkeys((*run.spec.warnings, *run.warnings)))


def attempt_words(run: RunRecord) -> str:
    """Which of its attempts a run is at, "attempt 2 of 3"; empty for one that is not repeated."""
    if run.spec.script is None or not run.spec.script.max_restarts:
        return ""
    return f"attempt {run.attempt} of {run.spec.script.max_restarts + 1}"


def process_names(launcher: LauncherSpec) -> list[str]:
    """What the processes of a run are called, in the order of their ranks: 0, 1, or worker_0, …"""
    if launcher.kind == "tensorflow":
        names = [f"worker_{index}" for index in range(launcher.workers)]
        return names + [f"ps_{index}" for index in range(launcher.parameter_servers)]
    each = 1 if launcher.kind == "single" else launcher.nodes * launcher.processes_per_node
    return [str(rank) for rank in range(each)]


_KINDS = {"mpi": "MPI", "pytorch": "PyTorch", "tensorflow": "TensorFlow"}


def launcher_words(launcher: LauncherSpec) -> str:
    """How a run's processes are laid out: their kind, nodes and number; empty for a plain one."""
    kind, nodes = _KINDS.get(launcher.kind, ""), plural(launcher.nodes, "node")
    if not kind:
        return ""
    if launcher.kind == "tensorflow":
        tasks = plural(launcher.workers, "worker")
        if launcher.parameter_servers:
            tasks += f" and {plural(launcher.parameter_servers, 'parameter server')}"
        return f"{kind}, {tasks} on {nodes}"
    backend = f" ({launcher.backend})" if launcher.backend else ""
    each = plural(launcher.processes_per_node, "process", "processes")
    return f"{kind}{backend}, {nodes} × {each}"


def plural(count: int, one: str, many: str = "") -> str:
    """A number of things: 1 node, 2 nodes."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def failed_process(run: RunRecord) -> str:
    """The name of the process that failed, where the run has several; else empty."""
    if run.error is None or run.error.rank is None or run.spec.script is None:
        return ""
    names = process_names(run.spec.script.launcher)
    return names[run.error.rank] if 1 < len(names) > run.error.rank else ""


def log_command(run: RunRecord) -> str:
    """What to type to see why a run failed: the log of the process that did."""
    failed = failed_process(run)
    return f"runyard logs {run.id}" + (f" --rank {failed}" if failed else "")


# How messages of the agents begin that say whose they are.
_NAMES_ITSELF = re.compile(r"(?:Rank \d+|worker_\d+|ps_\d+)\b")


def error_place(error: RunError) -> list[str]:
    """Where it happened and how the process ended: rank 3, node 1, signal SIGKILL.

    What the error's own words say is not said again.
    """
    place = []
    if not _NAMES_ITSELF.match(error.message):
        place += [] if error.rank is None else [f"rank {error.rank}"]
        place += [] if error.node is None else [f"node {error.node}"]
    if error.exit_code is not None:
        words = exit_words(error.exit_code)
        if not re.search(rf"\b{re.escape(words)}\b", error.message):
            place.append(words)
    return place


def exit_words(code: int) -> str:
    """An exit code as people read it; a negative one is the signal that killed the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class RunPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A change to a run's labels. Properties may be added, never changed."""

    display_name: str | None = None
    set_tags: dict[str, str | None] = {}
    remove_tags: tuple[str, ...] = ()
    add_properties: dict[str, str] = {}


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first, and where to go on."""

    runs: tuple[RunRecord, ...]
    next: str | None = None  # pass as `after`; None: this was the last page


def redact_run(run: RunRecord) -> RunRecord:
    """The run without the credentials of URLs in what was asked for (indexes, channels, images)."""
    spec = redact_all(run.spec)
    return run if spec is run.spec else msgspec.structs.replace(run, spec=spec)
