"""Routes of compute targets: look, make, attach, change the scale, remove."""

from pathlib import Path

import msgspec

from runyard.conductor import computes, runs
from runyard.data.sealing import seal
from runyard.domain.compute import (
    AttachSpec,
    ComputePatch,
    ComputeRecord,
    ComputeSpec,
    EngineRef,
    NodeResources,
    VmSize,
    redact_compute,
)
from runyard.domain.errors import Invalid, RunyardError
from runyard.server.platform import Platform, utc_now
from runyard.server.routing import Call, NoQuery
from runyard.settings import LOOPBACK, Settings


class LookQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether clusters are asked right now; else what was heard of them last is shown."""

    ask: bool = False


class RemoveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the unfinished runs of a target are given up."""

    force: bool = False


def list_sizes(call: Call[None, NoQuery]) -> list[VmSize]:
    """The sizes that nodes can have."""
    return computes.list_sizes()


def list_computes(call: Call[None, LookQuery]) -> list[ComputeRecord]:
    """All compute targets of a workspace with their nodes, oldest first."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    found = computes.list_computes(store, workspace)
    return [_shown(call.platform, one, ask=call.query.ask) for one in found]


def get_compute(call: Call[None, LookQuery]) -> ComputeRecord:
    """One compute target with its nodes."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    record = computes.load_compute(store, workspace, call.params["compute"])
    return _shown(call.platform, record, ask=call.query.ask)


def _shown(platform: Platform, record: ComputeRecord, *, ask: bool) -> ComputeRecord:
    """A target without its secrets, and with what is wrong with its cluster right now."""
    shown = redact_compute(record)
    if record.engine is None:
        return shown
    trouble = platform.conductor.trouble_of(record.engine)
    if ask:
        try:
            platform.conductor.check_engine(record.engine, each=record.resources)
        except RunyardError as error:
            trouble = f"{error.what} {error.why}".rstrip()
    if not trouble:
        return shown
    warning = f"Its cluster cannot be used now: {trouble}"
    return msgspec.structs.replace(shown, warnings=(*shown.warnings, warning))


def put_compute(call: Call[ComputeSpec, NoQuery]) -> ComputeRecord:
    """Make a compute target; one of that name and size gets the new scale."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    name, engine = call.params["compute"], _engine_of_settings(platform)
    warnings: tuple[str, ...] = ()
    if engine is not None:
        warnings = _warn_of_loopback(platform, engine)
        if not computes.has_compute(platform.store, workspace, name):
            _check_settings(platform, engine, computes.asked_of(call.body))
    record = computes.create_compute(
        platform.store,
        workspace,
        name,
        call.body,
        platform.machine,
        utc_now(),
        engine,
        warnings,
    )
    platform.conductor.wake()
    return redact_compute(record)


def _check_settings(platform: Platform, engine: EngineRef, each: NodeResources) -> None:
    """Ask the cluster that the settings name; what it refuses is theirs to mend."""
    try:
        platform.conductor.check_engine(engine, each=each)
    except RunyardError as error:
        where = (
            "The server's RUNYARD_COMPUTE, RUNYARD_COMPUTE_OPTIONS and RUNYARD_COMPUTE_TOKEN_FILE "
            "say which cluster it is."
        )
        raise type(error)(error.what, why=error.why, fix=f"{error.fix} {where}".strip()) from None


def attach_compute(call: Call[AttachSpec, NoQuery]) -> ComputeRecord:
    """Make a compute target of a cluster that exists, once it is known to take jobs."""
    platform, name = call.platform, call.params["compute"]
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    asked = computes.plan_attached(workspace, name, call.body, platform.secret, utc_now())
    assert asked.engine is not None
    platform.conductor.check_engine(asked.engine, each=asked.resources)
    record = computes.attach_compute(
        platform.store,
        workspace,
        name,
        call.body,
        platform.secret,
        utc_now(),
        _warn_of_loopback(platform, asked.engine),
    )
    platform.conductor.wake()
    return redact_compute(record)


def _warn_of_loopback(platform: Platform, engine: EngineRef) -> tuple[str, ...]:
    """Words for who attaches a cluster elsewhere to a server that listens to its machine alone."""
    settings = platform.settings
    is_reached = settings.public_url or settings.host not in LOOPBACK
    if is_reached or platform.conductor.capabilities_of(engine).finds_server:
        return ()
    return (
        "The server listens on this machine alone, so nodes of other machines cannot report to "
        "it: start it with RUNYARD_HOST=0.0.0.0, or set RUNYARD_PUBLIC_URL to where they reach it.",
    )


def _engine_of_settings(platform: Platform) -> EngineRef | None:
    """Where AmlCompute targets come from, as the server's settings say; None: this machine."""
    setting = platform.settings.compute_engine
    if setting is None:
        return None
    kind, options = setting
    return EngineRef(
        kind=kind, options=options, secret=seal(_read_token(platform.settings), platform.secret)
    )


def _read_token(settings: Settings) -> dict[str, str]:
    """What opens the cluster that the settings name."""
    if not settings.compute_token_file:
        return {}
    try:
        return {"token": Path(settings.compute_token_file).expanduser().read_text().strip()}
    except OSError as error:
        raise Invalid(
            f"RUNYARD_COMPUTE_TOKEN_FILE={settings.compute_token_file!r} cannot be read.",
            why=f"{error.strerror}.",
            fix="Name a file on the server's machine that holds the token.",
        ) from None


def patch_compute(call: Call[ComputePatch, NoQuery]) -> ComputeRecord:
    """Change the scale of a compute target."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    record = computes.update_compute(
        platform.store, workspace, call.params["compute"], call.body, platform.machine, utc_now()
    )
    platform.conductor.wake()
    return redact_compute(record)


def delete_compute(call: Call[None, RemoveQuery]) -> None:
    """Remove a compute target that no unfinished run needs; with `force` those are given up."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    if call.query.force:
        record = computes.load_compute(platform.store, workspace, call.params["compute"])
        for run in computes.active_runs(platform.store, record):
            runs.give_up(platform.store, run.id, utc_now())
            platform.changed(run.id, wake=True)
    computes.delete_compute(platform.store, workspace, call.params["compute"])
    platform.conductor.wake()
