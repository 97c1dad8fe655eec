"""Routes of append-only files: agents ship what jobs write, with offsets."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from runyard.conductor.job_events import events_effects
from runyard.domain.errors import Invalid, NotFound
from runyard.server.auth import may_write
from runyard.server.routing import Call, NoQuery
from runyard_runtime import wire

_LONGEST_NAME = 1000


class OffsetQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in its file a chunk begins."""

    offset: Annotated[int, msgspec.Meta(ge=0)]


class StreamEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a file the server has."""

    end: int


def append(call: Call[bytes, OffsetQuery]) -> StreamEnd:
    """Keep a chunk of a log, or apply a chunk of an event file, once."""
    kind, name = _stream(call.params)
    if kind == wire.LOG_STREAM:
        return _append_log(call, name)
    return _append_events(call, name)


def _append_log(call: Call[bytes, OffsetQuery], name: str) -> StreamEnd:
    platform, run_id = call.platform, call.params["run"]
    end = platform.store.streams.append_log(run_id, name, call.query.offset, call.body)
    platform.changed(run_id)
    return StreamEnd(end=end)


def _append_events(call: Call[bytes, OffsetQuery], name: str) -> StreamEnd:
    platform, run_id, offset = call.platform, call.params["run"], call.query.offset
    if not call.body:
        return StreamEnd(end=platform.store.streams.end(run_id, name))

    def allowed(target: str) -> bool:
        try:
            platform.lineage.parent(target)  # a run that is not there has no metrics
        except NotFound:
            return False
        return may_write(platform, call.grant, target)

    effects = events_effects(run_id, call.body, allowed)
    end = platform.store.streams.append_events(
        run_id, name, offset, offset + len(call.body), effects
    )
    for target in {*effects.points, *effects.set_tags, *effects.remove_tags, run_id}:
        platform.changed(target)
    return StreamEnd(end=end)


def get_end(call: Call[None, NoQuery]) -> StreamEnd:
    """How much of a log or event file the server has."""
    _, name = _stream(call.params)
    return StreamEnd(end=call.platform.store.streams.end(call.params["run"], name))


def _stream(params: Mapping[str, str]) -> tuple[str, str]:
    kind, name = params["kind"], params["name"]
    if kind not in (wire.LOG_STREAM, wire.EVENT_STREAM):
        raise NotFound(f"There are no streams of kind '{kind[:100]}'.", fix="Use log or events.")
    parts = name.split("/")
    if len(name) > _LONGEST_NAME or any(part in ("", ".", "..") for part in parts):
        raise Invalid(f"{name[:100]!r} is not a plain relative path.")
    return kind, name
