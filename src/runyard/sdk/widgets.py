"""The view of a run in a notebook; in a terminal, two lines.

`show()` returns at once. In a notebook the view is an HTML output that a thread of this process
refreshes until the run is over: no widget extension is needed, so it works in every front end, and
what a saved notebook keeps is the last state.
"""

import html
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runyard.domain.states import TERMINAL, RunState

if TYPE_CHECKING:
    from runyard.sdk.run import Run

REFRESH_SECONDS = 5.0
SERIES_SHOWN = 20
VALUES_SHOWN = 5


class RunDetails:
    """Shows how a run is, and what it logged."""

    def __init__(self, run_instance: "Run") -> None:
        self.run = run_instance

    def show(self, render_lib: object | None = None, widget_settings: object | None = None) -> None:
        """Show the run here, and keep the view up to date while it runs."""
        display = _notebook_display()
        if display is None:
            sys.stdout.write(render_text(self.get_widget_data()))
            return
        shown = display({"text/html": render_html(self.get_widget_data())})
        if shown is not None:
            thread = threading.Thread(target=self._refresh, args=(shown,), daemon=True)
            thread.start()

    def get_widget_data(self, widget_settings: object | None = None) -> dict[str, Any]:
        """What the view is made of."""
        details = self.run.get_details()
        return {
            "status": str(details["status"]),
            "workspace_name": self.run.experiment.workspace.name,
            "experiment_name": self.run.experiment.name,
            "run_id": self.run.id,
            "run_name": self.run.display_name,
            "waiting": self.run.get_detailed_status().get("details") or "",
            "error": details.get("error"),
            "run_metrics": self.run.get_metrics(),
            "run_logs": list(self.run.get_file_names()),
            "workbench_run_details_uri": self.run.get_portal_url(),
        }

    def _refresh(self, shown: "Shown") -> None:
        waiting = threading.Event()
        while True:
            waiting.wait(REFRESH_SECONDS)
            try:
                data = self.get_widget_data()
                shown({"text/html": render_html(data)})
            except Exception:  # noqa: BLE001 - a view that cannot be refreshed is only a view
                return
            if RunState(data["status"]) in TERMINAL:
                return


Shown = Callable[[Mapping[str, str]], None]


def _notebook_display() -> Callable[[Mapping[str, str]], Shown | None] | None:
    """How to show HTML in the notebook that runs us; None if there is no notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    def show(data: Mapping[str, str]) -> Shown | None:
        handle = display(dict(data), raw=True, display_id=True)
        return None if handle is None else lambda new: handle.update(dict(new), raw=True)

    return show


def render_text(data: Mapping[str, Any]) -> str:
    """The view for a terminal."""
    waiting = f" ({data['waiting']})" if data["waiting"] else ""
    link = data["workbench_run_details_uri"]
    return f"Run {data['run_id']} is {data['status']}{waiting}\nWeb View: {link}\n"


def render_html(data: Mapping[str, Any]) -> str:
    """The view for a notebook. Everything a script may have named is escaped."""
    metrics = list(data["run_metrics"].items())
    rows = "".join(
        f"<tr><td>{html.escape(str(name)[:200])}</td><td>{html.escape(_value(value))}</td></tr>"
        for name, value in metrics[:SERIES_SHOWN]
    )
    more = len(metrics) - SERIES_SHOWN
    waiting = html.escape(str(data["waiting"] or ""))
    error = html.escape(_error(data["error"]))
    return (
        f"<div><b>{html.escape(data['experiment_name'])}</b> {html.escape(data['run_id'])}: "
        f"<b>{html.escape(data['status'])}</b> {waiting} "
        f'<a href="{html.escape(data["workbench_run_details_uri"])}" target="_blank" '
        f'rel="noopener">Details</a>'
        + (f"<pre>{error}</pre>" if error else "")
        + (f"<table><tr><th>Metric</th><th>Value</th></tr>{rows}</table>" if rows else "")
        + (f"<p>and {more} more</p>" if more > 0 else "")
        + "</div>"
    )


def _value(value: object) -> str:
    if isinstance(value, list) and len(value) > VALUES_SHOWN:
        last = ", ".join(str(one) for one in value[-VALUES_SHOWN:])
        return f"… {last} ({len(value)} values)"[:500]
    return str(value)[:500]


def _error(error: object) -> str:
    inner = error.get("error") if isinstance(error, dict) else None
    return str(inner.get("message", "")) if isinstance(inner, dict) else ""
