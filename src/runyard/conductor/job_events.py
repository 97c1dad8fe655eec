"""What the lines of a job's event file mean; see `runyard_runtime.wire`, Events."""

import logging
from collections import defaultdict
from collections.abc import Callable

import msgspec

from runyard.domain.metrics import MetricKind, Point
from runyard.stores.base import EventEffects
from runyard_runtime import wire

log = logging.getLogger(__name__)


class _Event(msgspec.Struct):
    e: str
    n: str = ""
    v: object = None
    k: str = "scalar"
    s: int | None = None
    t: float = 0.0
    r: str | None = None


_DECODER = msgspec.json.Decoder(_Event)
_KINDS = {kind.value: kind for kind in MetricKind}


def events_effects(run_id: str, data: bytes, may_write: Callable[[str], bool]) -> EventEffects:
    """The points and tags that whole lines of an event file stand for.

    Lines that are not events (a script may write there what it likes) are left out, and so are
    those for a run that `may_write` refuses.
    """
    points: defaultdict[str, list[Point]] = defaultdict(list)
    set_tags: defaultdict[str, dict[str, str | None]] = defaultdict(dict)
    remove_tags: defaultdict[str, list[str]] = defaultdict(list)
    allowed: dict[str, bool] = {run_id: True}
    for event in _decode(run_id, data):
        target = event.r or run_id
        if target not in allowed:
            allowed[target] = may_write(target)
        if not allowed[target]:
            continue
        if event.e == "metric":
            points[target].append(_point(event))
        elif event.e == "tag":
            set_tags[target][event.n] = None if event.v is None else str(event.v)
            _discard(remove_tags[target], event.n)
        elif event.e == "untag":
            set_tags[target].pop(event.n, None)
            remove_tags[target].append(event.n)
    return EventEffects(points=points, set_tags=set_tags, remove_tags=remove_tags)


def _decode(run_id: str, data: bytes) -> list[_Event]:
    try:
        return _DECODER.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    events, bad = [], 0
    for line in data.splitlines():
        try:
            events.append(_DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            bad += bool(line.strip())
    log.warning("run %s wrote %d lines to its event file that are not events", run_id, bad)
    return events


def _point(event: _Event) -> Point:
    value = event.v
    if isinstance(value, dict | list):
        value = wire.from_json_value(value)
    return Point(
        name=event.n,
        value=value,
        kind=_KINDS.get(event.k, MetricKind.SCALAR),
        step=event.s,
        time=event.t,
    )


def _discard(names: list[str], name: str) -> None:
    if name in names:
        names.remove(name)
