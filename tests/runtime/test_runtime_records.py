"""What the server keeps, as v1's calls show it: in a job and on the client, by the same code."""

import math
from datetime import UTC, datetime

import msgspec
import pytest

from runyard.domain.metrics import MetricKind, Series
from runyard.domain.runs import RunError, RunRecord, RunSpec, all_warnings
from runyard.domain.states import RunState
from runyard.sdk.run_details import render_details
from runyard_runtime import records, wire

K = MetricKind


def series(kind: MetricKind, *values: object, first: float = 0.0) -> Series:
    times = [first + place for place in range(len(values))]
    kept = [wire.to_json_value(value) for value in values]
    return Series(name="m", kind=kind, values=kept, steps=[None] * len(values), times=times)


def view(*logged: Series) -> dict[str, object]:
    shown: dict[str, object] = records.metrics_view(msgspec.to_builtins(logged))
    return shown


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (series(K.SCALAR, 0.5), 0.5),
        (series(K.SCALAR, 0.5, "97.1", True), [0.5, "97.1", True]),
        (series(K.LIST, [1, 2], [3]), [1, 2, 3]),
        (series(K.LIST, [1]), [1]),
        (series(K.ROW, {"x": 1, "y": [2]}), {"x": 1, "y": 2}),
        (series(K.ROW, {"x": 1}, {"x": 2, "y": 3}), {"x": [1, 2], "y": [3]}),
        (series(K.TABLE, {"x": [1, 2]}), {"x": [1, 2]}),
        (series(K.TABLE, {"x": [1]}), {"x": [1]}),
        (series(K.IMAGE, "outputs/a.png"), "outputs/a.png"),
        (series(K.RESIDUALS, {"schema_type": "residuals"}), {"schema_type": "residuals"}),
    ],
)
def test_metrics_look_as_v1_showed_them(logged: Series, shown: object) -> None:
    assert view(logged) == {"m": shown}


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        ([series(K.LIST, [7, 8], first=1), series(K.SCALAR, 1)], [1, 7, 8]),
        ([series(K.SCALAR, 1, 2), series(K.LIST, [7], first=0.5)], [1, 7, 2]),
        ([series(K.SCALAR, 1), series(K.ROW, {"x": 1}, first=1)], [1, {"x": 1}]),
        ([series(K.TABLE, {"x": [2, 3]}, first=1), series(K.ROW, {"x": 1})], {"x": [1, 2, 3]}),
        ([series(K.IMAGE, "a.png"), series(K.SCALAR, math.inf, first=1)], ["a.png", math.inf]),
    ],
)
def test_what_several_calls_logged_under_one_name_is_all_there(
    logged: list[Series], shown: object
) -> None:
    assert view(*logged) == {"m": shown}


def test_sampled_use_is_not_among_the_metrics() -> None:
    assert view(series(K.SYSTEM, 1.0)) == {}
    assert view(series(K.SYSTEM, 1.0), series(K.SCALAR, 2)) == {"m": 2}


def test_nan_is_kept() -> None:
    shown = view(series(K.SCALAR, math.nan))["m"]
    assert isinstance(shown, float)
    assert math.isnan(shown)


def test_details_have_the_warnings_of_submit_and_the_whole_error() -> None:
    run = RunRecord(
        id="r",
        uid="u",
        spec=RunSpec(workspace="w", experiment="e", warnings=("chosen for you", "twice")),
        warnings=("twice", "left out"),
        state=RunState.FAILED,
        error=RunError(code="UserError", message="no", rank=0, exit_code=3, traceback="Trace"),
        created=datetime(2026, 1, 1, tzinfo=UTC),
        started=datetime(2026, 1, 1, 1, tzinfo=UTC),
    )
    in_job = records.details(msgspec.json.decode(msgspec.json.encode(run)), {"logs/a": "url"})
    assert in_job == render_details(run, {"logs/a": "url"})
    assert all_warnings(run) == ("chosen for you", "twice", "left out")
    assert tuple(one["message"] for one in in_job["warnings"]) == all_warnings(run)
    assert in_job["error"]["error"] == {
        "code": "UserError",
        "message": "no",
        "rank": 0,
        "exitCode": 3,
        "traceback": "Trace",
    }
    assert in_job["startTimeUtc"] == "2026-01-01T01:00:00.000000Z"
