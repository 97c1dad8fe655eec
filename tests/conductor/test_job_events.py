"""What the lines of an event file mean."""

import math

from runyard.conductor.job_events import events_effects
from runyard.domain.metrics import MetricKind
from runyard_runtime import wire


def line(**event: object) -> bytes:
    return str(wire.encode_event(event)).encode()


def nobody(_: str) -> bool:
    return False


def test_metrics_keep_their_order_and_type() -> None:
    data = line(e="metric", n="loss", v=0.5, t=1.5, s=3) + line(e="metric", n="é/", v="97", t=2)
    points = events_effects("r", data, nobody).points["r"]
    assert [(p.name, p.value, p.step, p.time) for p in points] == [
        ("loss", 0.5, 3, 1.5),
        ("é/", "97", None, 2.0),
    ]


def test_numbers_that_json_lacks_come_back() -> None:
    value = wire.to_json_value([math.nan, math.inf, {"x": -math.inf}])
    data = line(e="metric", n="m", v=value, k="list")
    point = events_effects("r", data, nobody).points["r"][0]
    assert point.kind is MetricKind.LIST
    assert isinstance(point.value, list)
    assert math.isnan(point.value[0])
    assert point.value[1:] == [math.inf, {"x": -math.inf}]


def test_the_last_word_on_a_tag_counts() -> None:
    data = line(e="tag", n="a", v="1") + line(e="untag", n="a") + line(e="tag", n="b", v=None)
    effects = events_effects("r", data + line(e="untag", n="c") + line(e="tag", n="c", v=7), nobody)
    assert effects.set_tags["r"] == {"b": None, "c": "7"}
    assert list(effects.remove_tags["r"]) == ["a"]


def test_events_for_other_runs_need_leave() -> None:
    data = line(e="metric", n="m", v=1, r="child") + line(e="metric", n="m", v=2, r="stranger")
    effects = events_effects("r", data, lambda run_id: run_id == "child")
    assert set(effects.points) == {"child"}


def test_lines_that_are_not_events_are_left_out() -> None:
    data = b"garbage\n" + line(e="metric", n="m", v=1) + b'{"e":1}\n\xff\xfe\n\n{"e":"metric","n"'
    effects = events_effects("r", data, nobody)
    assert [point.value for point in effects.points["r"]] == [1]


def test_an_unknown_kind_of_event_is_left_for_a_newer_server() -> None:
    assert events_effects("r", line(e="whatever", n="x"), nobody).points == {}
