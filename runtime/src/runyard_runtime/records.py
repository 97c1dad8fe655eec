"""What the server keeps, in the shapes that v1's calls return. Pure.

Client and job show a run alike: the SDK uses these functions too.
"""

import json

from runyard_runtime import wire

# Properties of a run that say which datasets it used and made: + the dataset's id.
USED, MADE = "runyard.dataset.", "runyard.output_dataset."
LOG_FOLDERS = ("azureml-logs/", "logs/", "user_logs/", "system_logs/")
_COLUMN_KINDS = {"row", "table"}
_ERROR_FACTS = (
    ("rank", "rank"),
    ("node", "node"),
    ("exit_code", "exitCode"),
    ("traceback", "traceback"),
)


def metrics_view(series):
    """A run's series as `run.get_metrics()` returns them: once → the value, repeated → a list.

    What was logged under one name by several calls of the log family (numbers and a list, say) is
    one list of all of it, in the order of time; rows and tables together are one table.
    """
    by_name = {}
    for one in series:
        if one["kind"] != "system":
            by_name.setdefault(one["name"], []).append(one)
    return {name: _view(found) for name, found in by_name.items()}


def _view(found):
    """The series of one name."""
    kinds = {one["kind"] for one in found}
    points = _in_order(found)
    values = [value for _, value in points]
    if kinds <= _COLUMN_KINDS:
        return _columns(values, keep_lists="table" in kinds)
    if kinds == {"list"} or len(kinds) > 1:
        return [item for kind, value in points for item in _as_list(value, kind)]
    return values[0] if len(values) == 1 else values


def _in_order(found):
    """(kind, value) of all points, oldest first."""
    points = [
        (time, one["kind"], wire.from_json_value(value))
        for one in found
        for time, value in zip(_times(one), one["values"])  # noqa: B905 - Python 3.6
    ]
    if len(found) > 1:
        points.sort(key=lambda point: point[0])
    return [(kind, value) for _, kind, value in points]


def _times(one):
    return one["times"] if len(one["times"]) == len(one["values"]) else [0.0] * len(one["values"])


def _as_list(value, kind="list"):
    return value if kind == "list" and isinstance(value, list) else [value]


def _columns(rows, keep_lists):
    """Rows and tables as one dict of columns; a row logged once keeps its scalars."""
    columns = {}
    for row in rows:
        if isinstance(row, dict):
            for name, cell in row.items():
                columns.setdefault(name, []).extend(_as_list(cell))
    if keep_lists or len(rows) > 1:
        return columns
    return {name: cells[0] if len(cells) == 1 else cells for name, cells in columns.items()}


def is_log(name):
    """True for files that are logs, by the folder they are in."""
    return name.startswith(LOG_FOLDERS)


def details(record, log_files):
    """A run's record as `run.get_details()` returns it; `log_files` are names with addresses."""
    spec = record["spec"]
    script = spec.get("script") or {}
    properties = dict(record.get("properties") or {})
    warnings = list(spec.get("warnings") or ()) + list(record.get("warnings") or ())
    shown = {
        "runId": record["id"],
        "target": script.get("target") or "sdk",
        "status": record["state"],
        "startTimeUtc": _time(record.get("started")),
        "endTimeUtc": _time(record.get("ended")),
        "services": {},
        "error": error_details(record.get("error")),
        "warnings": [{"source": "Runyard", "message": text} for text in _once(warnings)],
        "properties": properties,
        "inputDatasets": input_datasets(script.get("inputs") or (), properties),
        "outputDatasets": output_datasets(script.get("outputs") or (), properties),
        "runDefinition": spec.get("definition") or {},
        "logFiles": dict(log_files),
        "submittedBy": spec.get("submitted_by") or "",
        "restarts": _restarts(record, script),
    }
    optional = ("startTimeUtc", "endTimeUtc", "error", "warnings", "restarts")
    return {key: value for key, value in shown.items() if value or key not in optional}


def _restarts(record, script):
    """Which attempt a run is at and how earlier ones failed, beyond v1; None: it has but one."""
    if not script.get("max_restarts"):
        return None
    earlier = [
        {
            "attempt": one["attempt"],
            "startTimeUtc": _time(one.get("started")),
            "endTimeUtc": _time(one["ended"]),
            "error": error_details(one["error"]),
            "nodes": [node["id"] for node in one.get("nodes") or ()],
        }
        for one in record.get("attempts") or ()
    ]
    return {
        "attempt": record["attempt"],
        "maxAttempts": script["max_restarts"] + 1,
        "earlierAttempts": earlier,
    }


def error_details(error):
    """An error in the nesting that v1 has; None if there is none."""
    if not error:
        return None
    inner = {"code": error.get("code"), "message": error.get("message")}
    for name, shown in _ERROR_FACTS:
        if error.get(name) not in (None, ""):
            inner[shown] = error[name]
    return {"error": inner}


def input_datasets(inputs, properties):
    """`inputDatasets`: the datasets that are read, named as the run's properties have them."""
    return [
        {
            "dataset": _dataset(one["dataset"], properties.get(USED + one["dataset"])),
            "consumptionDetails": {
                "type": "RunInput",
                "inputName": one["name"],
                "mechanism": one["mode"].capitalize(),
                "pathOnCompute": one.get("path_on_compute"),
            },
        }
        for one in inputs
        if one.get("dataset") is not None
    ]


def output_datasets(outputs, properties):
    """`outputDatasets`: the folders that are written and kept, and as what they are registered."""
    made = {}
    for key, text in properties.items():
        if key.startswith(MADE):
            dataset = _dataset(key[len(MADE) :], text)
            made[dataset.pop("output", "")] = dataset
    return [
        {
            "dataset": dict(
                made.get(one["name"], {}), datastore=one["datastore"], path=one["path"]
            ),
            "outputType": "RunOutput",
            "outputDetails": {"outputName": one["name"]},
        }
        for one in outputs
        if not one["name"].startswith(wire.DATA_REFERENCE)
    ]


def _dataset(dataset_id, text):
    facts = json.loads(text) if text else {}
    facts.pop("inputs", None)
    return dict({key: value for key, value in facts.items() if value}, id=dataset_id)


def _once(texts):
    return [text for number, text in enumerate(texts) if text not in texts[:number]]


def _time(text):
    """A time as v1 wrote it, always with its fraction; None stays None."""
    if text and "." not in text and text.endswith("Z"):
        return text[:-1] + ".000000Z"
    return text
