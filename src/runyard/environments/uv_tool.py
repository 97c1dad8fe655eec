"""Runs uv: with pip's configuration, its words in the build log, its failures explained."""

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import uv

from runyard.domain.errors import EngineFailed
from runyard.domain.secrets import redact
from runyard.environments.base import Log
from runyard.environments.build_lock import BuildLock
from runyard.environments.folders import LOCK_FILE, write_private
from runyard.environments.pip_configuration import (
    existing_only,
    load_pip_configuration,
    merge_options,
    network_variables,
    render_options,
)
from runyard.planning.environments import (
    IndexOptions,
    VenvPlan,
    explain_failure,
    lock_with_hashes,
)
from runyard.planning.requirements import requirement_name

# Names another environment or project, or a secret that a package's setup.py must not see.
_NOT_FOR_UV = (
    "CONDA_PREFIX",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_WORKING_DIR",
    "VIRTUAL_ENV",
)


class Uv:
    """Runs uv and passes each of its lines on as it comes."""

    def __init__(
        self,
        name: str,
        environ: Mapping[str, str],
        folder: Path,
        log: Log,
        lock: BuildLock,
        options: IndexOptions,
        program: Sequence[str] = (),
    ) -> None:
        self.environ = environ
        self.options = options  # pip's configuration and the environment's own lines together
        self._name = name
        self._folder = folder
        self._log = log
        self._lock = lock
        self._program = program  # empty: uv itself; else what starts it somewhere else

    def with_variables(self, variables: Mapping[str, str]) -> "Uv":
        """The same uv with further variables."""
        return Uv(
            self._name,
            {**self.environ, **variables},
            self._folder,
            self._log,
            self._lock,
            self.options,
            self._program,
        )

    def run(self, *arguments: str, after_line: Callable[[str], str] | None = None) -> None:
        """Run one command; `EngineFailed` with uv's own words if it fails.

        What `after_line` answers to a line of uv's follows it in the log.
        """
        tail: deque[str] = deque(maxlen=200)
        # A session of its own: Ctrl-C at the server must not look like a failed build. The lock
        # is inherited: if the server is killed, nobody clears the folder under a living uv.
        with subprocess.Popen(
            [*(self._program or [find_uv()]), *arguments],
            env=dict(self.environ),
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[self._lock.descriptor],
        ) as process:
            assert process.stderr is not None
            try:
                for raw in process.stderr:
                    line = redact(raw.decode("utf-8", "replace").rstrip())
                    tail.append(line)
                    self._log(line)
                    if after_line is not None and (more := after_line(line)):
                        self._log(more)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            why, fix = explain_failure(list(tail))
            raise EngineFailed(f"Environment '{self._name}' could not be built.", why=why, fix=fix)


def find_uv() -> str:
    """The program; `EngineFailed` if it is not there."""
    try:
        return uv.find_uv_bin()
    except FileNotFoundError as error:
        raise EngineFailed(
            "Environments cannot be built: uv is not there.",
            why=str(error),
            fix="Install it next to Runyard: pip install uv",
        ) from error


def open_uv(
    name: str, plan: VenvPlan, environ: Mapping[str, str], folder: Path, log: Log, lock: BuildLock
) -> Uv:
    """uv for one build, set up as pip is set up on this machine; the plan's notes are logged."""
    configuration = load_pip_configuration(environ)
    options, skipped = existing_only(merge_options(configuration.options, plan.options))
    for note in (*configuration.notes, *skipped, *plan.notes):
        log(note)
    network = network_variables(configuration, options.trusted_hosts, environ)
    return Uv(name, _uv_environment(environ, network), folder, log, lock, options)


def install_requirements(
    tool: Uv,
    building: Path,
    plan: VenvPlan,
    version: Sequence[int],
    finish: Callable[[tuple[str, ...], Sequence[str]], Sequence[str]] = lambda lock, options: (),
    *,
    wheels_only: bool = False,
) -> tuple[str, ...]:
    """Resolve to a lock, then install exactly that; returns the lock.

    `finish` is called with the lock and uv's options when everything is in place, and returns
    the lines of what it installed on top. `wheels_only`: of what the plan
    names; what that needs in turn may be compiled, because small old packages had no wheels.
    """
    python = str(building / "bin" / "python")
    wanted, lock = building / "requirements.in", building / LOCK_FILE
    limits = building / "constraints.txt"
    where = building / "options.txt"  # may hold passwords: never readable by others, never kept
    options = render_options(tool.options)
    write_private(where, options)
    write_private(wanted, _lines(plan.requirements))
    write_private(limits, _lines(plan.constraints))
    write_private(lock, "")
    sources = [str(where)] if options else []
    # pip looks at every index and takes the best version; uv would stop at the first that has any.
    common = ["--python", python, "--index-strategy", "unsafe-best-match"]
    common += ["--prerelease", "allow"] if tool.options.prerelease else []
    names = [requirement_name(line) for line in plan.requirements] if wheels_only else []
    wheels = [word for name in names if name for word in ("--only-binary", name)]
    tool.run(
        *("pip", "compile", "--no-header", "--no-annotate", "--upgrade", "-o", str(lock)),
        *common,
        *wheels,
        *(["--constraint", str(limits)] if plan.constraints else []),
        *sources,
        str(wanted),
    )
    text = lock.read_text(encoding="utf-8")
    locked = tuple(line for line in text.splitlines() if line.strip() and line[0] not in "#- ")
    write_private(lock, _lines(lock_with_hashes(locked, plan.requirements)))

    by_uv = tuple(version) >= (3, 7)  # uv's compiling script does not run on Python 3.6
    common += ["-r", *sources] if sources else []
    tool.run(
        *("pip", "install", "--no-deps", "--link-mode", "hardlink", "-r", str(lock)),
        *common,
        *wheels,
        *(["--compile-bytecode"] if by_uv else []),
        after_line=partial(_announce_compiling, building) if by_uv else None,
    )
    more = finish(locked, common)
    if more:
        write_private(lock, lock.read_text(encoding="utf-8") + _lines(more))
    if more or not by_uv:
        compile_modules(building)
    for temporary in (where, wanted, limits):
        temporary.unlink()
    return (*locked, *more)


def _announce_compiling(building: Path, line: str) -> str:
    """What uv does next and does not say, after the line that all packages are in place."""
    if not line.startswith("Installed "):
        return ""
    count = sum(1 for _ in building.glob("lib/python*/site-packages/**/*.py"))
    return f"compiling bytecode of {count} files …"


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def compile_modules(building: Path) -> None:
    """Bytecode for all modules; files that no Python 3 can read are left as they are."""
    for folder in building.glob("lib/python*/site-packages"):
        subprocess.run(
            [str(building / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def _uv_environment(environ: Mapping[str, str], network: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _NOT_FOR_UV and not name.startswith(("RUNYARD_", "AZUREML_"))
    }
    return {**kept, **network, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}
