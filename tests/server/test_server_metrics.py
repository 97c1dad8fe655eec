"""Logged values over HTTP: odd numbers, odd names, children, and many writers at once."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from runyard.domain.metrics import Point, Series
from runyard_runtime import wire

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer


def post(server: LiveServer, run_id: str, points: object) -> int:
    return server.request("POST", f"/api/v1/runs/{run_id}/metrics", json=points).status


def get(server: LiveServer, run_id: str, query: str = "") -> dict[str, list[Series]]:
    answer = server.request("GET", f"/api/v1/runs/{run_id}/metrics{query}")
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=dict[str, list[Series]])


@pytest.mark.parametrize(
    "value",
    [
        1,
        -0.5,
        True,
        None,
        "text",
        "",
        2**70,
        -(2**63),
        [1, 2.5, "x"],
        {"a": [1, {"f": "nan"}], "f": {"f": "-inf"}},
        {"f": "nan"},
        {"f": "inf"},
        {"f": "other"},
        [{"f": "-inf"}, 1.0],
        1e308,
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was_sent(server: LiveServer, value: object) -> None:
    run = server.make_run()
    assert post(server, run.id, [{"name": "x", "value": value}]) == 200
    (series,) = get(server, run.id)[run.id]
    assert series.values == [value]
    kept = server.store.metrics.series(run.id)[0].values
    assert repr(kept) == repr([wire.from_json_value(value)])


def test_nan_among_numbers_survives(server: LiveServer) -> None:
    run = server.make_run()
    values = [1.0, {"f": "nan"}, 1e308, 1e308, {"f": "inf"}]
    assert post(server, run.id, [{"name": "loss", "value": value} for value in values]) == 200
    assert get(server, run.id)[run.id][0].values == values
    kept = server.store.metrics.series(run.id)[0].values
    assert math.isnan(kept[1])  # type: ignore[arg-type]


def test_huge_numbers_whose_sum_is_infinite_stay_numbers(server: LiveServer) -> None:
    run = server.make_run()
    assert post(server, run.id, [{"name": "x", "value": 1e308}] * 3) == 200
    assert get(server, run.id)[run.id][0].values == [1e308] * 3


@pytest.mark.parametrize("name", ["a/b", "ü 😀", "x" * 10_000, "<b>", "a\nb", "", "%2f"])
def test_odd_names_survive(server: LiveServer, name: str) -> None:
    run = server.make_run()
    assert post(server, run.id, [{"name": name, "value": 1, "step": 3, "time": 2.5}]) == 200
    (series,) = get(server, run.id)[run.id]
    assert (series.name, series.steps, series.times) == (name, [3], [2.5])


def test_half_characters_do_not_break_the_answer(server: LiveServer) -> None:
    run = server.make_run()
    points = [Point(name="x", value="\ud800!"), Point(name="y", value=1)]
    server.store.metrics.append(run.id, points)
    found = {series.name: series.values for series in get(server, run.id)[run.id]}
    assert found == {"x": ["?!"], "y": [1]}


def test_one_name_and_all_descendants(server: LiveServer) -> None:
    top = server.make_run()
    child = server.make_run(parent=top.id)
    grandchild = server.make_run(parent=child.id)
    for run in (top, child, grandchild):
        assert post(server, run.id, [{"name": "a", "value": 1}, {"name": "b", "value": 2}]) == 200
    assert set(get(server, top.id)) == {top.id}
    found = get(server, top.id, "?recursive=true&name=b")
    assert set(found) == {top.id, child.id, grandchild.id}
    assert all([series.name for series in one] == ["b"] for one in found.values())


def test_points_for_a_run_that_is_not_there_are_refused(server: LiveServer) -> None:
    assert post(server, "nobody", [{"name": "a", "value": 1}]) == 404
    assert server.request("GET", "/api/v1/runs/nobody/metrics").status == 404


def test_a_batch_is_kept_whole(server: LiveServer) -> None:
    run = server.make_run()
    assert post(server, run.id, [{"name": "a", "value": i} for i in range(5000)]) == 200
    assert get(server, run.id)[run.id][0].values == list(range(5000))


def test_many_writers_lose_nothing(server: LiveServer) -> None:
    run = server.make_run()

    def write(writer: int) -> None:
        for step in range(25):
            points = [{"name": f"w{writer}", "value": step, "step": step}]
            assert post(server, run.id, points) == 200

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    found = {series.name: series.values for series in get(server, run.id)[run.id]}
    assert found == {f"w{writer}": list(range(25)) for writer in range(8)}
