"""Tables out of a dataset's files: read, typed and transformed as its recipe says.

The one place that touches pandas, which is the user's own and may be years old or brand new.
"""

import gzip
import importlib
import io
import json
import re

from runyard_runtime import expressions, steps
from runyard_runtime.exceptions import (
    DatasetTimestampMissingError,
    UserErrorException,
    explain,
)
from runyard_runtime.partitions import Partitioning
from runyard_runtime.recipes import ENCODINGS

_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})?)?$"
)
_SLASHES = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?: \d{1,2}:\d{2}(?::\d{2})?(?: [AaPp][Mm])?)?$")
_NO_NUMBER = ("NA", "N/A", "NaN", "nan", "null", "NULL", "None")
_TRUTHS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


def pandas():
    """The pandas of this environment, or words on how to get it."""
    return _needed("pandas", "a table is a pandas DataFrame")


def _needed(name, why):
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise ImportError(
            explain(
                "The package %s is not in this environment." % name,
                "%s (%s)." % (why[:1].upper() + why[1:], problem),
                "Install it: pip install pandas pyarrow   (for a job: add them to its Environment)",
            )
        )


def read(recipe, files, on_error="null", out_of_range_datetime="null"):
    """The table of a recipe. `files` are pairs of the path in the dataset and a local path.

    In place of a local path may stand a function that fetches the file and returns it.
    """
    for name, value in (("on_error", on_error), ("out_of_range_datetime", out_of_range_datetime)):
        if value not in ("null", "fail"):
            raise UserErrorException(
                explain("%s=%r is not known." % (name, value), "It is 'null' or 'fail'.")
            )
    pd = pandas()
    readers = {"delimited": _delimited, "parquet": _parquet, "json_lines": _json_lines}
    if recipe["reader"] not in readers:
        raise UserErrorException(explain("Tables cannot be read with '%s'." % recipe["reader"]))
    options = recipe["reader_options"]
    frames = readers[recipe["reader"]](pd, files, options, rows_needed(recipe["steps"]))
    table = pd.concat(frames, ignore_index=True, sort=False) if frames else pd.DataFrame()
    types = options.get("column_types") or {}
    if options.get("infer_column_types"):
        for name in table.columns:
            if name not in types and _is_text(pd, table[name]):
                table[name] = _inferred(pd, table[name])
    failing = (on_error == "fail", out_of_range_datetime == "fail")
    for name, wanted in types.items():
        if name in table.columns:
            table[name] = _converted(pd, table[name], wanted, failing)
    if options.get("empty_as_string"):
        for name in table.columns:
            if _is_text(pd, table[name]):
                table[name] = table[name].fillna("")
    table = _with_path_columns(pd, table, frames, files, recipe)
    return transformed(table, recipe["steps"])


def rows_needed(all_steps):
    """How many rows the first steps let through at most; None: all. Saves reading the rest."""
    skipped = 0
    for step in all_steps:
        if step["op"] == "skip":
            skipped += step["arguments"]["count"]
        elif step["op"] == "take":
            return skipped + step["arguments"]["count"]
        elif step["op"] not in ("keep_columns", "drop_columns", "timestamps"):
            return None
    return None


def transformed(table, all_steps):
    """The table that the steps leave."""
    for step in all_steps:
        op, arguments = step["op"], step["arguments"]
        if op == "filter":
            table = _filtered(table, arguments["expression"])
        elif op == "keep_columns":
            for name in arguments["columns"]:
                _column(table, name)
            table = table[arguments["columns"]]
        elif op == "drop_columns":
            table = table.drop(columns=[n for n in arguments["columns"] if n in table.columns])
        elif op == "timestamps":
            table = _with_times(table, arguments)
        elif op == "time":
            table = table[_between(table, arguments)]
        elif op in steps.ON_FILES:
            table = table.iloc[list(steps.rows(op, arguments, len(table)))]
        else:
            raise UserErrorException(explain("There is no transformation '%s'." % op))
    return table.reset_index(drop=True)


def _filtered(table, expression):
    mask = expressions.evaluate(expression, lambda name: _column(table, name))
    return table[mask.fillna(False).astype(bool)]


def _column(table, name):
    if name not in table.columns:
        raise UserErrorException(
            explain(
                "The dataset has no column '%s'." % name,
                "Its columns are: %s." % ", ".join(str(one) for one in table.columns),
            )
        )
    return table[name]


def _with_times(table, arguments):
    pd = pandas()
    table = table.copy()
    for name in (arguments.get("timestamp"), arguments.get("partition_timestamp")):
        if name and not pd.api.types.is_datetime64_any_dtype(_column(table, name)):
            table[name] = _times(pd, table[name], None, (False, False))
    return table


def _between(table, arguments):
    pd = pandas()
    if not arguments["column"]:
        raise DatasetTimestampMissingError("The dataset has no timestamp column.")
    times = pd.to_datetime(_column(table, arguments["column"]))
    if getattr(times.dt, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    kept = times.notnull()
    closed = arguments["include_boundary"]
    if arguments["after"] is not None:
        start = expressions.time_of(arguments["after"])
        kept &= (times >= start) if closed else (times > start)
    if arguments["before"] is not None:
        end = expressions.time_of(arguments["before"])
        kept &= (times <= end) if closed else (times < end)
    return kept


# Readers: each gives one frame a file, until there are enough rows


def _parquet(pd, files, options, needed):
    _needed("pyarrow", "parquet files are read by it")
    return _until(needed, files, lambda path, _, rows: pd.read_parquet(path))


def _json_lines(pd, files, options, needed):
    def read_file(path, name, rows):
        found = []
        with _opened(path, ENCODINGS[options["encoding"]]) as stream:
            for number, line in enumerate(stream, 1):
                if rows is not None and len(found) >= rows:
                    break
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise ValueError("it is not an object")
                    found.append(record)
                except ValueError as problem:
                    if options["invalid_lines"] == "error":
                        raise UserErrorException(
                            explain(
                                "Line %d of '%s' is not a JSON object." % (number, name),
                                "%s." % problem,
                                "Correct it, or pass invalid_lines='drop'.",
                            )
                        )
        return pd.DataFrame(found)

    return _until(needed, files, read_file)


def _opened(path, encoding):
    if path.endswith(".gz"):
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding=encoding)
    return open(path, encoding=encoding)


def _delimited(pd, files, options, needed):
    frames = _delimited_frames(pd, files, options, needed, set())
    # A column that is text in one file and numbers in another is text in all of them.
    texts, others = set(), set()
    for frame in frames:
        for name in frame.columns:
            if frame[name].notnull().any():
                (texts if _is_text(pd, frame[name]) else others).add(name)
    mixed = texts & others
    return _delimited_frames(pd, files, options, needed, mixed) if mixed else frames


def _delimited_frames(pd, files, options, needed, as_text):
    separator = options["separator"]
    names = []  # of the first file, where only that has a header

    def read_file(path, name, rows):
        header = options["header"]
        has_header = header in ("all", "combine") or (header == "first" and not names)
        given = {
            "sep": separator if len(separator) == 1 else re.escape(separator),
            "engine": "c" if len(separator) == 1 else "python",
            "header": 0 if has_header else None,
            "encoding": ENCODINGS[options["encoding"]],
            "keep_default_na": False,
            "na_values": [""],
            "nrows": rows,
            "skipinitialspace": False,
        }
        if options["infer_column_types"]:
            texts = set(as_text) | set(options["column_types"])
            given["dtype"] = dict((one, str) for one in texts)
        else:
            given["dtype"] = str
        if given["engine"] == "c":
            given["low_memory"] = False  # types are decided over the whole file, not by chunks
        try:
            frame = pd.read_csv(path, **given)
        except pd.errors.EmptyDataError:
            return pd.DataFrame()
        except (ValueError, UnicodeError) as problem:  # parser errors are ValueErrors
            raise UserErrorException(
                explain("'%s' cannot be read as separated values." % name, "%s." % problem)
            )
        if not has_header:
            frame.columns = _names(frame.shape[1], names)
        elif header == "first":
            names.extend(frame.columns)
        return frame

    return _until(needed, files, read_file)


def _names(count, known):
    return [known[i] if i < len(known) else "Column%d" % (i + 1) for i in range(count)]


def _until(needed, files, read_file):
    frames, have = [], 0
    for name, path in files:
        path = path() if callable(path) else path
        frames.append(read_file(path, name, None if needed is None else needed - have))
        have += len(frames[-1])
        if needed is not None and have >= needed:
            break
    return frames


def _with_path_columns(pd, table, frames, files, recipe):
    """The columns that come from the files' paths, before those of their contents."""
    columns = []
    lengths = [len(frame) for frame in frames]
    paths = ["/" + name.lstrip("/") for name, _ in files[: len(frames)]]
    if recipe["reader_options"].get("include_path"):
        columns.append(("Path", paths))
    if recipe["partition_format"]:
        partitioning = Partitioning(recipe["partition_format"])
        values = [partitioning.values(path) for path in paths]
        columns += [(key, [one[key] for one in values]) for key in partitioning.keys]
    for position, (name, per_file) in enumerate(columns):
        repeated = [value for value, length in zip(per_file, lengths) for _ in range(length)]  # noqa: B905
        if name in table.columns:
            del table[name]
        table.insert(position, name, pd.Series(repeated, index=table.index))
    return table


# Types


def _is_text(pd, column):
    kinds = pd.api.types
    return (
        not (
            kinds.is_numeric_dtype(column)
            or kinds.is_bool_dtype(column)
            or kinds.is_datetime64_any_dtype(column)
        )
        and column.map(lambda value: isinstance(value, str), na_action="ignore").fillna(True).all()
    )


def _inferred(pd, column):
    """Numbers with gaps, truth values and unmistakable times; other texts stay as they are."""
    present = column.dropna()
    if not len(present):
        return column
    wordless = present[~present.isin(_NO_NUMBER)]
    if len(wordless) and len(wordless) < len(present):
        numbers = pd.to_numeric(wordless, errors="coerce")
        if numbers.notnull().all():
            return pd.to_numeric(column, errors="coerce")
    if present.str.lower().isin(("true", "false")).all():
        return column.map(lambda value: value.lower() == "true", na_action="ignore")
    iso = [_ISO.match(value) for value in present]
    if all(iso):
        zones = [bool(found.group(1)) for found in iso]
        if any(zones) != all(zones):
            return column  # no common clock
        return _times(pd, column, None, (False, False))
    day_first = _day_first(present)
    if day_first is not None:
        return pd.to_datetime(column, errors="coerce", dayfirst=day_first)
    return column


def _day_first(present):
    """Whether dates with slashes begin with the day; None if they are none, or do not tell."""
    first_high = second_high = False
    for value in present:
        found = _SLASHES.match(value)
        if not found:
            return None
        first_high = first_high or int(found.group(1)) > 12
        second_high = second_high or int(found.group(2)) > 12
    return None if first_high == second_high else first_high


def _converted(pd, column, wanted, failing):
    kind = wanted["type"]
    if kind == "string":
        return column.map(str, na_action="ignore")
    if kind == "datetime":
        return _times(pd, column, wanted.get("formats"), failing)
    if kind == "bool":
        truths = {str(text).lower(): truth for text, truth in _truths(wanted).items()}
        made = column.map(lambda value: truths.get(str(value).lower()), na_action="ignore")
        return _checked(column, made, "a truth value", failing[0])
    mark = wanted.get("decimal_mark", ".")
    texts = column
    if mark != "." and _is_text(pd, column):
        texts = column.str.replace(".", "", regex=False).str.replace(mark, ".", regex=False)
    made = _checked(column, pd.to_numeric(texts, errors="coerce"), "a number", failing[0])
    if kind == "long":
        made = _checked(column, made.where(made == made.round()), "a whole number", failing[0])
        return made.astype("int64") if made.notnull().all() else made
    return made.astype("float64")


def _truths(wanted):
    if not wanted.get("true_values") and not wanted.get("false_values"):
        return _TRUTHS
    return dict(
        [(text, True) for text in wanted.get("true_values") or ()]
        + [(text, False) for text in wanted.get("false_values") or ()]
    )


def _times(pd, column, formats, failing):
    if not formats:
        zoned = any(_zoned(value) for value in column.dropna().head(1))
        options = {"errors": "coerce", "utc": zoned}
        if int(pd.__version__.split(".")[0]) >= 2:  # earlier ones take each text for itself
            options["format"] = "ISO8601"
        made = pd.to_datetime(column, **options)
        left = made.isnull() & column.notnull()
        if left.any():  # not in ISO form: one by one
            single = column[left].map(lambda value: _time(pd, value))
            made = made.where(~left, pd.to_datetime(single, errors="coerce", utc=zoned))
    else:
        made = pd.to_datetime(column, errors="coerce", format=formats[0])
        for form in formats[1:]:
            made = made.fillna(pd.to_datetime(column, errors="coerce", format=form))
    return _checked(column, made, "a time", any(failing))


def _zoned(value):
    found = _ISO.match(value) if isinstance(value, str) else None
    return bool(found and found.group(1))


def _time(pd, value):
    try:
        return pd.Timestamp(value)
    except (ValueError, TypeError, OverflowError):
        return pd.NaT


def _checked(column, made, what, strict):
    """`made`, or an error that shows the first value that was lost."""
    if strict:
        lost = column[made.isnull() & column.notnull()]
        if len(lost):
            raise UserErrorException(
                explain(
                    "Row %d of the column '%s' is not %s: %r."
                    % (lost.index[0], column.name, what, lost.iloc[0]),
                    "%d of %d values cannot be converted." % (len(lost), len(column)),
                    "Correct the type in set_column_types, or leave on_error='null'.",
                )
            )
    return made
