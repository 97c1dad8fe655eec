"""Waiting for a run, and printing what it prints."""

from collections.abc import Callable

import msgspec

from runyard.domain.logs import LogText
from runyard.domain.runs import RunRecord, all_warnings
from runyard.domain.states import TERMINAL, RunState
from runyard.sdk.run_details import render_error
from runyard.sdk.session import Session, segment

Write = Callable[[str], object]

LONG_POLL_SECONDS = 30


def wait_until_over(session: Session, record: RunRecord) -> RunRecord:
    """The run's last record; asks at long intervals and is answered at once."""
    while record.state not in TERMINAL:
        record = session.request(
            "GET",
            f"/api/v1/runs/{segment(record.id)}",
            query={"newer_than": record.version, "wait": LONG_POLL_SECONDS},
            answer=RunRecord,
            timeout_seconds=LONG_POLL_SECONDS * 2,
        )
    return record


def print_until_over(session: Session, run_id: str, printer: "Printer") -> RunRecord:
    """Print the log that v1 would follow, as it grows; the run's last record."""
    latest: RunRecord | None = None
    for kind, data in session.events(f"/api/v1/runs/{segment(run_id)}/events"):
        if kind == "run":
            latest = msgspec.json.decode(data, type=RunRecord)
        elif kind == "log":
            printer.prints(msgspec.json.decode(data, type=LogText))
    if latest is None:
        latest = session.request("GET", f"/api/v1/runs/{segment(run_id)}", answer=RunRecord)
    return wait_until_over(session, latest)


class Printer:
    """Writes what v1 printed; other tools look for exactly these markers."""

    def __init__(self, write: Write, run_id: str, url: str) -> None:
        self._write = write
        self._about = f"RunId: {run_id}\nWeb View: {url}\n"
        self._log = ""
        self._at_line_start = True

    def begins(self) -> None:
        """The head of the output."""
        self._write(self._about)

    def prints(self, piece: LogText) -> None:
        """A piece of a log; a log that was not shown before gets a title."""
        if piece.name != self._log:
            self._end_line()
            self._write(f"\nStreaming {piece.name}\n{'=' * (len(piece.name) + 10)}\n\n")
            self._log = piece.name
        if piece.text:
            self._write(piece.text)
            self._at_line_start = piece.text.endswith("\n")

    def ends(self, record: RunRecord, *, raising: bool) -> None:
        """The summary. An error that is going to be raised is not printed as well; why a run was
        canceled (it took too long, say) is: that is never raised."""
        self._end_line()
        self._write(f"\nExecution Summary\n{'=' * 17}\n{self._about}")
        if warnings := all_warnings(record):
            self._write("\nWarnings:\n" + "".join(f"{text}\n" for text in warnings))
        raised = raising and record.state is RunState.FAILED
        if record.error is not None and not raised:
            data = msgspec.json.format(msgspec.json.encode(render_error(record.error)), indent=4)
            self._write(f"\nError:\n{data.decode()}\n")
        self._write("\n")

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True
