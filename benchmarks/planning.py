"""Deciding who starts where, for a thousand nodes and ten thousand runs in line."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from benchmarks.options import Options
from benchmarks.report import Report, Times
from runyard.domain.compute import NodeRecord, NodeState
from runyard.planning import pools as planning
from runyard.planning.pools import Load, Pool, Request, carry_out, plan_pools, waiting_words

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NODES, QUEUED, BOUND_MS = 1_000, 10_000, 20.0


def _case(pools: dict[str, Pool], gpus: tuple[str, ...], times: int) -> tuple[Times, int]:
    """Seconds of one decision with its effect on the nodes, and how many runs it starts."""

    def decide() -> int:
        plans = plan_pools(pools, gpus, NOW)
        for key, plan in plans.items():
            carry_out(pools[key], plan, NODES, NOW)
        return sum(len(plan.starts) for plan in plans.values())

    return Times([_timed(decide) for _ in range(times)]), decide()


def measure(options: Options) -> Report:
    """Cases from nothing to do to everything at once."""
    report = Report(f"planning: {NODES:,} nodes, {QUEUED:,} runs in line")
    times = 5 if options.quick else 50
    gpus = tuple(str(index) for index in range(NODES))
    cases: dict[str, dict[str, Pool]] = {
        "all nodes busy": {"c": _pool(NodeState.RUNNING, NODES, [1] * QUEUED)},
        "all nodes idle, single runs": {"c": _pool(NodeState.IDLE, NODES, [1] * QUEUED)},
        "all nodes idle, gangs of 1 to 8": {
            "c": _pool(NodeState.IDLE, NODES, [1 + n % 8 for n in range(QUEUED)])
        },
        "no nodes yet": {"c": _pool(NodeState.IDLE, 0, [1] * QUEUED)},
        "50 pools, with GPUs": {
            f"c{n}": _pool(NodeState.IDLE, NODES // 50, [1 + n % 4] * (QUEUED // 50), gpus=1)
            for n in range(50)
        },
    }
    for name, pools in cases.items():
        taken, starts = _case(pools, gpus, times)
        report.at_most(
            f"{name}: a decision", taken.p95 * 1e3, BOUND_MS, f"{taken}; starts {starts}", "ms"
        )
    line = cases["all nodes busy"]["c"]
    load = planning.measure(line, 0, 0)
    told = Times([_timed(lambda: _tell_all(line, load)) for _ in range(times)])
    report.shown("words for all in line", told.p50 * 1e3, str(told), "ms")
    return report


def _tell_all(pool: Pool, load: Load) -> None:
    for place in range(1, len(pool.waiting) + 1):
        waiting_words(pool, place, load)


def _pool(state: NodeState, nodes: int, gangs: list[int], gpus: int = 0) -> Pool:
    return Pool(
        name="c",
        min_nodes=0,
        max_nodes=max(nodes, NODES // 50),
        idle_seconds=120,
        cores=2,
        gpus=gpus,
        nodes=tuple(NodeRecord(id=f"c-{n}", state=state, since=NOW) for n in range(nodes)),
        waiting=tuple(Request(run=f"r{n}", nodes=size, order=n) for n, size in enumerate(gangs)),
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
