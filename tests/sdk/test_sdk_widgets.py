"""The view of a run: pure rendering, and a run of the real server without a notebook."""

from typing import Any

import pytest

from runyard import Experiment
from runyard.sdk.widgets import RunDetails, render_html, render_text
from runyard.sdk.workspace import Workspace

DATA: dict[str, Any] = {
    "status": "Running",
    "workspace_name": "ws",
    "experiment_name": "exp",
    "run_id": "exp_1_a",
    "run_name": "",
    "waiting": "",
    "error": None,
    "run_metrics": {},
    "run_logs": [],
    "workbench_run_details_uri": "http://127.0.0.1:1/runs/exp_1_a?ticket=x&y",
}


def test_a_terminal_gets_the_state_and_the_link() -> None:
    text = render_text({**DATA, "waiting": "place 2 of 3 in line"})
    assert text.startswith("Run exp_1_a is Running (place 2 of 3 in line)\nWeb View: http")


def test_names_that_a_script_chose_are_never_markup() -> None:
    hostile = "<script>alert(1)</script>"
    error = {"error": {"message": hostile}}
    shown = render_html({**DATA, "run_metrics": {hostile: hostile}, "error": error})
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 3


def test_many_values_are_shown_by_their_last() -> None:
    shown = render_html({**DATA, "run_metrics": {"loss": list(range(1000))}})
    assert "… 995, 996, 997, 998, 999 (1000 values)" in shown


def test_many_metrics_are_counted() -> None:
    shown = render_html({**DATA, "run_metrics": {f"m{i}": i for i in range(25)}})
    assert "and 5 more" in shown


def test_a_run_is_shown_where_there_is_no_notebook(
    ws: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with Experiment(ws, "widgets").start_logging(outputs=False) as run:
        run.log("loss", 0.5)
        RunDetails(run).show()
    assert f"Run {run.id} is Running" in capsys.readouterr().out
    data = RunDetails(run).get_widget_data()
    assert data["status"] == "Completed"
    assert data["run_metrics"] == {"loss": 0.5}
