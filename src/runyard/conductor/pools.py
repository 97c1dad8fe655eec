"""The pools as they are now: who waits, which nodes there are and who works on them.

What is here is rebuilt from the store: the targets with their nodes, the runs in line, and the
runs that hold nodes. Where the two disagree after a crash, the runs are right. Only the
conductor's thread changes anything; others may look.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from runyard.conductor import computes
from runyard.domain.compute import (
    Allocation,
    ComputeRecord,
    EngineRef,
    Machine,
    NodeRecord,
    NodeResources,
    NodeState,
    NodeUse,
)
from runyard.domain.errors import NotFound
from runyard.domain.runs import LOCAL, RunKind, RunRecord
from runyard.domain.states import RunState
from runyard.planning.pools import (
    Pool,
    PoolPlan,
    Request,
    Start,
    carry_out,
    measure,
    move_on,
    plan_pools,
    waiting_words,
)
from runyard.stores.base import Store

log = logging.getLogger(__name__)

_LOCAL_KEY = ""  # of the one pool that is not a record
_GONE = "gone"  # stands for the pool of a run whose target was deleted


class _State:
    """One pool, and what of it is not in the store yet."""

    def __init__(self, record: ComputeRecord | None, slots: int = 0) -> None:
        self.record = record
        self.slots = slots
        self.nodes: tuple[NodeRecord, ...] = record.nodes if record else ()
        self.made = record.nodes_made if record else 0
        self.target = record.target_nodes if record else 0
        self.waiting: dict[str, Request] = {}
        self.is_saved = True

    @property
    def engine(self) -> EngineRef | None:
        """Where its nodes come from; None: this machine."""
        return self.record.engine if self.record is not None else None

    @property
    def is_settled(self) -> bool:
        """True if nothing can follow from a plan: an engine's nodes, all taken or not wanted.

        A site of a thousand nodes is looked at only when one is free.
        """
        if self.record is None or self.record.engine is None:
            return False
        return not self.waiting or (
            self.record.max_nodes is not None and len(self.nodes) >= self.record.max_nodes
        )

    def view(self, trouble: str = "") -> Pool:
        """The pool as planning sees it."""
        waiting = tuple(self.waiting.values())
        if self.record is None:
            return Pool(
                name=LOCAL,
                min_nodes=self.slots,
                max_nodes=self.slots,
                idle_seconds=0,
                cores=None,
                nodes=self.nodes,
                waiting=waiting,
            )
        return Pool(
            name=self.record.name,
            min_nodes=self.record.min_nodes,
            max_nodes=self.record.max_nodes,
            idle_seconds=self.record.idle_seconds,
            cores=self.record.node_cores,
            gpus=self.record.size.gpus,
            nodes=self.nodes,
            waiting=waiting,
            elsewhere=self.engine is not None,
            made=self.made,
            trouble=trouble,
        )

    def put_nodes(self, nodes: tuple[NodeRecord, ...]) -> None:
        self.is_saved = self.is_saved and nodes == self.nodes
        self.nodes = nodes


class Pools:
    """All pools of all workspaces, on one machine."""

    def __init__(
        self,
        store: Store,
        slots: int,
        machine: Machine,
        now: Callable[[], datetime],
        wake: Callable[[str], None],
        trouble: Callable[[EngineRef | None], str] = lambda engine: "",
    ) -> None:
        self._store = store
        self._wake = wake  # for a run whose target is gone
        self._machine = machine
        self._trouble = trouble  # why an engine cannot be used now; empty: it can
        self._now = now
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {_LOCAL_KEY: _State(None, slots)}
        self._keys: dict[tuple[str, str], str] = {}  # (workspace, name in lower case) → key
        self._holders: dict[str, str] = {}  # run that holds nodes → key of their pool
        self._given: dict[str, Request] = {}  # runs that are being started: their requests
        self._orders = 0
        self._is_old = threading.Event()
        self._is_old.set()

    # ---- what others say ---------------------------------------------------------------------

    def look_again(self) -> None:
        """A target was made, changed or removed. From any thread."""
        self._is_old.set()

    def describe(self, found: Sequence[RunRecord]) -> Sequence[RunRecord]:
        """The runs with what they wait for, where they wait in a line. From any thread."""
        queued = {run.id for run in found if run.state is RunState.QUEUED}
        if not queued:
            return found
        words: dict[str, str] = {}
        with self._lock:
            held = sum(len(node.gpus) for one in self._states.values() for node in one.nodes)
            for state in self._states.values():
                if queued.isdisjoint(state.waiting):
                    continue
                pool = state.view(self._trouble(state.engine))
                load = measure(pool, len(self._machine.gpus), held)
                for place, request in enumerate(pool.waiting, start=1):
                    if request.run in queued:
                        words[request.run] = waiting_words(pool, place, load)
        return [
            msgspec.structs.replace(run, waiting=words[run.id]) if run.id in words else run
            for run in found
        ]

    # ---- what the conductor does ---------------------------------------------------------------

    def line_up(self, run: RunRecord) -> bool:
        """Put a run at the end of its line, unless it is in it; False if its target is gone."""
        key = self._key_of(run)
        if key is None:
            return False
        if run.id in self._holders:
            self.release(run.id)  # another attempt: it has to wait again
        with self._lock:
            state = self._states[key]
            if run.id not in state.waiting:
                self._orders += 1
                state.waiting[run.id] = Request(
                    run=run.id, nodes=_gang(run, key), order=self._orders
                )
        return True

    def is_waiting(self, run: RunRecord) -> bool:
        """True if the run is in a line."""
        key = self._key_of(run)
        return key is not None and run.id in self._states[key].waiting

    def hold(self, run: RunRecord) -> None:
        """A run that was started holds its nodes; after a restart they may have to be made."""
        if run.id in self._holders:
            return
        key = self._key_of(run)
        if key is None:
            log.warning("run %s goes on without its target, which is gone", run.id)
            self._holders[run.id] = _GONE
            return
        with self._lock:
            state = self._states[key]
            state.waiting.pop(run.id, None)
            self._holders[run.id] = key
            uses = run.nodes or _first_nodes(state, _gang(run, key))
            known = {use.id: use for use in uses}
            state.made = max(state.made, *(_number(use.id) for use in uses))
            kept = [
                _running(node, run.id, known.pop(node.id), self._now())
                if node.id in known
                else node
                for node in state.nodes
            ]
            blank = NodeRecord(id="", state=NodeState.IDLE, since=self._now())
            kept += [_running(blank, run.id, use, self._now()) for use in known.values()]
            state.put_nodes(tuple(kept))

    def settle(self) -> None:
        """All runs that hold nodes are known: no other node is working."""
        self._reload()
        with self._lock:
            for state in self._states.values():
                self._free(state, lambda node: node.run not in self._holders)

    def plan(self) -> list[Start]:
        """Decide: nodes come up and go; who is returned starts now and holds its nodes."""
        if self._is_old.is_set():
            self._reload()
        starts: list[Start] = []
        with self._lock:
            while True:
                moving = {key: one for key, one in self._states.items() if not one.is_settled}
                for state in moving.values():
                    state.put_nodes(move_on(state.nodes, self._now()))
                views = {
                    key: state.view(self._trouble(state.engine)) for key, state in moving.items()
                }
                plans = plan_pools(views, self._machine.gpus, self._now())
                for key, plan in plans.items():
                    self._carry_out(key, views[key], plan)
                    starts += plan.starts
                if not any(plan.up for plan in plans.values()):
                    return starts

    def put_back(self, run_id: str) -> None:
        """The run could not be started after all: it waits again, at its old place."""
        request, key = self._given.pop(run_id, None), self._holders.get(run_id)
        self.release(run_id)
        if request is None or key not in self._states:
            return
        with self._lock:
            state = self._states[key]
            again = sorted([request, *state.waiting.values()], key=lambda one: one.order)
            state.waiting = {one.run: one for one in again}

    def release(self, run_id: str) -> None:
        """The run is over, or gone: it neither waits nor holds nodes."""
        with self._lock:
            self._given.pop(run_id, None)
            if (key := self._holders.pop(run_id, None)) is not None and key in self._states:
                self._free(self._states[key], lambda node: node.run == run_id)
            for state in self._states.values():
                state.waiting.pop(run_id, None)

    def warnings(self, run: RunRecord) -> tuple[str, ...]:
        """Where the run's target is less than its size promises, in words."""
        key = self._key_of(run)
        record = None if key is None else self._states[key].record
        return () if record is None else record.warnings

    def engine_of(self, run: RunRecord) -> EngineRef | None:
        """Where the run's nodes come from; None: this machine."""
        key = None if run.spec.kind is RunKind.SERVICE else self._key_of(run)
        return None if key is None else self._states[key].engine

    def resources_of(self, run: RunRecord) -> NodeResources | None:
        """What each node of the run must have; None: nothing is asked."""
        key = None if run.spec.kind is RunKind.SERVICE else self._key_of(run)
        record = None if key is None else self._states[key].record
        return None if record is None else record.resources

    def name_hosts(self, hosts: Mapping[str, Sequence[str]]) -> None:
        """Engines say where the nodes of some runs are: by run, in the nodes' order."""
        keys = {self._holders.get(run_id) for run_id in hosts}
        names = {run_id: iter(found) for run_id, found in hosts.items()}
        with self._lock:
            for state in [self._states[key] for key in keys if key in self._states]:
                named = [_named(node, names) for node in state.nodes]
                if any(new is not old for new, old in zip(named, state.nodes, strict=True)):
                    state.put_nodes(tuple(named))

    def engines(self) -> list[EngineRef]:
        """All engines elsewhere that targets come from."""
        if self._is_old.is_set():
            self._reload()
        return [state.engine for state in self._states.values() if state.engine is not None]

    def save(self) -> None:
        """Store the nodes of all pools that changed."""
        for key, state in list(self._states.items()):
            if state.is_saved or state.record is None:
                continue
            try:
                state.record = computes.change(self._store, key, self._keeper(state))
            except NotFound:
                self.look_again()
            state.is_saved = True

    # ---- small steps -------------------------------------------------------------------------

    def _keeper(self, state: _State) -> Callable[[ComputeRecord], ComputeRecord]:
        """How a record changes so that it has the nodes as they are."""
        now = self._now()

        def keep(record: ComputeRecord) -> ComputeRecord:
            states = {node.state for node in state.nodes}
            moving = states & {NodeState.PREPARING, NodeState.LEAVING}
            allocation = Allocation.RESIZING if moving else Allocation.STEADY
            since = record.allocation_since if allocation is record.allocation else now
            return msgspec.structs.replace(
                record,
                nodes=state.nodes,
                nodes_made=state.made,
                target_nodes=state.target,
                allocation=allocation,
                allocation_since=since,
            )

        return keep

    def _key_of(self, run: RunRecord) -> str | None:
        """The key of the run's pool; None if its target is gone."""
        target = computes.target_name(run)
        if target == LOCAL:
            return _LOCAL_KEY
        name = (run.spec.workspace, target.lower())
        if name not in self._keys:
            self._reload()
        return self._keys.get(name)

    def _reload(self) -> None:
        """Read the targets; their nodes are known better here."""
        self._is_old.clear()  # first: what changes meanwhile is read the next time
        try:
            found = {one.id: one for one in computes.list_computes(self._store, None)}
        except Exception:
            self._is_old.set()
            raise
        with self._lock:
            for key, record in found.items():
                state = self._states.get(key)
                if state is None or state.record is None or state.record.created != record.created:
                    self._states[key] = _State(record)  # new, or deleted and made again
                else:
                    state.record = record
            for key in [key for key in self._states if key and key not in found]:
                for run_id in self._states.pop(key).waiting:
                    self._wake(run_id)
            self._keys = {(one.workspace, one.name.lower()): key for key, one in found.items()}

    def _carry_out(self, key: str, pool: Pool, plan: PoolPlan) -> None:
        state = self._states[key]
        state.put_nodes(carry_out(pool, plan, state.made, self._now()))
        state.made += plan.up + plan.taken
        state.target = plan.target
        for start in plan.starts:
            self._given[start.run] = state.waiting.pop(start.run)
            self._holders[start.run] = key

    def _free(self, state: _State, which: Callable[[NodeRecord], bool]) -> None:
        now = self._now()
        if state.engine is not None:  # what a run had there is the engine's again
            state.put_nodes(tuple(node for node in state.nodes if not which(node)))
            state.target = len(state.nodes)
            return
        state.put_nodes(
            tuple(
                msgspec.structs.replace(node, state=NodeState.IDLE, since=now, run=None, gpus=())
                if node.state is NodeState.RUNNING and which(node)
                else node
                for node in state.nodes
            )
        )


def _named(node: NodeRecord, names: Mapping[str, Iterator[str]]) -> NodeRecord:
    """The node with the next name of its run; the same one if nothing changes."""
    host = next(names.get(node.run or "", iter(())), node.host)
    return node if host == node.host else msgspec.structs.replace(node, host=host)


def _gang(run: RunRecord, key: str) -> int:
    """How many nodes the run takes; on `local` a run is one slot, whatever it starts there."""
    if key == _LOCAL_KEY or run.spec.script is None:
        return 1
    return run.spec.script.launcher.nodes


def _number(node_id: str) -> int:
    """The number in a node's name."""
    tail = node_id.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0


def _first_nodes(state: _State, count: int) -> list[NodeUse]:
    """Nodes for a run of which is not known where it works: an older server did not store that."""
    idle = [node.id for node in state.nodes if node.state is NodeState.IDLE][:count]
    state.made += count - len(idle)
    name = LOCAL if state.record is None else state.record.name
    new = [f"{name}-{state.made - number}" for number in range(count - len(idle))]
    return [NodeUse(id=id) for id in [*idle, *new]]


def _running(node: NodeRecord, run: str, use: NodeUse, now: datetime) -> NodeRecord:
    since = node.since if node.run == run else now
    return msgspec.structs.replace(
        node,
        id=use.id,
        state=NodeState.RUNNING,
        since=since,
        run=run,
        cores=use.cores or node.cores,
        gpus=use.gpus or (),
    )
