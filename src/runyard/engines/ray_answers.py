"""What Ray's answers mean for a job of ours. Everything here is pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runyard.engines.base import JobPhase, JobStatus
from runyard.engines.ray_api import find_state
from runyard.engines.ray_driver import STATE
from runyard_runtime import remote

OVER = ("SUCCEEDED", "FAILED", "STOPPED")
NOTE = ".kill"
TOO_LATE = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"  # Ray lets nothing wait for long, usually 900 s
NOT_STARTED = (TOO_LATE, "JOB_SUPERVISOR_ACTOR_START_FAILURE")
_SETTLE_SECONDS = 5.0  # Ray's own watch of a job ends a bit later, and revives what is deleted
KEEP_SECONDS, _KEEP_MOST = 600.0, 20  # jobs that are over are in Ray's list for people to see
_TAIL = 2000


def last_state(info: Mapping[str, Any]) -> Any:
    """What a job's driver said last, as Ray knows it; None: nothing."""
    told = (info.get("metadata") or {}).get(STATE)
    # One that ended soon may have had no time to write to Ray's table; Ray quotes what it printed.
    return json.loads(told) if told else find_state(str(info.get("message") or ""))


def read_status(info: Mapping[str, Any], state: Mapping[str, Any] | None) -> JobStatus:
    """A job's status from what Ray knows of it and what its driver said last."""
    status, message = str(info["status"]), str(info.get("message") or "")
    phase = state["phase"] if state else ""
    hosts = tuple(state.get("hosts", ())) if state else ()
    if phase == "exited" and state:
        words = str(state.get("words", ""))
        code = int(state["exit_code"])
        return JobStatus(phase=JobPhase.EXITED, exit_code=code, detail=words, hosts=hosts)
    if phase in ("lost", "gone") and state:
        end = int(state.get("status", 0))
        how = str(remote.WORDS.get(end) or "its agent cannot be kept up")
        return JobStatus(
            phase=JobPhase.GONE,
            detail=_of_node(state, hosts, "Ray lost it" if phase == "lost" else how),
            hosts=hosts,
            node_lost=True,
            code=str(remote.CODES.get(end, "")),
        )
    if status == "FAILED" and state is None and not _has_died(info):
        return _not_begun(str(info.get("error_type") or ""), message)
    if status in OVER:
        detail = "it was killed" if phase == "killed" else message[-_TAIL:]
        return JobStatus(phase=JobPhase.GONE, detail=detail, hosts=hosts, node_lost=True)
    if phase == "active" and state:
        detail = _of_node(state, hosts) if state.get("words") else ""
        return JobStatus(phase=JobPhase.ACTIVE, hosts=hosts, detail=detail)
    return JobStatus(phase=JobPhase.PENDING, detail="its agents are starting")


def _not_begun(kind: str, message: str) -> JobStatus:
    """The status of a job whose driver never said anything."""
    last = message.strip().rpartition("\n")[2]
    if kind in NOT_STARTED:  # another try may be better
        detail = f"Ray could not start it: {last[-_TAIL:]}"
        return JobStatus(phase=JobPhase.GONE, detail=detail)
    if kind != "JOB_ENTRYPOINT_COMMAND_ERROR" and "entrypoint command failed" not in message:
        detail = f"Ray could not start it: {message[-_TAIL:].strip()}"
        return JobStatus(phase=JobPhase.EXITED, detail=detail, code="EngineFailed")
    detail = f"our program does not run there: {last} (the option 'python' names what runs it)"
    return JobStatus(phase=JobPhase.EXITED, detail=detail, code="NodePython")


def _has_died(info: Mapping[str, Any]) -> bool:
    """True if Ray lost the process or the node of the driver."""
    kind = info.get("error_type")  # old ones do not say
    return kind == "JOB_SUPERVISOR_ACTOR_DIED" or (
        not kind and "died" in str(info.get("message") or "")
    )


def is_not_started(info: Mapping[str, Any]) -> bool:
    """True if Ray gave it up before anything of it had begun."""
    return info["status"] == "FAILED" and info.get("error_type") in NOT_STARTED


def has_orphans(info: Mapping[str, Any]) -> bool:
    """True if agents of a job that is over for Ray may still be ending.

    They do so by themselves when the driver is gone without having said how they ended, and on a
    node that lives where Ray lost but their keeper.
    """
    state = last_state(info)
    if state is None:
        return info["status"] == "FAILED" and _has_died(info)
    return state["phase"] in ("starting", "active") or bool(state.get("is_there"))


def plan_sweep(
    listed: Mapping[str, Any], over: Mapping[str, float], forgotten: Mapping[str, float], now: float
) -> list[str]:
    """The names of what is to be deleted from Ray's list; times are since when."""
    settled = [name for name, since in over.items() if now - since >= _SETTLE_SECONDS]
    newest = sorted((name for name in settled if name in forgotten), key=lambda one: -over[one])
    found = []
    for name in settled:
        job = name.removesuffix(NOTE)
        if job != name:
            # One that was given up while Ray had no room for it must find its note.
            is_due = job not in listed or (job in forgotten and job in over)
        elif name in forgotten:
            is_due = now - forgotten[name] >= KEEP_SECONDS or name not in newest[:_KEEP_MOST]
        else:
            is_due = not listed[name].get("metadata")  # revived by Ray after it was deleted
        if is_due:
            found.append(name)
    return found


def _of_node(state: Mapping[str, Any], hosts: Sequence[str], how: str = "") -> str:
    """What a node said last, with its name."""
    node = int(state["node"])
    where = f" ({hosts[node]})" if node < len(hosts) and hosts[node] else ""
    said = str(state["words"]).rpartition("\nrunyard: ")[2].removeprefix("runyard: ")
    return ": ".join(one for one in (f"node {node}{where}", how, said) if one)
