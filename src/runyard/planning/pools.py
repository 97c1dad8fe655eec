"""Which runs start on which nodes, which nodes come up or go, and what the others wait for. Pure.

Every target is a pool; `local` is one whose nodes are the slots of the machine. Per pool the order
is strict: whole gangs or nothing, and nobody overtakes a gang that waits for its nodes, so none
waits for ever. GPUs belong to the machine and are handed out over all pools in the order of
arrival, for the same reason; a node has its GPUs only while it works. A pool whose nodes come from
an engine elsewhere has one while a run has it: which node that is, and when, the engine decides.
"""

import heapq
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from runyard.domain.compute import NodeRecord, NodeState, NodeUse

S = NodeState


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for nodes."""

    run: str
    nodes: int = 1
    order: int  # over all pools: who came first


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A target as planning sees it: its limits, its nodes, and who waits for them."""

    name: str
    min_nodes: int
    max_nodes: int | None  # None: no bound
    idle_seconds: float
    cores: int | None  # of a node; None: nodes are only slots, and nothing is shared out
    gpus: int = 0  # that a node of its size should have
    elsewhere: bool = False  # its nodes are an engine's: they come and go with runs
    made: int = 0  # nodes so far; names the next one
    trouble: str = ""  # why its engine cannot be used now; then nobody starts
    nodes: Sequence[NodeRecord] = ()
    waiting: Sequence[Request] = ()


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A run that starts now, and where."""

    run: str
    nodes: tuple[NodeUse, ...]


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with a pool now."""

    starts: tuple[Start, ...] = ()
    up: int = 0  # nodes that are to come up
    down: tuple[str, ...] = ()  # nodes that are to go
    target: int = 0  # how many nodes there are after that
    taken: int = 0  # nodes that an engine elsewhere is asked for


def plan_pools(
    pools: Mapping[str, Pool], gpus: Sequence[str], now: datetime
) -> dict[str, PoolPlan]:
    """The plan of every pool. Looks at the nodes and at those who can start, at nobody else."""
    drafts = {key: _Draft(pool) for key, pool in pools.items()}
    held = {gpu for pool in pools.values() for node in pool.nodes for gpu in node.gpus}
    free = [gpu for gpu in reversed(gpus) if gpu not in held]
    short_of_gpus = False  # somebody waits for GPUs: nobody who came later may have them
    line = [
        (pool.waiting[0].order, key)
        for key, pool in pools.items()
        if pool.waiting and not pool.trouble
    ]
    heapq.heapify(line)
    while line:
        _, key = heapq.heappop(line)
        draft = drafts[key]
        request = draft.next_request()
        if not is_over(draft.pool.max_nodes, request.nodes):
            if is_over(draft.room, request.nodes):
                continue  # nobody behind it may overtake it
            each = gpus_each(draft.pool, request, len(gpus))
            needed = each * request.nodes
            if needed and (short_of_gpus or needed > len(free)):
                short_of_gpus = True
                continue
            draft.grant(request, [tuple(free.pop() for _ in range(each)) if each else ()
                                  for _ in range(request.nodes)])  # fmt: skip
        following = draft.peek()
        if following is not None:
            heapq.heappush(line, (following.order, key))
    return {key: draft.finish(now) for key, draft in drafts.items()}


class _Draft:
    """The plan of one pool while it is being made."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.idle = [node for node in pool.nodes if node.state is S.IDLE]
        self.busy = sum(node.state in (S.RUNNING, S.UNUSABLE) for node in pool.nodes)
        self.coming = sum(node.state is S.PREPARING for node in pool.nodes)
        self.room = None if pool.max_nodes is None else pool.max_nodes - self.busy
        self._position = 0
        self._taken = 0  # nodes of an engine elsewhere
        self._used = 0  # of the idle nodes
        self._wanted = 0  # nodes for those who can start, now or when nodes are up
        self._short_of_nodes = False
        self._starts: list[Start] = []

    def peek(self) -> Request | None:
        waiting = self.pool.waiting
        return waiting[self._position] if self._position < len(waiting) else None

    def next_request(self) -> Request:
        self._position += 1
        return self.pool.waiting[self._position - 1]

    def grant(self, request: Request, gpus: Sequence[tuple[str, ...]]) -> None:
        """Let the run have nodes; it starts if they are up and nobody before it waits for them."""
        if self.room is not None:
            self.room -= request.nodes
        self._wanted += request.nodes
        if self.pool.elsewhere:
            self._take(request)
            return
        if self._short_of_nodes or request.nodes > len(self.idle) - self._used:
            self._short_of_nodes = True
            return
        nodes = self.idle[self._used : self._used + request.nodes]
        self._used += request.nodes
        cores = self.pool.cores
        uses = tuple(
            NodeUse(id=node.id, cores=cores, gpus=None if cores is None else own)
            for node, own in zip(nodes, gpus, strict=True)
        )
        self._starts.append(Start(run=request.run, nodes=uses))

    def _take(self, request: Request) -> None:
        """Let the run have nodes of the engine's: what they are is the engine's to say."""
        first = self.pool.made + self._taken + 1
        self._taken += request.nodes
        uses = tuple(
            NodeUse(id=f"{self.pool.name}-{number}", cores=self.pool.cores or None, gpus=None)
            for number in range(first, first + request.nodes)
        )
        self._starts.append(Start(run=request.run, nodes=uses))

    def finish(self, now: datetime) -> PoolPlan:
        pool = self.pool
        if pool.elsewhere:
            total = self.busy + self._taken
            return PoolPlan(starts=tuple(self._starts), target=total, taken=self._taken)
        total = self.busy + self.coming + len(self.idle)
        wanted = max(pool.min_nodes, self.busy + self._wanted)
        up = max(0, wanted - total)
        down: list[str] = []
        bound = now - timedelta(seconds=pool.idle_seconds)
        for node in reversed(self.idle[self._used :]):
            if total - len(down) <= wanted:
                break
            if node.since <= bound or is_over(pool.max_nodes, total - len(down)):
                down.append(node.id)
        return PoolPlan(
            starts=tuple(self._starts), up=up, down=tuple(down), target=total + up - len(down)
        )


def gpus_each(pool: Pool, request: Request, machine: int) -> int:
    """How many GPUs each node of a gang gets: what its size says, or its share of what there is.

    All nodes of a gang get the same number, because a framework expects that.
    """
    if pool.cores is None or pool.elsewhere:
        return 0
    return min(pool.gpus, machine // request.nodes)


def is_over(limit: int | None, nodes: int) -> bool:
    """True if so many nodes are more than allowed; None allows any number."""
    return limit is not None and nodes > limit


def carry_out(pool: Pool, plan: PoolPlan, made: int, now: datetime) -> tuple[NodeRecord, ...]:
    """The nodes of the pool once the plan is carried out; new ones are numbered after `made`."""
    uses = {use.id: (start.run, use.gpus or ()) for start in plan.starts for use in start.nodes}
    down = set(plan.down)
    nodes: list[NodeRecord] = []
    if pool.elsewhere:
        cores = pool.cores or 0
        return (*pool.nodes, *(
            NodeRecord(id=id, state=S.RUNNING, since=now, run=run, cores=cores)
            for id, (run, _) in uses.items()
        ))  # fmt: skip
    for node in pool.nodes:
        if node.id in uses:
            run, gpus = uses[node.id]
            node = msgspec.structs.replace(node, state=S.RUNNING, since=now, run=run, gpus=gpus)
        elif node.id in down:
            node = msgspec.structs.replace(node, state=S.LEAVING, since=now)
        nodes.append(node)
    for number in range(made + 1, made + plan.up + 1):
        nodes.append(
            NodeRecord(
                id=f"{pool.name}-{number}", state=S.PREPARING, since=now, cores=pool.cores or 1
            )
        )
    return tuple(nodes)


def move_on(nodes: Sequence[NodeRecord], now: datetime) -> tuple[NodeRecord, ...]:
    """The nodes a moment later: what was coming up is up, what was leaving is gone.

    Shares of a machine take no time to come and go.
    """
    return tuple(
        msgspec.structs.replace(node, state=S.IDLE, since=now)
        if node.state is S.PREPARING
        else node
        for node in nodes
        if node.state is not S.LEAVING
    )


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a pool and its machine are, for those who ask why they wait."""

    busy: int
    idle: int
    gpus: int  # of the machine
    free_gpus: int


def measure(pool: Pool, gpus: int, held_gpus: int) -> Load:
    """The load of a pool on a machine that has `gpus` GPUs, `held_gpus` of them in use."""
    states = [node.state for node in pool.nodes]
    return Load(
        busy=states.count(S.RUNNING),
        idle=states.count(S.IDLE),
        gpus=gpus,
        free_gpus=gpus - held_gpus,
    )


def waiting_words(pool: Pool, place: int, load: Load) -> str:
    """What the run at that place of the line (from 1) waits for."""
    request, name, busy = pool.waiting[place - 1], pool.name, load.busy
    line = f"place {place} of {len(pool.waiting)} in line"
    if pool.cores is None and pool.max_nodes is not None:
        if place <= pool.max_nodes - busy:
            return f"is about to start on '{name}'"
        return f"waits for a free slot on '{name}': {busy} of {pool.max_nodes} in use, {line}"
    wanted = "1 node" if request.nodes == 1 else f"{request.nodes} nodes"
    if pool.max_nodes is None or pool.trouble:
        if pool.trouble:
            return f"waits for '{name}', which cannot be used now: {pool.trouble}"
        return f"is about to be given to '{name}'"
    if request.nodes > pool.max_nodes:
        return (
            f"cannot start: it needs {wanted}, and '{name}' may have {pool.max_nodes}; "
            "raise max_nodes, or cancel it"
        )
    if place > 1 or request.nodes > pool.max_nodes - busy:
        return f"waits for {wanted} of '{name}': {busy} of {pool.max_nodes} in use, {line}"
    needed = gpus_each(pool, request, load.gpus) * request.nodes
    if needed > load.free_gpus:
        noun = "1 GPU" if needed == 1 else f"{needed} GPUs"
        used = load.gpus - load.free_gpus
        return f"waits for {noun} of this machine: {used} of {load.gpus} in use, {line}"
    if request.nodes > load.idle and not pool.elsewhere:
        return f"waits for {wanted} of '{name}' to come up, {line}"
    return f"is about to start on '{name}'"
