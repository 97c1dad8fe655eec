"""Logged values.

A *point* is one call of the log family. A *series* is all points of one name and kind in one
run. How v1 shows them is `runyard_runtime.records.metrics_view`.
"""

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
