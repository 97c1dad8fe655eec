"""Logged rows, tables and documents as small tables for a page. Pure."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

import msgspec

from runyard.domain.metrics import MetricKind, Series

MAX_ROWS, MAX_COLUMNS = 50, 20

_COUNTS = ("true positive", "false positive", "true negative", "false negative")


class MetricTable(msgspec.Struct, frozen=True, kw_only=True):
    """Values in rows and columns; what is too much for a page is counted."""

    name: str
    kind: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    left_out: int = 0  # rows


def plan_table(series: Series) -> MetricTable | None:
    """The series as a table; None if it is no such thing, or does not look as it should."""
    documents = [value for value in series.values if isinstance(value, dict)]
    if not documents:
        return None
    match series.kind:
        case MetricKind.ROW | MetricKind.TABLE:
            headers, rows = _logged(documents)
        case MetricKind.CONFUSION_MATRIX:
            headers, rows = _confusion(_data(documents[-1]))
        case MetricKind.ACCURACY_TABLE:
            headers, rows = _accuracy(_data(documents[-1]))
        case MetricKind.RESIDUALS | MetricKind.PREDICTIONS:
            headers, rows = _columns(_data(documents[-1]))
        case _:
            return None
    if not rows:
        return None
    return MetricTable(
        name=series.name,
        kind=series.kind.value.replace("_", " "),
        headers=headers[:MAX_COLUMNS],
        rows=[row[:MAX_COLUMNS] for row in rows[:MAX_ROWS]],
        left_out=max(0, len(rows) - MAX_ROWS),
    )


_Table = tuple[list[str], list[list[object]]]


def _logged(documents: Iterable[dict[str, object]]) -> _Table:
    """Rows that were logged one by one, or as columns, one below the other."""
    documents = list(documents)
    headers = list(dict.fromkeys(name for document in documents for name in document))
    rows: list[list[object]] = []
    for document in documents:
        columns = [_as_list(document.get(name, "")) for name in headers]
        rows += [list(row) for row in zip_longest(*columns, fillvalue="")]
    return headers, rows


def _confusion(data: dict[str, object]) -> _Table:
    """A line for each true class, a column for each predicted one."""
    matrix = [_as_list(line) for line in _as_list(data.get("matrix", []))]
    labels = [str(label) for label in _as_list(data.get("class_labels", range(len(matrix))))]
    return ["true \\ predicted", *labels], [
        [label, *line] for label, line in zip(labels, matrix, strict=False)
    ]


def _accuracy(data: dict[str, object]) -> _Table:
    """A line for each class and threshold."""
    labels = _as_list(data.get("class_labels", []))
    thresholds = _as_list(data.get("probability_thresholds", []))
    rows: list[list[object]] = []
    for label, table in zip(labels, _as_list(data.get("probability_tables", [])), strict=False):
        lines = zip(thresholds, _as_list(table), strict=False)
        rows += [[label, threshold, *_as_list(counts)] for threshold, counts in lines]
    return ["class", "threshold", *_COUNTS], rows


def _columns(data: dict[str, object]) -> _Table:
    """What is a list becomes a column; a single value stands in the first line."""
    columns = {name: _as_list(value) for name, value in data.items()}
    return list(columns), [list(row) for row in zip_longest(*columns.values(), fillvalue="")]


def _data(document: dict[str, object]) -> dict[str, object]:
    data = document.get("data")
    return data if isinstance(data, dict) else {}


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | range) else [value]
