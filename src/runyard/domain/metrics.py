"""Logged values, and how v1 shows them.

A *point* is one call of the log family. A *series* is all points of one name and kind in one
run. `view` turns the series of a run into what `run.get_metrics()` returns.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    """Which call of the log family a value came from."""

    SCALAR = "scalar"
    LIST = "list"
    ROW = "row"
    TABLE = "table"
    IMAGE = "image"  # value: the artifact's path
    CONFUSION_MATRIX = "confusion_matrix"  # this and the next three: value is the JSON document
    ACCURACY_TABLE = "accuracy_table"
    RESIDUALS = "residuals"
    PREDICTIONS = "predictions"
    SYSTEM = "system"  # sampled by the agent; not part of get_metrics


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One logged value. Times are seconds since the epoch."""

    name: str
    value: object
    kind: MetricKind = MetricKind.SCALAR
    step: int | None = None
    time: float = 0.0


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """All points of one name and kind in one run, oldest first."""

    name: str
    kind: MetricKind
    values: list[object]
    steps: list[int | None]
    times: list[float]


def view(series: Iterable[Series]) -> dict[str, object]:
    """The series as `run.get_metrics()` returns them: once → the value, repeated → a list."""
    return {one.name: _view_one(one) for one in series if one.kind is not MetricKind.SYSTEM}


def _view_one(series: Series) -> object:
    values = series.values
    match series.kind:
        case MetricKind.LIST:
            return [item for value in values for item in _as_list(value)]
        case MetricKind.ROW | MetricKind.TABLE:
            return _columns(values, keep_lists=series.kind is MetricKind.TABLE)
        case _:
            return values[0] if len(values) == 1 else values


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _columns(rows: list[object], *, keep_lists: bool) -> dict[str, object]:
    """Rows and tables as one dict of columns; a row logged once keeps its scalars."""
    columns: dict[str, list[object]] = {}
    for row in rows:
        if isinstance(row, dict):
            for name, cell in row.items():
                columns.setdefault(name, []).extend(_as_list(cell))
    if keep_lists or len(rows) > 1:
        return dict(columns)
    return {name: cells[0] if len(cells) == 1 else cells for name, cells in columns.items()}
