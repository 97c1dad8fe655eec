"""Figures of a front end, and their text for Prometheus."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

SECONDS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Histogram:
    """Counts by size."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What a front end counts as it goes."""

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(SIZES)
        self.worker_connections = 0
        self.workers_lost = 0
        self.workers_hung = 0
        self.given_again = 0

    def count(self, status: int, seconds: float) -> None:
        """A request was answered."""
        self.by_status[status] = self.by_status.get(status, 0) + 1
        self.seconds.add(seconds)


def exposition(
    service: str, metrics: Metrics, gauges: Mapping[str, tuple[str, Mapping[str, float]]]
) -> str:
    """Prometheus' text format. A gauge is name → (help, {labels: value})."""
    own = f'service="{_escaped(service)}"'
    lines = _head("runyard_requests_total", "counter", "Requests answered, by status.")
    for status, count in sorted(metrics.by_status.items()):
        lines.append(f'runyard_requests_total{{{own},code="{status}"}} {count}')
    for name, help_text, histogram in (
        ("runyard_request_seconds", "From the whole request to its answer.", metrics.seconds),
        ("runyard_batch_size", "Requests given to a worker at once.", metrics.batches),
    ):
        lines += _head(name, "histogram", help_text)
        lines += _histogram(name, own, histogram)
    for name, help_text, value in (
        (
            "runyard_worker_connections_total",
            "Workers that said hello.",
            metrics.worker_connections,
        ),
        ("runyard_workers_lost_total", "Workers that went away.", metrics.workers_lost),
        ("runyard_workers_hung_total", "Workers that were given up.", metrics.workers_hung),
        ("runyard_given_again_total", "Requests given to a second worker.", metrics.given_again),
    ):
        lines += [*_head(name, "counter", help_text), f"{name}{{{own}}} {value}"]
    for name, (help_text, values) in gauges.items():
        lines += _head(name, "gauge", help_text)
        for labels, number in values.items():
            lines.append(f"{name}{{{own}{',' if labels else ''}{labels}}} {number:g}")
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _histogram(name: str, own: str, histogram: Histogram) -> Iterable[str]:
    running = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        text = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield f'{name}_bucket{{{own},le="{text}"}} {running}'
    yield f"{name}_sum{{{own}}} {histogram.total:.6f}"
    yield f"{name}_count{{{own}}} {running}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
