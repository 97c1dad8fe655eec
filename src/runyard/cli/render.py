"""Records as words: pure functions from what the server says to what a person reads."""

import shlex
from collections import Counter
from datetime import datetime, timedelta

from runyard.cli.console import Cell
from runyard.domain.compute import NodeUse
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.metrics import MetricKind, Series
from runyard.domain.runs import Attempt, RunError, RunRecord, attempt_words, error_place
from runyard.domain.states import RunState

CHILD_MARK = "↳ "

COLOUR_OF_STATE = {
    RunState.COMPLETED: "green",
    RunState.FAILED: "red",
    RunState.CANCELED: "yellow",
    RunState.CANCEL_REQUESTED: "yellow",
    RunState.RUNNING: "blue",
}


def state_cell(state: RunState) -> Cell:
    """The state in its colour."""
    return Cell(str(state), COLOUR_OF_STATE.get(state, ""))


def render_span(span: timedelta) -> str:
    """A duration in at most two units: 3.2s, 4m 10s, 2h 5m, 3d 4h."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, size, smaller, small in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small}{smaller}"
    return f"{whole}s"


def render_age(then: datetime, now: datetime) -> str:
    """How long ago, in one unit: 5s, 3m, 2h, 4d."""
    seconds = max(0, int((now - then).total_seconds()))
    return f"{seconds}s" if seconds < 10 else render_span(timedelta(seconds=seconds)).split()[0]


def duration(run: RunRecord, now: datetime) -> timedelta | None:
    """How long the script has run; None if it has not begun."""
    if run.started is None:
        return None
    return (run.ended or now) - run.started


def remark(run: RunRecord) -> str:
    """The one line that matters beside the state: what it waits for, or the first error."""
    if run.error is not None:
        return run.error.message.strip().partition("\n")[0]
    if run.waiting or not run.attempts:
        return run.waiting
    why = run.attempts[-1].error.message.strip().partition("\n")[0]
    return f"{attempt_words(run)}, after: {why}"


def run_row(run: RunRecord, now: datetime, *, everywhere: bool = False) -> list[Cell]:
    """A line of `runyard ls`; `everywhere`: with the workspace."""
    spent = duration(run, now)
    return [
        Cell(f"{CHILD_MARK if run.spec.parent else ''}{run.id}", "bold"),
        *([Cell(run.spec.workspace)] if everywhere else ()),
        Cell(run.spec.experiment),
        state_cell(run.state),
        Cell(render_age(run.created, now)),
        Cell("" if spent is None else render_span(spent)),
        Cell(remark(run), "" if run.error is None else COLOUR_OF_STATE.get(run.state, "")),
    ]


def run_headers(*, everywhere: bool = False) -> tuple[str, ...]:
    """What stands above these lines."""
    more = ("WORKSPACE",) if everywhere else ()
    return ("RUN", *more, "EXPERIMENT", "STATE", "AGE", "DURATION", "NOTE")


def command_line(run: RunRecord) -> str:
    """What the run executes, as one would type it."""
    script = run.spec.script
    if script is None:
        return ""
    if script.is_command:
        return " ".join(script.arguments)
    return shlex.join(("python", *script.arguments))


def nodes_line(run: RunRecord) -> str:
    """The nodes of a cluster that the run has, where, and what it has there; empty on `local`."""
    return ", ".join(_node(one) for one in run.nodes if one.host or one.cores is not None)


def _node(node: NodeUse) -> str:
    where = f"{node.id} on {node.host}" if node.host else node.id
    if not node.cores:  # what the cluster gives
        return where
    return f"{where} (cores: {node.cores}" + (
        f", GPUs: {' '.join(node.gpus)})" if node.gpus else ", no GPU)"
    )


def target_line(run: RunRecord) -> str:
    """The compute target of a run, with its cluster's own name for the job."""
    if run.spec.script is None:
        return ""
    return run.spec.script.target + (f", job {run.cluster_job}" if run.cluster_job else "")


def environment_line(spec: EnvironmentSpec) -> str:
    """What kind of environment was asked for."""
    if spec.user_managed:
        return f"{spec.name} (the interpreter {spec.interpreter}, as it is)"
    packages = len(spec.pip) + len(spec.conda)
    python = f"Python {spec.python}, " if spec.python else ""
    return f"{spec.name} ({python}{packages} package{'' if packages == 1 else 's'})"


def error_text(run: RunRecord) -> str:
    """Why the run failed, with its traceback."""
    if run.error is None:
        return ""
    return failure_text(run.error)


def failure_text(error: RunError) -> str:
    """An error: its code, where it happened, its words and the traceback."""
    where = error_place(error)
    place = f" ({', '.join(where)})" if where else ""
    head = f"{error.code}{place}: {error.message}"
    trace = error.traceback.strip("\n")
    return f"{head}\n{trace}" if trace and trace not in head else head


def attempt_line(attempt: Attempt) -> str:
    """An attempt that failed: how long it ran, where, and why it ended."""
    spent = attempt.started and render_span(attempt.ended - attempt.started)
    ran = f"failed after {spent}" if spent else "failed before its script ran"
    nodes = ", ".join(node.host or node.id for node in attempt.nodes)
    nodes += f" (job {attempt.cluster_job})" if nodes and attempt.cluster_job else ""
    return f"{ran}{f' on {nodes}' if nodes else ''}: {failure_text(attempt.error)}"


def last_values(series: list[Series]) -> dict[str, str]:
    """The last value of each metric, of whatever kind; marked with how many there are."""
    last: dict[str, tuple[float, object]] = {}
    counts: Counter[str] = Counter()
    for one in series:
        if one.kind is MetricKind.SYSTEM or not one.values:
            continue
        counts[one.name] += len(one.values)
        newest = (one.times[-1], one.values[-1])
        last[one.name] = max(last.get(one.name, newest), newest, key=lambda point: point[0])
    return {
        name: value_text(value) + (f"  (last of {counts[name]})" if counts[name] > 1 else "")
        for name, (_, value) in last.items()
    }


def value_text(value: object) -> str:
    """A logged value, shortened."""
    if isinstance(value, dict) and set(value) == {"f"}:  # NaN and infinities, as they travel
        return str(value["f"])
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def size_text(size: int) -> str:
    """A number of bytes: 512 B, 3.4 kB, 1.2 GB."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
