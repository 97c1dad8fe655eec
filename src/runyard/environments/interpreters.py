"""The Python interpreters of this machine: on PATH, of pyenv, of uv and of conda."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from runyard.domain.errors import EngineFailed
from runyard.planning.environments import pick_version
from runyard.planning.requirements import Version, parse_version

OLDEST = (3, 6)  # what the runtime that travels into jobs needs

_QUESTION = (
    "import sys, json; sys.stdout.write('runyard:' + json.dumps([list(sys.version_info[:3]), "
    "sys.executable, getattr(getattr(sys, 'implementation', None), 'name', 'cpython')]))"
)
_PROBE_SECONDS = 30  # a cold start from a network disk may take a while


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """One interpreter, as it describes itself."""

    path: str
    version: Version
    implementation: str = "cpython"

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(str(part) for part in self.version)


class Probe:
    """Asks interpreters who they are, each only once as long as its file stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], Interpreter] = {}
        self._lock = threading.Lock()

    def known(self, path: str) -> Interpreter | None:
        """What that interpreter said before; None if it was not asked yet, at no cost."""
        with self._lock:
            return self._known.get(_identity(path))

    def ask(self, path: str, environ: Mapping[str, str]) -> Interpreter | None:
        """What the interpreter at `path` says it is; None if it is not a working Python."""
        identity = _identity(path)
        with self._lock:
            if identity in self._known:
                return self._known[identity]
        answer = _ask(path, environ)
        if answer is not None:  # what fails is asked again: it may be mended meanwhile
            with self._lock:
                self._known[identity] = answer
        return answer


def choose_interpreter(
    asked: str | None, environ: Mapping[str, str], probe: Probe
) -> tuple[Interpreter | None, str]:
    """The interpreter for the version that was asked for, and a note if it is not exactly that.

    None asked: the one the platform runs on. Never another minor version; None if there is none.
    """
    if asked is None:
        return probe.ask(sys.executable, environ), ""
    found = [
        interpreter
        for path in candidates(environ)
        if _may_be(path, asked) and (interpreter := probe.ask(path, environ))
        if interpreter.implementation == "cpython" and interpreter.version >= OLDEST
    ]
    version = pick_version(asked, [interpreter.version for interpreter in found])
    if version is None:
        return None, ""
    chosen = next(one for one in found if one.version == version)
    other_patch = asked[0].isdigit() and version[: len(parse_version(asked))] != parse_version(
        asked
    )
    return chosen, f"asked for Python {asked}, using {chosen.version_text}" if other_patch else ""


def installed(environ: Mapping[str, str], probe: Probe) -> list[Interpreter]:
    """Every usable interpreter that is found, newest first."""
    answers = (probe.ask(path, environ) for path in candidates(environ))
    usable = {one.version: one for one in answers if one is not None and one.version >= OLDEST}
    return [usable[version] for version in sorted(usable, reverse=True)]


def other_series(own: Version, environ: Mapping[str, str], probe: Probe) -> list[Interpreter]:
    """The newest CPython of every minor version but `own`'s, newest first."""
    newest: dict[Version, Interpreter] = {}
    for one in installed(environ, probe):
        if one.implementation == "cpython":
            newest.setdefault(one.version[:2], one)
    return [one for series, one in newest.items() if series != own[:2]]


def candidates(environ: Mapping[str, str]) -> Iterator[str]:
    """Paths that may be interpreters, each real file once; the platform's own comes first."""
    seen: set[str] = set()
    for path in _places(environ):
        try:
            real = os.path.realpath(path)
        except OSError:
            continue
        if real not in seen and os.path.isfile(real) and os.access(real, os.X_OK):
            seen.add(real)
            yield str(path)


def is_pyenv_shim(path: str) -> bool:
    """True for pyenv's launchers on PATH: scripts that pick an interpreter at every start."""
    if Path(path).parent.name != "shims":
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError:
        return False
    return head.startswith(b"#!") and b"pyenv" in head


def locate(name: str, environ: Mapping[str, str]) -> str | None:
    """The file that an interpreter setting means: a path, a folder with an environment, a name."""
    text = os.path.expanduser(name.strip())
    if os.path.isdir(text):
        for inside in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
            if os.path.isfile(os.path.join(text, inside)):
                return os.path.abspath(os.path.join(text, inside))
        return None
    if os.sep in text:
        return os.path.abspath(text) if os.path.isfile(text) else None
    return shutil.which(text, path=environ.get("PATH", os.defpath))


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME") or Path.home())
    yield Path(getattr(sys, "_base_executable", None) or sys.executable)
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if folder and Path(folder).name != "shims":
            found = sorted(Path(folder).glob("python3*"), reverse=True)
            yield from (one for one in found if one.name[6:].replace(".", "").isdigit())
            yield Path(folder) / "python"
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    managed = Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for versions in (pyenv, managed):
        yield from sorted(versions.glob("*/bin/python3"), reverse=True)
    roots = [Path(environ["CONDA_PREFIX"])] if environ.get("CONDA_PREFIX") else []
    names = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")
    roots += [home / name for name in names] + [Path("/opt/conda")]
    for root in roots:
        yield root / "bin" / "python"
        yield from sorted(root.glob("envs/*/bin/python"))


def _may_be(path: str, asked: str) -> bool:
    """False only if the path itself says another minor version: that spares starting it."""
    wanted = parse_version(asked)
    if len(wanted) < 2 or not asked[0].isdigit():
        return True
    name = Path(path).name.removeprefix("python")
    said = parse_version(name)
    if len(said) < 2:
        folder = Path(path).parent.parent.name.removeprefix("cpython-")
        said = parse_version(folder)
    return len(said) < 2 or said[:2] == wanted[:2]


def _identity(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (path, 0, 0)
    return (path, status.st_mtime_ns, status.st_size)


def _ask(path: str, environ: Mapping[str, str]) -> Interpreter | None:
    # Another environment's PYTHONHOME or PYTHONPATH would make a good interpreter fail.
    clean = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [path, "-E", "-S", "-c", _QUESTION],
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    _, mark, answer = done.stdout.decode("utf-8", "replace").partition("runyard:")
    if done.returncode != 0 or not mark:
        return None
    version, executable, implementation = json.loads(answer)
    # A pyenv shim costs a shell at every start and depends on the folder it is started in.
    return Interpreter(
        path=executable if is_pyenv_shim(path) and executable else path,
        version=tuple(version),
        implementation=implementation,
    )


def missing_interpreter(asked: str, environ: Mapping[str, str], probe: Probe) -> EngineFailed:
    """The error for a Python version that this machine does not have."""
    found = ", ".join(one.version_text for one in installed(environ, probe)) or "none at all"
    series = ".".join(str(part) for part in parse_version(asked)[:2]) or asked
    return EngineFailed(
        f"There is no Python {asked} on this machine.",
        why=f"Found: {found}. Another minor version would not fit the packages.",
        fix=f"Install one (uv python install {series}, pyenv install {series}), or ask for a "
        "version that is there.",
    )
