"""What the pages show: values in, HTML out. Everything is escaped; names are hostile."""

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import quote, urlencode

import msgspec

from runyard import __version__
from runyard.domain.errors import ErrorBody
from runyard.domain.files import FileEntry, FileInfo
from runyard.domain.metrics import MetricKind, Series
from runyard.domain.models import ModelLineage, ModelPage, ModelRecord
from runyard.domain.runs import RunRecord, all_warnings, attempt_words, error_place, launcher_words
from runyard.domain.services import ServiceState
from runyard.domain.states import TERMINAL, RunState
from runyard.domain.workspaces import WorkspaceRecord
from runyard.server.images import SUFFIXES
from runyard.server.logtail import LogTail
from runyard.server.metric_tables import plan_table

if TYPE_CHECKING:
    from jinja2 import Environment

_CHART_WIDTH, _CHART_HEIGHT, _CHART_POINTS = 240, 44, 240
_LONGEST_VALUE = 300
_LONGEST_CELL = 80
_LONGEST_NAME = 120
_IMAGES = 24
_SNAPSHOT_FILES = 500
_MODEL_FILES = 1000

_TONES = {
    RunState.COMPLETED: "good",
    RunState.FAILED: "bad",
    RunState.CANCELED: "dull",
    RunState.CANCEL_REQUESTED: "dull",
    RunState.RUNNING: "busy",
    RunState.FINALIZING: "busy",
    RunState.STARTING: "busy",
}

_SERVICE_TONES = {
    ServiceState.HEALTHY: "good",
    ServiceState.FAILED: "bad",
    ServiceState.UNHEALTHY: "bad",
    ServiceState.TRANSITIONING: "busy",
}


class MetricRow(msgspec.Struct, frozen=True, kw_only=True):
    """One metric as the page shows it."""

    name: str
    kind: str
    value: str  # the last one
    count: int
    low: str = ""
    high: str = ""
    chart: str = ""  # points of an SVG polyline; empty: no chart


class ImageView(msgspec.Struct, frozen=True, kw_only=True):
    """A logged image; one that cannot be shown is a link."""

    name: str
    path: str
    version: str  # of its content
    is_shown: bool


@lru_cache(maxsize=1)
def _environment() -> "Environment":
    # Imported with the first page: a server that shows none starts quicker without.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("runyard.server"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(version=__version__, terminal=TERMINAL)
    environment.filters.update(
        tone=lambda state: _TONES.get(state, "wait"),
        service_tone=lambda state: _SERVICE_TONES[state],
        size=render_size,
        moment=render_moment,
        duration=render_duration,
        part=lambda text: quote(text, safe=""),
        path=lambda text: quote(text, safe="/"),
        tab=lambda name: name.removeprefix("azureml-logs/"),  # nearly all are there
        shell=shlex.quote,
        warnings=all_warnings,
        attempt=attempt_words,
        launcher=launcher_words,
        place=lambda error: " · ".join([error.code, *error_place(error)]),
        cell=lambda value: render_value(value, _LONGEST_CELL),
        name=lambda text: render_value(text, _LONGEST_NAME),
    )
    return environment


def render(template: str, **values: object) -> str:
    """A template with values, all of them escaped."""
    # A script may have written half characters into a name; a page cannot carry them.
    html = _environment().get_template(template).render(**values)
    return html.encode(errors="replace").decode()


def runs_page(
    runs: Sequence[RunRecord],
    workspaces: Sequence[WorkspaceRecord],
    workspace: str,
    experiment: str,
    after: str | None,
) -> str:
    """The list of runs."""
    chosen = {"workspace": workspace, "experiment": experiment}
    query = {key: value for key, value in chosen.items() if value}
    return render(
        "runs.html",
        runs=runs,
        workspaces=sorted(one.name for one in workspaces),
        workspace=workspace,
        experiment=experiment,
        older=f"/?{urlencode({**query, 'after': after})}" if after else "",
        now=datetime.now(UTC),
    )


def models_page(
    page: ModelPage, workspaces: Sequence[WorkspaceRecord], workspace: str, name: str
) -> str:
    """The list of models: the latest of each, or all versions of one name."""
    chosen = {"workspace": workspace, "name": name}
    query = {key: value for key, value in chosen.items() if value}
    return render(
        "models.html",
        models=page.models,
        workspaces=sorted(one.name for one in workspaces),
        workspace=workspace,
        name=name,
        older=f"/models?{urlencode({**query, 'after': page.next})}" if page.next else "",
    )


def model_page(model: ModelRecord, lineage: ModelLineage) -> str:
    """One version of a model."""
    return render("model.html", model=model, files=model.manifest[:_MODEL_FILES], lineage=lineage)


def live_part(
    run: RunRecord,
    *,
    series: Sequence[Series],
    files: Sequence[FileInfo],
    children: Sequence[RunRecord],
    models: Sequence[ModelRecord] = (),
) -> str:
    """What of a run's page changes while it runs: metrics, files, children, models."""
    return render("live.html", models=models, **_plan_live(run, series, files, children))


def run_page(
    run: RunRecord,
    *,
    series: Sequence[Series],
    log: LogTail,
    files: Sequence[FileInfo],
    children: Sequence[RunRecord],
    models: Sequence[ModelRecord] = (),
    snapshot: Sequence[FileEntry] = (),
) -> str:
    """One run."""
    return render(
        "run.html",
        models=models,
        script=run.spec.script,
        snapshot=snapshot[:_SNAPSHOT_FILES],
        snapshot_count=len(snapshot),
        log=log,
        **_plan_live(run, series, files, children),
    )


def _plan_live(
    run: RunRecord,
    series: Sequence[Series],
    files: Sequence[FileInfo],
    children: Sequence[RunRecord],
) -> dict[str, object]:
    tables = {id(one): table for one in series if (table := plan_table(one)) is not None}
    plain = [one for one in series if id(one) not in tables and one.kind is not MetricKind.IMAGE]
    return {
        "run": run,
        "metrics": [plan_metric(one) for one in plain if one.kind is not MetricKind.SYSTEM],
        "system": [plan_metric(one) for one in plain if one.kind is MetricKind.SYSTEM],
        "tables": list(tables.values()),
        "images": plan_images(series, files),
        "files": files,
        "children": children,
        "now": datetime.now(UTC),
    }


def plan_images(series: Sequence[Series], files: Sequence[FileInfo]) -> list[ImageView]:
    """The newest logged images; each file once, though it may have been written several times."""
    kept = {info.path: info.digest for info in files}
    logged = {
        str(path): one.name
        for one in series
        if one.kind is MetricKind.IMAGE
        for path in one.values
        if kept.get(str(path))
    }
    return [
        ImageView(
            name=name,
            path=path,
            version=str(kept[path])[:16],
            is_shown=path.lower().endswith(SUFFIXES),
        )
        for path, name in list(logged.items())[-_IMAGES:]
    ]


def refusal_page(status: int, error: ErrorBody) -> str:
    """Why there is no page."""
    return render("refusal.html", status=status, error=error)


def onward_page(target: str) -> str:
    """A page that only leads on to another one of ours."""
    return render("onward.html", target=target)


def plan_metric(series: Series) -> MetricRow:
    """A series as a row: its last value, and a chart if it is a repeated number."""
    numbers = [value for value in series.values if _is_number(value)]
    finite = _finite(numbers) if len(numbers) == len(series.values) else []
    row = MetricRow(
        name=render_value(series.name, _LONGEST_NAME),
        kind=series.kind.value,
        value=render_value(series.values[-1]) if series.values else "",
        count=len(series.values),
    )
    if len(finite) < 2:
        return row
    return msgspec.structs.replace(
        row,
        low=render_value(min(finite)),
        high=render_value(max(finite)),
        chart=plan_chart(finite),
    )


def plan_chart(values: Sequence[float]) -> str:
    """The points of a polyline through the values; many are thinned, extremes stay."""
    points = list(enumerate(values))
    if len(points) > _CHART_POINTS:
        width = 2 * len(points) / _CHART_POINTS
        starts = range(_CHART_POINTS // 2)
        buckets = [points[round(i * width) : round((i + 1) * width)] for i in starts]
        points = [
            point
            for bucket in buckets
            for point in sorted({min(bucket, key=_height), max(bucket, key=_height)})
        ]
    low, high = min(values), max(values)
    span = high / 2 - low / 2 or 1.0  # halves: the span of huge values must not overflow
    across = (_CHART_WIDTH - 4) / (len(values) - 1)
    return " ".join(
        f"{2 + index * across:.1f},"
        f"{2 + (_CHART_HEIGHT - 4) * (1 - (value / 2 - low / 2) / span):.1f}"
        for index, value in points
    )


def _height(point: tuple[int, float]) -> float:
    return point[1]


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(values: Sequence[int | float]) -> list[float]:
    try:
        return [float(value) for value in values if math.isfinite(value)]
    except OverflowError:  # an integer beyond any float
        return []


def render_value(value: object, longest: int = _LONGEST_VALUE) -> str:
    """A logged value as text, shortened."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= longest else text[:longest] + " …"


def render_size(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def render_moment(moment: datetime) -> str:
    """A time for people; pages do not know the reader's time zone."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def render_duration(span: timedelta) -> str:
    """A length of time for people."""
    seconds = max(0.0, span.total_seconds())
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
