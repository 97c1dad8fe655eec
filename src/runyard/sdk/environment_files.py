"""The files that environments come from: conda specifications and pip requirements.

They may come from anywhere, so they are read with limits and refused in words.
"""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from runyard.sdk.exceptions import UserErrorException, user_error

CONDA_KEYS = ("name", "channels", "dependencies", "prefix", "variables")

_MAX_BYTES = 256 * 1024  # real ones have a few kilobytes
_MAX_ALIASES = 20  # too few for a file that explodes when it is read
_MAX_DEPTH = 10
_MAX_INCLUDES = 20

_Path = str | os.PathLike[str]


def load_conda_file(path: _Path) -> dict[str, Any]:
    """The conda specification in a YAML file, checked."""
    return parse_conda(_read(path, "conda specification"), str(path))


def parse_conda(text: str, source: str) -> dict[str, Any]:
    """The conda specification in a YAML text, checked; `source` names it in errors."""
    import yaml

    try:
        check_yaml(yaml.parse(text, Loader=yaml.SafeLoader), source)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise user_error(
            f"The conda specification '{source}' is not valid YAML.",
            why=f"{error}",
            fix="Correct the file; a list item starts with '- '.",
        ) from None
    return check_conda(data, source)


def check_conda(data: object, source: str) -> dict[str, Any]:
    """The same structure with every part in its place, or `UserErrorException`."""
    if not isinstance(data, dict):
        raise _malformed(source, "It holds no keys; there must be at least 'dependencies'.")
    for key in data:
        if key not in CONDA_KEYS:
            near = get_close_matches(str(key), CONDA_KEYS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise _malformed(source, f"Unknown key '{key}'.{hint}")
    channels = data.get("channels") or []
    if not isinstance(channels, list) or not all(isinstance(one, str) for one in channels):
        raise _malformed(source, "'channels' must be a list of names.")
    variables = data.get("variables") or {}
    if not isinstance(variables, dict):
        raise _malformed(source, "'variables' must be names with values.")
    conda, pip = _dependencies(data.get("dependencies") or [], source)
    checked: dict[str, Any] = {"name": str(data.get("name") or "project_environment")}
    checked["channels"] = list(channels)
    checked["dependencies"] = [*conda, {"pip": pip}] if pip else list(conda)
    if variables:
        checked["variables"] = {str(name): str(value) for name, value in variables.items()}
    return checked


def load_requirements(path: _Path) -> list[str]:
    """The lines of a pip requirements file, with the files it includes."""
    return list(_requirement_lines(Path(path), ()))


_CONDA_LINE = re.compile(r"[\w.-]+==[^=\s]+=[^=\s]+")  # with the build, as conda's solver says it


def load_lock(path: _Path) -> tuple[str, list[str], list[str]]:
    """Of a lock its Python version (empty if it says none), conda lines and pip lines."""
    text = _read(path, "lock")
    python = re.search(r"^# python (\d[\d.]*)$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    loose = [line for line in lines if not re.search(r"==|\s@\s|^-", line)]
    if loose:
        raise user_error(
            f"The lock '{path}' has the line '{loose[0]}'.",
            why="Every line of a lock names one version, as in numpy==1.19.5.",
            fix="Use Environment.from_pip_requirements for a file that leaves versions open.",
        )
    conda = [line for line in lines if _CONDA_LINE.fullmatch(line)]
    pip = [line for line in lines if line not in conda]
    return python[1] if python else "", conda, pip


def _dependencies(items: object, source: str) -> tuple[list[str], list[str]]:
    conda: list[str] = []
    pip: list[str] = []
    if not isinstance(items, list):
        raise _malformed(source, "'dependencies' must be a list.")
    for item in items:
        if isinstance(item, str):
            conda.append(item.strip())
            continue
        lines = item.get("pip") if isinstance(item, dict) and set(item) == {"pip"} else None
        if not isinstance(item, dict) or "pip" not in item or len(item) != 1:
            raise _malformed(source, f"'{item}' is neither a package nor a 'pip:' list.")
        if not isinstance(lines or [], list) or not all(
            isinstance(line, str) for line in lines or []
        ):
            raise _malformed(source, "'pip:' must be a list of requirement lines.")
        pip += [line.strip() for line in lines or [] if line.strip()]
    return conda, pip


def check_yaml(events: Iterator[Any], source: str) -> None:
    """Refuse a text that is small and becomes huge or endless when it is read."""
    import yaml

    aliases = depth = 0
    for event in events:
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if aliases > _MAX_ALIASES or depth > _MAX_DEPTH:
            raise user_error(
                f"The file '{source}' cannot be used.",
                why="It has too many YAML aliases or is nested too deeply.",
                fix="Write it out plainly.",
            )


def _requirement_lines(path: Path, including: tuple[Path, ...]) -> Iterator[str]:
    if path.absolute() in including or len(including) > _MAX_INCLUDES:
        raise user_error(
            f"The requirements file '{path}' includes itself.",
            why=" → ".join(str(one) for one in (*including, path.absolute())),
            fix="Remove the -r line that closes the circle.",
        )
    text = _read(path, "requirements file").replace("\\\r\n", "").replace("\\\n", "")
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        included = re.fullmatch(r"(?:-r|--requirement)(?:\s*=\s*|\s*)(\S.*)", line)
        if included:
            inner = path.parent / included[1].strip("'\"")
            yield from _requirement_lines(inner, (*including, path.absolute()))
        elif re.match(r"(-c|--constraint|-e|--editable)\b|\.{1,2}(/|$)", line):
            raise user_error(
                f"The requirements file '{path}' has the line '{line}'.",
                why="Constraint files, editable installs and local folders do not travel to "
                "the machine that builds the environment.",
                fix="Write the pins into the requirements, and put your own code into the "
                "source directory.",
            )
        elif line:
            yield line


def _read(path: _Path, noun: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise user_error(
            f"The {noun} '{path}' cannot be read.",
            why=f"{error.strerror} (looked for in {os.getcwd()}).",
            fix="Give the path of an existing file.",
        ) from None
    if len(data) > _MAX_BYTES:
        raise user_error(
            f"The {noun} '{path}' is too large.",
            why=f"It has more than {_MAX_BYTES // 1024} KB; such files have a few.",
            fix="Check that this is the right file.",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise user_error(f"The {noun} '{path}' is not text in UTF-8.") from None


def _malformed(source: str, why: str) -> UserErrorException:
    return user_error(
        f"The conda specification '{source}' cannot be used.",
        why=why,
        fix=f"Accepted keys: {', '.join(CONDA_KEYS)}.",
    )
