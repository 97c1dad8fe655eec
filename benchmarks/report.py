"""A promise, what was measured, and the table that a person reads."""

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Row:
    """One promise and what this run measured of it.

    `measured` is a ratio or a count; None: it could not be measured, and `note` says why.
    `bound` is None for a figure that is only shown for orientation.
    """

    promise: str
    measured: float | None
    bound: float | None = None
    at_most: bool = True  # False: `measured` must be at least `bound`
    unit: str = "×"
    note: str = ""  # times behind the ratio, repetitions

    @property
    def verdict(self) -> str:
        """ok, MISSED, or why there is none."""
        if self.measured is None:
            return "NOT MEASURED"
        if self.bound is None:
            return "-"
        kept = self.measured <= self.bound if self.at_most else self.measured >= self.bound
        return "ok" if kept else "MISSED"

    def as_json(self) -> dict[str, object]:
        """The row for programs."""
        return asdict(self) | {"verdict": self.verdict}


@dataclass
class Report:
    """The rows of one benchmark, in the order they were measured."""

    name: str
    rows: list[Row] = field(default_factory=list)

    def at_most(
        self, promise: str, measured: float, bound: float, note: str = "", unit: str = "×"
    ) -> None:
        """Add a promise that holds if `measured` is not above `bound`."""
        self.rows.append(Row(promise, measured, bound, at_most=True, unit=unit, note=note))

    def at_least(
        self, promise: str, measured: float, bound: float, note: str = "", unit: str = "×"
    ) -> None:
        """Add a promise that holds if `measured` is not below `bound`."""
        self.rows.append(Row(promise, measured, bound, at_most=False, unit=unit, note=note))

    def shown(self, promise: str, measured: float, note: str = "", unit: str = "×") -> None:
        """Add a figure without a promise."""
        self.rows.append(Row(promise, measured, unit=unit, note=note))

    def not_measured(self, promise: str, why: str) -> None:
        """Say that a promise could not be measured here."""
        self.rows.append(Row(promise, None, note=why))


@dataclass(frozen=True)
class Times:
    """Seconds of repeated measurements of one thing."""

    seconds: Sequence[float]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def p95(self) -> float:
        """The value that 95 of 100 do not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]

    @property
    def p99(self) -> float:
        """The value that 99 of 100 do not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def __str__(self) -> str:
        return f"{short(self.p50)} (p95 {short(self.p95)}, n={len(self.seconds)})"


def short(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def number(value: float | None, unit: str) -> str:
    """A measured value with its unit."""
    if value is None:
        return ""
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


def table(report: Report) -> str:
    """The report as lines for a terminal."""
    head = ("promise", "measured", "bound", "")
    cells = [head]
    for row in report.rows:
        sign = "≤" if row.at_most else "≥"
        bound = "" if row.bound is None else f"{sign} {number(row.bound, row.unit)}"
        cells.append((row.promise, number(row.measured, row.unit), bound, row.verdict))
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    notes = ["", *(row.note for row in report.rows)]
    lines = [report.name]
    for line, note in zip(cells, notes, strict=True):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append(f"  {text}".rstrip())
        if note:
            lines.append(textwrap.fill(f"({note})", 100, initial_indent=" " * 6,
                                       subsequent_indent=" " * 7))  # fmt: skip
    return "\n".join(lines)
