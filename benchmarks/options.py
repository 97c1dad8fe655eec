"""How much a benchmark does."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Sizes of everything that is measured; `quick()` is the small version."""

    quick: bool = False
    peers: bool = True
    submits: int = 100
    slow_submits: int = 15  # of peers that take seconds
    starts: int = 5  # of servers
    processes: int = 30  # of short commands
    points: int = 1_000_000
    kills: int = 20
    runs: int = 50
    queued: int = 500
    listed: int = 100_000


def quick() -> Options:
    """Minutes become seconds; the ratios are rough."""
    return Options(
        quick=True,
        submits=10,
        slow_submits=2,
        starts=1,
        processes=5,
        points=20_000,
        kills=3,
        runs=6,
        queued=30,
        listed=5_000,
    )
