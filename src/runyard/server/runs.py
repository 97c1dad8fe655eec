"""Routes of runs: submit, look, label, end, report."""

import time
from functools import partial
from typing import Annotated
from urllib.parse import quote

import msgspec

from runyard.conductor import runs
from runyard.domain.agents import AgentOrders, AgentReport
from runyard.domain.errors import NotFound
from runyard.domain.files import FileEntry, decode_manifest
from runyard.domain.runs import (
    RunError,
    RunPage,
    RunPatch,
    RunRecord,
    Submission,
    redact_run,
)
from runyard.domain.states import RunState
from runyard.server.auth import check_submission, check_workspace, make_ticket
from runyard.server.platform import Platform, utc_now
from runyard.server.routing import Call, NoQuery
from runyard.server.waiting import attending
from runyard.stores.base import Where
from runyard_runtime import wire

_LONGEST_WAIT = 60.0


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs to list."""

    workspace: str | None = None
    experiment: str | None = None
    parent: str | None = None
    top_level: bool = False
    state: list[RunState] = []
    kind: str | None = None
    tag: list[str] = []  # `key` or `key=value`
    property: list[str] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    after: str | None = None


class RunQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to wait for a change."""

    newer_than: int | None = None
    wait: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class CancelQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether to give a run up whose cluster does not answer."""

    force: bool = False


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a page, with a ticket that opens it."""

    url: str


def submit(call: Call[Submission, NoQuery]) -> RunRecord:
    """Submit a run; sources that the server lacks are named in the refusal."""
    platform = call.platform
    check_submission(platform, call.grant, call.body.spec)
    can, room = platform.conductor.capabilities_of, platform.conductor.check_room
    run = runs.submit(platform.store, call.body, utc_now(), can, platform.machine, room)
    platform.changed(run.id, wake=True)
    return redact_run(run)


def list_runs(call: Call[None, RunsQuery]) -> RunPage:
    """Some runs, newest first."""
    query, platform = call.query, call.platform
    if query.workspace is not None:
        check_workspace(call.grant, query.workspace)
    where = Where(
        workspace=query.workspace or call.grant.workspace or None,
        experiment=query.experiment,
        parent=query.parent,
        top_level=query.top_level,
        states=frozenset(query.state),
        kind=query.kind,
        tags=_labels(query.tag),
        properties=_labels(query.property),
    )
    found, after = platform.store.records.find(
        RunRecord, where, limit=query.limit, after=query.after
    )
    return RunPage(runs=tuple(platform.show(found)), next=after)


def _labels(texts: list[str]) -> dict[str, str | None]:
    pairs = (text.partition("=") for text in texts)
    return {key: value if equals else None for key, equals, value in pairs}


async def get_run(call: Call[None, RunQuery]) -> RunRecord:
    """One run; with `newer_than` and `wait`, as soon as it is newer or the time is up."""
    platform, query, run_id = call.platform, call.query, call.params["run"]
    if query.newer_than is None or not query.wait:
        return await platform.in_thread(platform.load_run, run_id)
    with platform.changes.watch(run_id) as watcher, attending(call.receive) as caller:
        deadline = time.monotonic() + min(query.wait, _LONGEST_WAIT)
        while True:
            run = await platform.in_thread(platform.load_run, run_id)
            left = deadline - time.monotonic()
            if run.version > query.newer_than or left <= 0 or platform.changes.closed:
                return run
            await caller.waits_for(watcher.wait(left))


def patch(call: Call[RunPatch, NoQuery]) -> RunRecord:
    """Change a run's tags and display name, add properties."""
    run = runs.patch(call.platform.store, call.params["run"], call.body)
    call.platform.changed(run.id)
    return redact_run(run)


def cancel(call: Call[None, CancelQuery]) -> RunRecord:
    """Ask for a run's end; with `force` without waiting for the cluster that has it."""
    end = runs.give_up if call.query.force else runs.cancel
    run = end(call.platform.store, call.params["run"], utc_now())
    call.platform.changed(run.id, wake=True)
    return redact_run(run)


def complete(call: Call[None, NoQuery]) -> RunRecord:
    """Say that a run is done."""
    run = runs.complete(call.platform.store, call.params["run"], utc_now())
    call.platform.changed(run.id, wake=True)
    return redact_run(run)


def fail(call: Call[RunError, NoQuery]) -> RunRecord:
    """Say that a run failed, and why."""
    run = runs.fail(call.platform.store, call.params["run"], call.body, utc_now())
    call.platform.changed(run.id, wake=True)
    return redact_run(run)


async def report(call: Call[AgentReport, NoQuery]) -> AgentOrders:
    """Take an agent's report."""
    platform, run_id, said = call.platform, call.params["run"], call.body
    if said.phase == wire.ALIVE and platform.heartbeats.goes_on(run_id, said.attempt):
        return AgentOrders()
    return await platform.in_thread(_take_report, platform, run_id, said)


def _take_report(platform: Platform, run_id: str, said: AgentReport) -> AgentOrders:
    take = partial(runs.report, platform.store, run_id, said, utc_now())
    if said.phase == wire.ALIVE:
        return platform.heartbeats.ask(run_id, said.attempt, take)
    orders = take()
    platform.changed(run_id, wake=True)
    return orders


def snapshot(call: Call[None, NoQuery]) -> list[FileEntry]:
    """The files a script run was submitted with."""
    store, run_id = call.platform.store, call.params["run"]
    script = store.records.get(RunRecord, run_id).spec.script
    if script is None:
        raise NotFound(f"Run '{run_id}' has no snapshot.", why="It was not submitted as a script.")
    return list(decode_manifest(b"".join(store.blobs.open(script.snapshot))))


def ticket(call: Call[None, NoQuery]) -> Ticket:
    """An address of the run's page that a browser can open, for 12 hours."""
    run = call.platform.store.records.get(RunRecord, call.params["run"])
    text = make_ticket(call.platform.secret, run.id, time.time())
    return Ticket(url=f"/runs/{quote(run.id, safe='')}?ticket={text}")


def ticket_for_all(call: Call[None, NoQuery]) -> Ticket:
    """An address of the page of all runs that a browser can open, with theirs, for 12 hours."""
    return Ticket(url=f"/?ticket={make_ticket(call.platform.secret, '', time.time())}")
