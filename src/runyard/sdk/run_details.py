"""A run's record in the shapes that v1 shows. Pure."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from runyard.domain.runs import RunError, RunRecord

LOG_FOLDERS = ("azureml-logs/", "logs/", "user_logs/", "system_logs/")


def render_details(record: RunRecord, log_files: Mapping[str, str]) -> dict[str, object]:
    """What `run.get_details()` returns; `log_files` are names with addresses."""
    script = record.spec.script
    details: dict[str, object] = {
        "runId": record.id,
        "target": script.target if script is not None else "sdk",
        "status": str(record.state),
    }
    if record.started is not None:
        details["startTimeUtc"] = time_text(record.started)
    if record.ended is not None:
        details["endTimeUtc"] = time_text(record.ended)
    details["services"] = {}
    if record.error is not None:
        details["error"] = render_error(record.error)
    if warnings := all_warnings(record):
        details["warnings"] = [{"source": "Runyard", "message": text} for text in warnings]
    details |= {
        "properties": dict(record.properties),
        "inputDatasets": [],
        "outputDatasets": [],
        "runDefinition": dict(record.spec.definition),
        "logFiles": dict(log_files),
        "submittedBy": record.spec.submitted_by,
    }
    return details


def all_warnings(record: RunRecord) -> tuple[str, ...]:
    """What was chosen or left out, at submit and since."""
    return tuple(dict.fromkeys((*record.spec.warnings, *record.warnings)))


def render_error(error: RunError) -> dict[str, object]:
    """An error in the nesting that v1 has."""
    inner: dict[str, object] = {"code": error.code, "message": error.message}
    if error.rank is not None:
        inner["rank"] = error.rank
    if error.exit_code is not None:
        inner["exitCode"] = error.exit_code
    if error.traceback:
        inner["traceback"] = error.traceback
    return {"error": inner}


def error_words(record: RunRecord) -> str:
    """Why a run failed, for people."""
    error = record.error
    if error is None:
        return f"Run '{record.id}' failed; the platform does not know why."
    lines = [f"Run '{record.id}' failed: {error.message}"]
    facts = [f"code {error.code}"]
    if error.exit_code is not None:
        facts.append(f"exit code {error.exit_code}")
    if error.rank is not None:
        facts.append(f"rank {error.rank}")
    lines.append(f"  ({', '.join(facts)})")
    if error.traceback and error.traceback not in error.message:
        lines.append(error.traceback.rstrip())
    lines.append(
        f"  fix: Read the log with run.get_details_with_logs() or: runyard logs {record.id}"
    )
    return "\n".join(lines)


def is_log(name: str) -> bool:
    """True for files that are logs, by the folder they are in."""
    return name.startswith(LOG_FOLDERS)


def time_text(moment: datetime) -> str:
    """A time as v1 wrote it: UTC, with a Z."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def label_queries(labels: Mapping[str, object] | str | Iterable[str] | None) -> list[str]:
    """v1's tag and property filters (a name, names, or names with values) as the API takes them."""
    if labels is None:
        return []
    if isinstance(labels, str):
        return [labels]
    if isinstance(labels, Mapping):
        return [key if value is None else f"{key}={value}" for key, value in labels.items()]
    return [str(label) for label in labels]
