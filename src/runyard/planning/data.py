"""Names, paths and patterns of data, and where files stand in a job: all decisions, pure."""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import unquote, urlsplit

from runyard.domain.data import DataFile, DataInput, DataOutput, DatasetSpec, InputMode
from runyard.domain.errors import Invalid
from runyard_runtime import steps, wire
from runyard_runtime.exceptions import UserErrorException
from runyard_runtime.partitions import Partitioning

LONGEST_PART_BYTES = 255  # what file systems take as one name

_DATASTORE = re.compile(r"[A-Za-z0-9_]{1,255}")
_DATASET = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._()-]{0,253}[A-Za-z0-9._()-])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_REFERENCE = re.compile(r"[A-Za-z0-9_]{1,255}")  # it stands behind AZUREML_DATAREFERENCE_
# v1's own list, and what would take a job's Python away from it.
_TAKEN = {"path", "ld_library_path", "user", "logname", "home", "pwd", "shell", "pythonpath"}
_OURS = ("azureml_", "runyard_")
_RESERVED_DATASET = "resolve"  # a word of the API in the same place

Test = Callable[[str], object]


def check_datastore_name(name: str) -> str:
    """The name, or `Invalid`. Upper and lower case are the same datastore."""
    if _DATASTORE.fullmatch(name):
        return name
    raise Invalid(
        f"{name!r} is not a valid datastore name.",
        why="It needs 1 to 255 letters, digits or _.",
        fix="Choose another name.",
    )


def check_dataset_name(name: str) -> str:
    """The name, or `Invalid`."""
    if _DATASET.fullmatch(name) and name != _RESERVED_DATASET:
        return name
    raise Invalid(
        f"{name!r} is not a valid dataset name.",
        why="It needs 1 to 255 letters, digits, spaces, '.', '_', '-' or brackets, starts with a"
        " letter or digit, and is not 'resolve'.",
        fix="Choose another name.",
    )


def check_data(inputs: Sequence[DataInput], outputs: Sequence[DataOutput]) -> None:
    """`Invalid` if a run cannot read or write under these names and paths."""
    seen: set[str] = set()
    for one in inputs:
        _check_input(one)
        _check_once(one.name if one.source is None else f"{wire.DATA_REFERENCE}{one.name}", seen)
    for output in outputs:
        if output.name.startswith(wire.DATA_REFERENCE):  # v1's DataReference.as_upload()
            _check_reference(output.name.removeprefix(wire.DATA_REFERENCE))
        else:
            _check_variable(output.name, "output")
        _check_once(output.name, seen)
        _check_place(output.path_on_compute, output.name)
        expand_output(output, run_id="run")
        if output.mode not in ("mount", "upload"):
            raise Invalid(f"Output '{output.name}' cannot be in the mode '{output.mode}'.")
        if output.register_as:
            check_dataset_name(output.register_as)


def _check_input(one: DataInput) -> None:
    if (one.dataset is None) == (one.source is None):
        raise Invalid(f"Input '{one.name}' needs either a dataset or a path in a datastore.")
    if one.source is None:
        _check_variable(one.name, "input")
    else:
        _check_reference(one.name)
        if one.mode is InputMode.DIRECT:
            raise Invalid(f"Input '{one.name}' is a path in a datastore: mount or download it.")
    _check_place(one.path_on_compute, one.name)


def _check_reference(name: str) -> None:
    if not _REFERENCE.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a data reference.",
            why="It becomes a part of an environment variable: letters, digits and _.",
        )


def _check_variable(name: str, noun: str) -> None:
    """An input's name is a variable in the job, and must not hide one that is needed."""
    taken = name.lower() in _TAKEN or name.lower().startswith(_OURS)
    if taken or not _VARIABLE.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of an {noun}.",
            why="A variable of that name is needed for something else."
            if taken
            else "It becomes an environment variable: letters, digits and _, not a digit first.",
            fix="Choose another name.",
        )


def _check_once(name: str, seen: set[str]) -> None:
    if name in seen:
        raise Invalid(
            f"The name '{name}' is used for two inputs or outputs of the run.",
            fix="Give each its own with as_named_input(name).",
        )
    seen.add(name)


def _check_place(path: str | None, name: str) -> None:
    if path is None or path.startswith("/"):
        return
    if ".." in path.split("/") or "\0" in path:
        raise Invalid(
            f"Input or output '{name}' cannot be at {path!r}.",
            why="A relative path_on_compute stays in the working directory.",
        )


def plain_path(text: str, *, of: str) -> str:
    """A path in a datastore as it is kept: relative, without '.', '..' or empty parts."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in text:
        raise Invalid(
            f"{text!r} is not a path in {of}.",
            why="It would leave it." if ".." in parts else "It has a zero byte in it.",
            fix="Give a path relative to the root of the datastore.",
        )
    return "/".join(parts)


def check_laid_out(paths: Iterable[str]) -> None:
    """`Invalid` if the paths cannot all stand in one folder."""
    known = set()
    folders: set[str] = set()
    for path in paths:
        parts = path.split("/")
        for part in parts:
            if part in ("", ".", "..") or "\0" in part or len(part.encode()) > LONGEST_PART_BYTES:
                raise Invalid(
                    f"The file {path[:300]!r} cannot be laid out in a folder.",
                    why=f"{part[:80]!r} cannot be a name there.",
                    fix="Rename it, or leave it out with a pattern.",
                )
        known.add(path)
        while len(parts) > 1 and (folder := "/".join(parts[:-1])) not in folders:
            folders.add(folder)
            parts.pop()
    if both := known & folders:
        raise Invalid(
            f"{min(both)!r} is a file and a folder at once.",
            why="The store allows that, the file system of a job does not.",
            fix="Leave one of them out with a pattern.",
        )


# ---- patterns --------------------------------------------------------------------------------


def split_pattern(path: str) -> tuple[str, str]:
    """The folder before the first part with a * or ?, and the pattern below it ('' if none)."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if "*" in part or "?" in part:
            return "/".join(parts[:index]), "/".join(parts[index:])
    return path, ""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A test for relative paths: ? is a character, * part of a name, ** any number of folders."""
    tests: list[Test | None] = []
    for part in pattern.split("/"):
        if part == "**":
            tests.append(None)
        else:
            tests.append(_part_test(part))
    if tests[-1] is None:
        tests.append(_part_test("*"))  # all files below
    if len(tests) == 2 and tests[0] is None and pattern == "**":
        return lambda path: True
    return lambda path: _matches(path.split("/"), tests)


def _part_test(part: str) -> Test:
    # fnmatch's expressions never take long; a [ has no special meaning here.
    return re.compile(fnmatch.translate(part.replace("[", "[[]"))).match


def _matches(parts: list[str], tests: list[Test | None]) -> bool:
    """Only the last ** that was met can take more folders; so this is quadratic at worst."""
    at = wanted = 0
    deep = taken = -1
    while at < len(parts):
        test = tests[wanted] if wanted < len(tests) else _never
        if test is None:
            deep, taken = wanted, at
            wanted += 1
        elif test(parts[at]):
            at += 1
            wanted += 1
        elif deep >= 0:
            taken += 1
            at, wanted = taken, deep + 1
        else:
            return False
    return all(test is None for test in tests[wanted:])


def _never(part: str) -> bool:
    return False


# ---- addresses -------------------------------------------------------------------------------


def check_url(url: str) -> str:
    """The address, or `Invalid` if it is none that a dataset may have."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"[\s\x00-\x1f]", url):
        raise Invalid(
            f"{url[:200]!r} is not an address that data can be fetched from.",
            why="It must look like https://HOST/PATH.",
        )
    if parts.username or parts.password:
        raise Invalid(
            f"The address at {parts.hostname} has a password in it.",
            why="It would be kept and shown with the dataset.",
            fix="Register a datastore with credentials, or make the file public.",
        )
    return url


def url_name(url: str) -> str:
    """What a file fetched from the address is called: the last part of it that has a name."""
    return _url_parts(url)[-1]


def url_path(url: str) -> str:
    """Where a file stands among others: HOST/PATH, so that scripts find it by **/NAME."""
    return "/".join(_url_parts(url))


def _url_parts(url: str) -> list[str]:
    split = urlsplit(check_url(url))
    host = (split.hostname or "").replace(":", "_")  # an IPv6 address
    parts = [host if split.port is None else f"{host}_{split.port}"]
    for part in split.path.split("/"):
        name = unquote(part)
        if not name:
            continue
        if name in (".", "..") or "/" in name or "\0" in name:
            raise Invalid(
                f"{url[:200]!r} cannot be a file of a dataset.",
                why=f"{name!r} cannot be a name in a folder.",
            )
        parts.append(name)
    return parts


def plan_url_paths(urls: Sequence[str]) -> list[str]:
    """Where the files of several addresses stand; those that differ in their query only get it."""
    paths = [url_path(url) for url in urls]
    counts = Counter(paths)
    return [
        f"{path}?{urlsplit(url).query.replace('/', '_')}" if counts[path] > 1 else path
        for path, url in zip(paths, urls, strict=True)
    ]


# ---- stored transformations ------------------------------------------------------------------


def common_folder(folders: Sequence[str]) -> str:
    """The deepest folder that holds all of these."""
    lists = [folder.split("/") if folder else [] for folder in folders]
    shared: list[str] = []
    for parts in zip(*lists, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "/".join(shared)


def apply_steps(files: Sequence[DataFile], spec: DatasetSpec) -> Sequence[DataFile]:
    """What the steps of a FILE dataset leave of its files, which are ordered by path."""
    if not spec.steps:
        return files
    try:
        columns = Partitioning(spec.partition_format) if spec.partition_format else None

        def describe(file: DataFile) -> dict[str, object]:
            found = columns.values(file.path) if columns is not None else {}
            return {"Size": file.size, "Path": f"/{file.path}", **found}

        wanted = [{"op": step.op, "arguments": step.arguments} for step in spec.steps]
        kept: list[DataFile] = steps.apply_to_files(files, wanted, describe)
    except UserErrorException as error:
        raise Invalid(str(error.message)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(
            "A step of the dataset makes no sense.", why=f"{type(error).__name__}: {error}."
        ) from None
    return kept


def expand_output(output: DataOutput, *, run_id: str) -> str:
    """Where the files of an output go in its datastore."""
    path = output.path.replace("{run-id}", run_id).replace("{output-name}", output.name)
    if "{" in path or "}" in path:
        raise Invalid(
            f"The path {output.path!r} of output '{output.name}' has an unknown placeholder.",
            why="Known are {run-id} and {output-name}.",
        )
    return plain_path(path, of=f"datastore '{output.datastore}'")
