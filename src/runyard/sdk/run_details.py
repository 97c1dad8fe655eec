"""A run's record in the shapes that v1 shows. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from runyard.domain.runs import RunError, RunRecord, attempt_words, error_place, log_command
from runyard_runtime import records


def render_details(record: RunRecord, log_files: Mapping[str, str]) -> dict[str, object]:
    """What `run.get_details()` returns; `log_files` are names with addresses."""
    shown: dict[str, object] = records.details(msgspec.to_builtins(record), log_files)
    return shown


def render_error(error: RunError) -> dict[str, Any]:
    """An error in the nesting that v1 has."""
    shown: dict[str, Any] = records.error_details(msgspec.to_builtins(error))
    return shown


def error_words(record: RunRecord) -> str:
    """Why a run failed, for people."""
    error = record.error
    if error is None:
        return f"Run '{record.id}' failed; the platform does not know why."
    lines = [f"Run '{record.id}' failed: {error.message}"]
    facts = [words] if (words := attempt_words(record)) else []
    facts.append(f"code {error.code}")
    facts += error_place(error)
    lines.append(f"  ({', '.join(facts)})")
    if error.traceback and error.traceback not in error.message:
        lines.append(error.traceback.rstrip())
    lines.append(f"  fix: Read the log with run.get_details_with_logs() or: {log_command(record)}")
    return "\n".join(lines)


def label_queries(labels: Mapping[str, object] | str | Iterable[str] | None) -> list[str]:
    """v1's tag and property filters (a name, names, or names with values) as the API takes them."""
    if labels is None:
        return []
    if isinstance(labels, str):
        return [labels]
    if isinstance(labels, Mapping):
        return [key if value is None else f"{key}={value}" for key, value in labels.items()]
    return [str(label) for label in labels]
