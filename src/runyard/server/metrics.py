"""Routes of logged values. NaN and the infinities travel as `wire.to_json_value` says."""

import asyncio
import json
import math
from collections.abc import Iterator

import msgspec
from starlette.responses import Response

from runyard.domain.metrics import Point, Series
from runyard.domain.runs import RunRecord
from runyard.server.routing import Call, NoQuery
from runyard.stores.base import Store, Where, find_all
from runyard_runtime import wire

# So many points are prepared in less time than it takes to hand them to a thread.
_FEW = 50


class MetricsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which series: of one name only, of the run's descendants too."""

    name: str | None = None
    recursive: bool = False


async def append_points(call: Call[list[Point], NoQuery]) -> None:
    """Keep logged values; all or none."""
    platform, run_id, metrics = call.platform, call.params["run"], call.platform.store.metrics
    points = [parse_point(point) for point in call.body]
    if len(points) <= _FEW:
        await asyncio.wrap_future(metrics.append_soon(run_id, points))
    else:
        await platform.in_thread(metrics.append, run_id, points)
    platform.changed(run_id)


def parse_point(point: Point) -> Point:
    """The point with NaN and the infinities as numbers."""
    if isinstance(point.value, dict | list):
        return msgspec.structs.replace(point, value=wire.from_json_value(point.value))
    return point


def get_series(call: Call[None, MetricsQuery]) -> Response:
    """Logged values by run, in the order they were logged."""
    store, run_id = call.platform.store, call.params["run"]
    run = store.records.get(RunRecord, run_id)
    ids = [run.id, *(_descendants(store, run.id) if call.query.recursive else ())]
    found = {
        id: [render_series(one) for one in store.metrics.series(id, call.query.name)] for id in ids
    }
    return Response(_encode(found), media_type="application/json")


def _encode(found: dict[str, list[Series]]) -> bytes:
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:  # half a character, which a script may log but JSON cannot carry
        text = json.dumps(msgspec.to_builtins(found), ensure_ascii=False)
        return text.encode(errors="replace")


def _descendants(store: Store, run_id: str) -> Iterator[str]:
    for child in reversed(list(find_all(store.records, RunRecord, Where(parent=run_id)))):
        yield child.id
        yield from _descendants(store, child.id)


def render_series(series: Series) -> Series:
    """The series with values that JSON can carry."""
    if _is_plain(series.values):
        return series
    values = [wire.to_json_value(value) for value in series.values]
    return msgspec.structs.replace(series, values=values)


def _is_plain(values: list[object]) -> bool:
    """True if all are finite numbers; much quicker than looking at each of them."""
    try:
        return math.isfinite(sum(values))  # type: ignore[arg-type]  # TypeError: not all numbers
    except (TypeError, OverflowError):
        return False
