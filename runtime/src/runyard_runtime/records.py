"""What the server keeps, in the shapes that v1's calls return. Pure."""

from runyard_runtime import wire


def metrics_view(series):
    """A run's series as `run.get_metrics()` returns them: once → the value, repeated → a list."""
    return {one["name"]: _view(one) for one in series if one["kind"] != "system"}


def _view(series):
    values = [wire.from_json_value(value) for value in series["values"]]
    kind = series["kind"]
    if kind == "list":
        return [item for value in values for item in _as_list(value)]
    if kind in ("row", "table"):
        return _columns(values, keep_lists=kind == "table")
    return values[0] if len(values) == 1 else values


def _as_list(value):
    return value if isinstance(value, list) else [value]


def _columns(rows, keep_lists):
    columns = {}
    for row in rows:
        if isinstance(row, dict):
            for name, cell in row.items():
                columns.setdefault(name, []).extend(_as_list(cell))
    if keep_lists or len(rows) > 1:
        return columns
    return {name: cells[0] if len(cells) == 1 else cells for name, cells in columns.items()}


def details(record, log_files):
    """A run's record as `run.get_details()` returns it; `log_files` are names with addresses."""
    spec = record["spec"]
    script = spec.get("script") or {}
    shown = {
        "runId": record["id"],
        "target": script.get("target") or "sdk",
        "status": record["state"],
        "startTimeUtc": record.get("started"),
        "endTimeUtc": record.get("ended"),
        "services": {},
        "error": _error(record.get("error")),
        "warnings": [{"message": text} for text in record.get("warnings") or ()],
        "properties": dict(record.get("properties") or {}),
        "inputDatasets": [],
        "outputDatasets": [],
        "runDefinition": spec.get("definition") or {},
        "logFiles": log_files,
        "submittedBy": spec.get("submitted_by") or "",
    }
    optional = ("startTimeUtc", "endTimeUtc", "error", "warnings")
    return {key: value for key, value in shown.items() if value or key not in optional}


def _error(error):
    if not error:
        return None
    return {"error": {"code": error.get("code"), "message": error.get("message")}}
