"""What users write when they make a dataset, as the recipe that is kept. Pure.

A recipe is the JSON of `runyard.domain.data.DatasetSpec`:

    kind            file or tabular
    sources         [{"type": "url", "url": …} | {"type": "datastore", "datastore": …, "path": …}]
    is_list         whether the sources were given as a list
    steps           see steps.py
    reader          tabular: delimited, parquet, json_lines
    reader_options  see delimited_options and its like
    partition_format
"""

import os
import re

from runyard_runtime.exceptions import UserErrorException, explain
from runyard_runtime.partitions import Partitioning

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_WEB = ("http://", "https://")
ENCODINGS = {
    "utf8": "utf-8-sig",  # with or without a byte order mark
    "utf8bom": "utf-8-sig",
    "iso88591": "iso-8859-1",
    "latin1": "iso-8859-1",
    "ascii": "ascii",
    "windows1252": "cp1252",
    "utf16": "utf-16",
    "utf32": "utf-32",
}
HEADERS = ("none", "first", "all", "combine")
COLUMN_TYPES = ("string", "long", "float", "bool", "datetime")


def recipe(kind, sources, is_list, reader="", reader_options=None, partition_format=None):
    """A recipe without steps."""
    if partition_format is not None:
        Partitioning(partition_format)  # refuse a wrong one where it is written
    return {
        "kind": kind,
        "sources": sources,
        "is_list": is_list,
        "steps": [],
        "reader": reader,
        "reader_options": reader_options or {},
        "partition_format": partition_format,
    }


def with_step(spec, step):
    """The recipe with one more step at its end."""
    return dict(spec, steps=list(spec["steps"]) + [step])


def read_sources(path, store_of, keep_local=None):
    """Sources, whether they were a list, and the stores' workspaces, out of v1's `path`.

    It is a URL, a pair of a datastore and a path, something with `datastore_reference` such as
    v1's DataPath, or a list of these. `store_of(thing)` is the (name, workspace) of a datastore,
    or None for what is no datastore; `keep_local(path)` uploads a local path and returns
    (datastore's name, path there, workspace). Without it local paths are refused.
    """
    many = isinstance(path, list) or (isinstance(path, tuple) and not _is_pair(path, store_of))
    items = list(path) if many else [path]
    if not items:
        raise UserErrorException(explain("A dataset of no paths makes no sense."))
    found = [_source(item, store_of, keep_local) for item in items]
    sources = [source for source, _ in found]
    if len({source["type"] for source in sources}) > 1:
        raise UserErrorException(
            explain(
                "The list mixes web addresses and paths in datastores.",
                "A dataset is made of one or the other.",
                "Make two datasets, or upload the files to the datastore.",
            )
        )
    return sources, many, [workspace for _, workspace in found if workspace is not None]


def _is_pair(path, store_of):
    return len(path) == 2 and store_of(path[0]) is not None


def _source(item, store_of, keep_local):
    if isinstance(item, (tuple, list)) and _is_pair(item, store_of):
        name, workspace = store_of(item[0])
        return {"type": "datastore", "datastore": name, "path": store_path(item[1])}, workspace
    store = getattr(item, "datastore", None)
    if store is not None and hasattr(item, "path_on_datastore"):  # DataPath, DataReference
        name, workspace = store_of(store)
        below = store_path(item.path_on_datastore)
        return {"type": "datastore", "datastore": name, "path": below}, workspace
    if isinstance(item, os.PathLike):
        item = os.fspath(item)
    if isinstance(item, str) and item.lower().startswith(_WEB):
        return {"type": "url", "url": item}, None
    if keep_local is not None and isinstance(item, str) and not _URL.match(item):
        name, below, workspace = keep_local(item)
        return {"type": "datastore", "datastore": name, "path": below}, workspace
    raise _no_source(item)


def _no_source(item):
    if isinstance(item, str) and _URL.match(item):
        return UserErrorException(
            explain(
                "'%s' cannot be read from directly." % item,
                "Only http:// and https:// addresses can.",
                "Register the place as a datastore and pass (datastore, 'path').",
            )
        )
    if isinstance(item, str):
        return UserErrorException(
            explain(
                "'%s' is a path on this machine." % item,
                "Jobs run elsewhere; a dataset is made of web addresses or paths in a datastore.",
                "Upload it: Dataset.File.upload_directory(src_dir, (datastore, 'path')), or "
                "datastore.upload(...) and then pass (datastore, 'path').",
            )
        )
    return UserErrorException(
        explain(
            "A dataset cannot be made of %r." % (item,),
            "It is made of web addresses, or of pairs of a datastore and a path.",
            "Write Dataset.File.from_files((datastore, 'folder/**')).",
        )
    )


def store_path(path):
    """A path or pattern in a datastore: relative, with slashes; empty: its root."""
    text = "" if path is None else os.fspath(path)
    if not isinstance(text, str):
        raise UserErrorException(explain("%r is not a path in a datastore." % (path,)))
    parts = [part for part in text.replace("\\", "/").split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in text:
        raise UserErrorException(
            explain("The path '%s' leads out of the datastore." % text, fix="Leave '..' out.")
        )
    return "/".join(parts)


# Readers


def delimited_options(
    include_path, infer_column_types, set_column_types, separator, header, empty_as_string, encoding
):
    """What the reader of separated values is told."""
    if not isinstance(separator, str) or not separator:
        raise UserErrorException(
            explain("separator=%r is not a text." % (separator,), fix="Write separator=';'")
        )
    return {
        "include_path": bool(include_path),
        "infer_column_types": bool(infer_column_types),
        "column_types": column_types(set_column_types),
        "separator": separator,
        "header": _header(header),
        "empty_as_string": bool(empty_as_string),
        "encoding": _encoding(encoding),
    }


def parquet_options(include_path, set_column_types):
    """What the reader of parquet files is told."""
    return {"include_path": bool(include_path), "column_types": column_types(set_column_types)}


def json_lines_options(include_path, set_column_types, invalid_lines, encoding):
    """What the reader of JSON lines is told."""
    if invalid_lines not in ("error", "drop"):
        raise UserErrorException(
            explain("invalid_lines=%r is not known." % (invalid_lines,), "It is 'error' or 'drop'.")
        )
    return {
        "include_path": bool(include_path),
        "column_types": column_types(set_column_types),
        "invalid_lines": invalid_lines,
        "encoding": _encoding(encoding),
    }


def column_types(given):
    """{column: {"type": …}} out of {column: DataType}."""
    if given is None:
        return {}
    kept = {}
    for name, wanted in dict(given).items():
        plain = getattr(wanted, "definition", wanted)
        if not isinstance(plain, dict) or plain.get("type") not in COLUMN_TYPES:
            raise UserErrorException(
                explain(
                    "set_column_types has %r for the column '%s'." % (wanted, name),
                    fix="Write {'%s': DataType.to_float()}; DataType is in azureml.data." % name,
                )
            )
        kept[str(name)] = dict(plain)
    return kept


def _header(header):
    if isinstance(header, bool):
        return "all" if header else "none"
    name = getattr(header, "name", None)
    behaviours = {
        "NO_HEADERS": "none",
        "ONLY_FIRST_FILE_HAS_HEADERS": "first",
        "ALL_FILES_HAVE_SAME_HEADERS": "all",
        "COMBINE_ALL_FILES_HEADERS": "combine",
    }
    if name not in behaviours:
        raise UserErrorException(
            explain(
                "header=%r is not known." % (header,),
                fix="Use True, False or a PromoteHeadersBehavior.",
            )
        )
    return behaviours[name]


def _encoding(encoding):
    name = str(getattr(encoding, "value", encoding)).lower().replace("-", "").replace("_", "")
    if name not in ENCODINGS:
        raise UserErrorException(
            explain(
                "encoding=%r is not known." % (encoding,), "Known are: %s." % ", ".join(ENCODINGS)
            )
        )
    return name
