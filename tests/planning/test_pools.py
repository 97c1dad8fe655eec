"""Who starts where, which nodes come and go, and what the others are told."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from runyard.domain.compute import NodeRecord, NodeState
from runyard.planning.pools import (
    Pool,
    PoolPlan,
    Request,
    carry_out,
    measure,
    move_on,
    plan_pools,
    waiting_words,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
S = NodeState
LONG_AGO = NOW - timedelta(hours=1)


def node(
    number: int, state: NodeState = S.IDLE, since: datetime = NOW, **more: object
) -> NodeRecord:
    run = f"run-{number}" if state is S.RUNNING else None
    made = NodeRecord(id=f"c-{number}", state=state, since=since, run=run)
    return msgspec.structs.replace(made, **more)


def gangs(*sizes: int, start: int = 0) -> tuple[Request, ...]:
    """Requests r0, r1, … for so many nodes each, in the order they came."""
    return tuple(
        Request(run=f"r{start + index}", nodes=size, order=start + index)
        for index, size in enumerate(sizes)
    )


def pool(
    nodes: tuple[NodeRecord, ...] = (), waiting: tuple[Request, ...] = (), **more: object
) -> Pool:
    made = Pool(
        name="c",
        min_nodes=0,
        max_nodes=4,
        idle_seconds=120,
        cores=2,
        nodes=nodes,
        waiting=waiting,
    )
    return msgspec.structs.replace(made, **more)


def plan(one: Pool, gpus: tuple[str, ...] = (), now: datetime = NOW) -> PoolPlan:
    return plan_pools({"c": one}, gpus, now)["c"]


def started(plan: PoolPlan) -> dict[str, list[str]]:
    return {start.run: [use.id for use in start.nodes] for start in plan.starts}


B1, B2, B3 = (node(number, S.RUNNING) for number in (1, 2, 3))
I1, I2, I3, I4 = (node(number) for number in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("nodes", "waiting", "start", "up"),
    [
        ((), (), {}, 0),
        ((), gangs(1), {}, 1),
        ((), gangs(1, 1, 1, 1, 1, 1), {}, 4),  # never more than max_nodes
        ((I1, I2), gangs(1, 1), {"r0": ["c-1"], "r1": ["c-2"]}, 0),
        ((I1, I2), gangs(1, 2), {"r0": ["c-1"]}, 1),  # r1 waits for one node more
        ((I1, I2), gangs(3, 1), {}, 2),  # r1 does not overtake r0, but gets a node of its own
        ((B1, B2, I3), gangs(3, 1), {}, 0),  # r0 does not fit now, and nobody overtakes it
        ((B1, B2, I3, I4), gangs(2), {"r0": ["c-3", "c-4"]}, 0),
        ((B1, B2, I3), gangs(5, 1), {"r1": ["c-3"]}, 0),  # what can never start blocks nobody
        ((B1, node(2, S.PREPARING)), gangs(1, 1), {}, 1),
        ((B1, node(2, S.UNUSABLE), I3), gangs(2), {}, 1),
        ((B1, node(2, S.UNUSABLE), I3), gangs(3), {}, 0),
        ((node(1, S.LEAVING),), gangs(1), {}, 1),  # a node that leaves serves nobody
    ],
)
def test_whole_gangs_or_nothing_in_the_order_they_came(
    nodes: tuple[NodeRecord, ...],
    waiting: tuple[Request, ...],
    start: dict[str, list[str]],
    up: int,
) -> None:
    result = plan(pool(nodes, waiting))
    assert (started(result), result.up) == (start, up)


@pytest.mark.parametrize(
    ("nodes", "limits", "waiting", "down"),
    [
        ((I1, I2), {}, (), ()),  # they may be needed again soon
        ((node(1, since=LONG_AGO), I2), {}, (), ("c-1",)),
        ((node(1, since=LONG_AGO), node(2, since=LONG_AGO)), {"min_nodes": 1}, (), ("c-2",)),
        ((B1, node(2, since=LONG_AGO)), {"min_nodes": 1}, (), ("c-2",)),
        ((B1, node(2, since=LONG_AGO)), {"min_nodes": 2}, (), ()),
        ((node(1, since=LONG_AGO),), {}, gangs(2), ()),  # a gang gathers: it keeps what is there
        ((I1, I2, I3), {"max_nodes": 2}, (), ("c-3",)),  # the limit was lowered
        ((B1, B2, B3), {"max_nodes": 2}, (), ()),  # nobody is thrown off its node
    ],
)
def test_idle_nodes_go_but_never_below_what_is_kept(
    nodes: tuple[NodeRecord, ...],
    limits: dict[str, object],
    waiting: tuple[Request, ...],
    down: tuple[str, ...],
) -> None:
    assert plan(pool(nodes, waiting, **limits)).down == down


def test_nodes_that_are_always_kept_come_up_without_being_asked_for() -> None:
    result = plan(pool(min_nodes=2))
    assert (result.up, result.target) == (2, 2)


def test_carrying_out_a_plan_moves_the_nodes_through_their_states() -> None:
    before = pool((I1, node(2, since=LONG_AGO)), gangs(1))
    nodes = carry_out(before, plan(before), 2, NOW)
    assert [(one.id, one.state, one.run) for one in nodes] == [
        ("c-1", S.RUNNING, "r0"),
        ("c-2", S.LEAVING, None),
    ]
    more = pool(move_on(nodes, NOW), gangs(2, start=1))
    nodes = carry_out(more, plan(more), 2, NOW)
    assert [(one.id, one.state) for one in nodes] == [
        ("c-1", S.RUNNING),
        ("c-3", S.PREPARING),
        ("c-4", S.PREPARING),
    ]
    assert [one.state for one in move_on(nodes, NOW)] == [S.RUNNING, S.IDLE, S.IDLE]


# ---- GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "per_node", "gang", "each"),
    [
        (("0",), 1, 1, [("0",)]),
        (("0", "1"), 1, 2, [("0",), ("1",)]),
        (("0", "1", "2"), 1, 2, [("0",), ("1",)]),
        (("0",), 1, 2, [(), ()]),  # one GPU cannot be shared: both nodes of a job look the same
        (("0", "1", "2"), 4, 1, [("0", "1", "2")]),  # the machine is smaller than the size
        (("0", "1", "2"), 4, 2, [("0",), ("1",)]),
        ((), 1, 2, [(), ()]),
        (("0",), 0, 1, [()]),  # a size without GPUs does not see those of the machine
    ],
)
def test_each_node_of_a_gang_gets_its_share_of_the_gpus(
    machine: tuple[str, ...], per_node: int, gang: int, each: list[tuple[str, ...]]
) -> None:
    result = plan(pool((I1, I2), gangs(gang), gpus=per_node), machine)
    assert [use.gpus for use in result.starts[0].nodes] == each


def test_no_gpu_is_given_to_two_nodes_of_whatever_pool() -> None:
    machine = ("0", "1")
    busy = pool((node(1, S.RUNNING, gpus=("0",)),), gpus=1)
    one = pool((I1, I2), gangs(1, 1), gpus=1)
    plans = plan_pools({"a": busy, "b": one}, machine, NOW)
    assert [start.nodes[0].gpus for start in plans["b"].starts] == [("1",)], "r1 waits"


def test_who_waits_for_gpus_is_not_overtaken_by_later_ones_of_other_pools() -> None:
    machine = ("0", "1")
    busy = pool((node(1, S.RUNNING, gpus=("0",)),), gpus=1)
    large = pool((I1,), (Request(run="large", order=1),), gpus=2)
    small = pool((I1,), (Request(run="small", order=2),), gpus=1)
    without = pool((I1,), (Request(run="cpu", order=3),))
    plans = plan_pools({"a": busy, "b": large, "c": small, "d": without}, machine, NOW)
    assert [start.run for one in plans.values() for start in one.starts] == ["cpu"]
    small = pool((I1,), (Request(run="small", order=0),), gpus=1)
    plans = plan_pools({"a": busy, "b": large, "c": small}, machine, NOW)
    assert [start.run for one in plans.values() for start in one.starts] == ["small"]


# ---- words -----------------------------------------------------------------------------------

LOCAL = {"name": "local", "cores": None, "max_nodes": 2, "min_nodes": 2}


@pytest.mark.parametrize(
    ("one", "place", "words"),
    [
        (
            pool((B1, B2), gangs(1, 1, 1, 1, 1, 1, 1), **LOCAL),
            3,
            "waits for a free slot on 'local': 2 of 2 in use, place 3 of 7 in line",
        ),
        (pool((I1, I2), gangs(1), **LOCAL), 1, "is about to start on 'local'"),
        (pool((I1,), gangs(1)), 1, "is about to start on 'c'"),
        (pool((), gangs(2)), 1, "waits for 2 nodes of 'c' to come up, place 1 of 1 in line"),
        (
            pool((B1, B2, B3), gangs(2, 1)),
            1,
            "waits for 2 nodes of 'c': 3 of 4 in use, place 1 of 2 in line",
        ),
        (
            pool((B1, B2, B3), gangs(2, 1)),
            2,
            "waits for 1 node of 'c': 3 of 4 in use, place 2 of 2 in line",
        ),
        (
            pool((node(1, S.RUNNING, gpus=("0",)),), gangs(1), gpus=1),
            1,
            "waits for 1 GPU of this machine: 1 of 1 in use, place 1 of 1 in line",
        ),
        (
            pool((), gangs(5)),
            1,
            "cannot start: it needs 5 nodes, and 'c' may have 4; raise max_nodes, or cancel it",
        ),
    ],
)
def test_a_waiting_run_is_told_what_for_and_its_place(one: Pool, place: int, words: str) -> None:
    held = sum(len(node.gpus) for node in one.nodes)
    assert waiting_words(one, place, measure(one, 1, held)) == words


def test_a_long_line_is_not_walked_to_its_end() -> None:
    """Deciding costs what starts, not what waits."""

    class Line(tuple[Request, ...]):
        looks = 0

        def __getitem__(self, index: object) -> Request:  # type: ignore[override]
            Line.looks += 1
            return tuple.__getitem__(self, index)  # type: ignore[call-overload, no-any-return]

    line = Line(gangs(*[1] * 10_000))
    result = plan(pool((I1, I2, I3, I4), line))
    assert len(result.starts) == 4
    assert Line.looks < 50


# ---- nodes of an engine elsewhere ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_nodes", "started"),
    [
        (None, ["r1", "r2", "r3"]),  # the cluster queues
        (4, ["r1", "r2"]),  # nobody behind the one that has to wait
        (2, ["r1"]),
        (0, []),
    ],
)
def test_runs_go_to_a_cluster_as_far_as_it_may_be_used(
    max_nodes: int | None, started: list[str]
) -> None:
    waiting = tuple(
        Request(run=f"r{number}", nodes=nodes, order=number)
        for number, nodes in ((1, 2), (2, 2), (3, 1))
    )
    pool = Pool(
        name="big",
        min_nodes=0,
        max_nodes=max_nodes,
        idle_seconds=0,
        cores=0,
        gpus=8,
        elsewhere=True,
        made=7,
        waiting=waiting,
    )
    plan = plan_pools({"big": pool}, (), NOW)["big"]
    assert [start.run for start in plan.starts] == started
    uses = [use for start in plan.starts for use in start.nodes]
    assert [use.id for use in uses] == [f"big-{8 + place}" for place in range(len(uses))]
    assert {use.gpus for use in uses} <= {None}, "this machine's GPUs are not handed out there"
    nodes = carry_out(pool, plan, pool.made, NOW)
    assert [node.run for node in nodes] == [start.run for start in plan.starts for _ in start.nodes]
    away = msgspec.structs.replace(pool, trouble="Nobody answers.")
    assert plan_pools({"big": away}, (), NOW)["big"].starts == ()
    assert "Nobody answers." in waiting_words(away, 3, measure(away, 0, 0))
