"""Virtual environments, made by uv from requirement lines and kept by content.

<root>/<key>/                      a whole environment: bin/python, requirements.lock, …
<root>/<key>/runyard.json          written last: without it the folder does not count
<root>/<key>/last-used             touched at every use, for a later clean-up
<root>/<key>.building-…/           one that is being made, or what a crash left of it
<root>/locks/<key>                 held (flock) while somebody builds that key
"""

import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import uv

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed, RunyardError
from runyard.environments.base import Log
from runyard.environments.build_lock import BuildLock
from runyard.environments.interpreters import Probe, choose_interpreter, missing_interpreter
from runyard.environments.pip_configuration import (
    existing_only,
    load_pip_configuration,
    merge_options,
    network_variables,
    render_options,
)
from runyard.planning.environments import (
    VenvPlan,
    explain_failure,
    lock_with_hashes,
    plan_key,
    plan_venv,
    redact,
)

BUILDER = "venv-1"  # part of every key: raise it when a build would come out differently
MARKER = "runyard.json"
LAST_USED = "last-used"
LOCK_FILE = "requirements.lock"

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


class BuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the marker file says of a finished environment."""

    python: str
    lock: tuple[str, ...]
    note: str = ""  # on the choice of the interpreter
    requirements: tuple[str, ...] = ()
    size_bytes: int = 0
    seconds: float = 0.0


class VenvBuilder:
    """Builds virtual environments with uv. Safe over threads and processes."""

    def __init__(self, root: Path, environ: Mapping[str, str], probe: Probe) -> None:
        self._root = root
        self._environ = environ
        self._probe = probe

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True for everything that is to be built: the packages go into a venv."""
        return not spec.user_managed

    def key(self, spec: EnvironmentSpec) -> str:
        """Equal for specs that ask for the same packages on the same Python."""
        try:
            return _key(plan_venv(spec))
        except RunyardError:  # it cannot be built; `build` says why, to each such spec its own
            return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:32]

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it was built; reads one small file and touches another."""
        try:
            plan = plan_venv(spec)
        except RunyardError:
            return None  # `build` says what is wrong
        return self._load(plan, _key(plan))

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it, or wait for whoever builds it and take the result, or its failure."""
        try:
            plan = plan_venv(spec)
        except RunyardError as error:
            raise EngineFailed(error.what, why=error.why, fix=error.fix) from error
        key = _key(plan)
        if (use := self._load(plan, key)) is not None:
            return use
        try:
            self._build_alone(spec.name, plan, key, log)
        except OSError as error:
            raise EngineFailed(
                f"Environment '{spec.name}' could not be built.",
                why=str(error),
                fix=f"See that {self._root} can be written to and has space left.",
            ) from error
        use = self._load(plan, key)
        if use is None:
            raise EngineFailed(
                f"Environment '{spec.name}' vanished as soon as it was built.",
                why=f"{self._root / key} is not complete.",
                fix="Submit again; keep other programs out of that folder.",
            )
        return use

    def _build_alone(self, name: str, plan: VenvPlan, key: str, log: Log) -> None:
        """Build while nobody else builds the same, unless somebody just did."""
        with BuildLock(self._root / "locks", key) as lock:
            lock.acquire(lambda: log("waiting for another run that builds this environment"))
            if self._load(plan, key) is not None:
                return
            if (failure := lock.failure_while_waiting()) is not None:
                raise failure
            try:
                self._make(name, plan, key, log, lock)
            except EngineFailed as error:
                lock.record_failure(error)
                raise

    def _load(self, plan: VenvPlan, key: str) -> EnvironmentUse | None:
        folder = self._root / key
        python = folder / "bin" / "python"
        try:
            built = msgspec.json.decode((folder / MARKER).read_bytes(), type=BuiltEnvironment)
            if not python.exists():  # the interpreter behind it was removed
                return None
            (folder / LAST_USED).touch()
        except (OSError, msgspec.MsgspecError):
            return None
        return EnvironmentUse(
            key=key,
            interpreter=str(python),
            python=built.python,
            lock=built.lock,
            notes=((built.note,) if built.note else ()) + plan.notes,
        )

    def _make(self, name: str, plan: VenvPlan, key: str, log: Log, lock: BuildLock) -> None:
        """Build beside, then rename into place."""
        started = time.monotonic()
        self._clear(key)
        building = self._root / f"{key}.building-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            built = self._fill(building, name, plan, log, lock)
            built = msgspec.structs.replace(
                built, size_bytes=_size(building), seconds=time.monotonic() - started
            )
            _write_durably(building / MARKER, msgspec.json.encode(built))
            building.rename(self._root / key)
            _sync_folder(self._root)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        log(f"environment {key} is ready after {time.monotonic() - started:.1f} s")

    def _fill(
        self, building: Path, name: str, plan: VenvPlan, log: Log, lock: BuildLock
    ) -> BuiltEnvironment:
        """Everything inside the folder: interpreter, lock, packages."""
        configuration = load_pip_configuration(self._environ)
        options, skipped = existing_only(merge_options(configuration.options, plan.options))
        for note in (*configuration.notes, *skipped, *plan.notes):
            log(note)
        network = network_variables(configuration, options.trusted_hosts, self._environ)
        tool = _Uv(name, self._uv_environment(network), self._root, log, lock)

        interpreter, note = choose_interpreter(plan.python, self._environ, self._probe)
        if interpreter is None:
            asked = plan.python or platform.python_version()
            if self._environ.get("UV_PYTHON_DOWNLOADS") in ("never", "manual"):
                raise missing_interpreter(asked, self._environ, self._probe)
            log(f"there is no Python {asked} on this machine; uv tries to download one")
            try:
                tool.run("venv", "-q", "--relocatable", "--python", asked, str(building))
            except EngineFailed as error:
                raise missing_interpreter(asked, self._environ, self._probe) from error
        else:
            log(note or f"using Python {interpreter.version_text}")
            tool.run(
                *("venv", "-q", "--relocatable", "--no-python-downloads"),
                *("--python", interpreter.path, str(building)),
            )

        python = building / "bin" / "python"
        made = self._probe.ask(str(python), self._environ)
        if made is None:
            raise EngineFailed(
                f"Environment '{name}' could not be built.",
                why="The interpreter of the new virtual environment does not start.",
                fix="Check the Python that it was made from, or ask for another version.",
            )
        locked: tuple[str, ...] = ()
        if plan.requirements:
            extra = ["--prerelease", "allow"] if options.prerelease else []
            locked = _install(tool, building, plan, render_options(options), extra, made.version)
        return BuiltEnvironment(
            python=made.version_text,
            lock=tuple(redact(line) for line in locked),
            note=note,
            requirements=tuple(redact(line) for line in plan.requirements),
        )

    def _clear(self, key: str) -> None:
        """Remove what a crash left, and an environment that no longer counts as whole."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (self._root / key).exists():
            # Renamed first: a removal that is broken off must not leave half a folder there.
            (self._root / key).rename(self._root / f"{key}.building-old-{secrets.token_hex(4)}")
        for left in self._root.glob(f"{key}.building-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _uv_environment(self, network: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self._environ.items()
            if name not in _NOT_FOR_UV and not name.startswith(("RUNYARD_", "AZUREML_"))
        }
        return {**kept, **network, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}


def _install(
    tool: "_Uv",
    building: Path,
    plan: VenvPlan,
    options: str,
    extra: Sequence[str],
    version: Sequence[int],
) -> tuple[str, ...]:
    """Resolve to a lock, then install exactly that; returns the lock."""
    python = str(building / "bin" / "python")
    wanted, lock = building / "requirements.in", building / LOCK_FILE
    where = building / "options.txt"  # may hold passwords: never readable by others, never kept
    _write_private(where, options)
    _write_private(wanted, "".join(f"{line}\n" for line in plan.requirements))
    _write_private(lock, "")
    sources = [str(where)] if options else []
    # pip looks at every index and takes the best version; uv would stop at the first that has any.
    common = ["--python", python, "--index-strategy", "unsafe-best-match", *extra]
    tool.run(
        *("pip", "compile", "--no-header", "--no-annotate", "--upgrade", "-o", str(lock)),
        *common,
        *sources,
        str(wanted),
    )
    text = lock.read_text(encoding="utf-8")
    locked = tuple(line for line in text.splitlines() if line.strip() and line[0] not in "#- ")
    _write_private(
        lock, "".join(f"{line}\n" for line in lock_with_hashes(locked, plan.requirements))
    )

    by_uv = tuple(version) >= (3, 7)  # uv's compiling script does not run on Python 3.6
    tool.run(
        *("pip", "install", "--no-deps", "--link-mode", "hardlink", "-r", str(lock)),
        *common,
        *(["-r", *sources] if sources else []),
        *(["--compile-bytecode"] if by_uv else []),
    )
    if not by_uv:
        _compile(building)
    where.unlink()
    wanted.unlink()
    return locked


def _compile(building: Path) -> None:
    """Bytecode for all modules; files that no Python 3 can read are left as they are."""
    for folder in building.glob("lib/python*/site-packages"):
        subprocess.run(
            [str(building / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


class _Uv:
    """Runs uv and passes each of its lines on as it comes."""

    def __init__(
        self, name: str, environ: Mapping[str, str], folder: Path, log: Log, lock: BuildLock
    ) -> None:
        self._name = name
        self._environ = environ
        self._folder = folder
        self._log = log
        self._lock = lock

    def run(self, *arguments: str) -> None:
        """Run one command; `EngineFailed` with uv's own words if it fails."""
        try:
            program = uv.find_uv_bin()
        except FileNotFoundError as error:
            raise EngineFailed(
                "Environments cannot be built: uv is not there.",
                why=str(error),
                fix="Install it next to Runyard: pip install uv",
            ) from error
        tail: deque[str] = deque(maxlen=200)
        # A session of its own: Ctrl-C at the server must not look like a failed build. The lock
        # is inherited: if the server is killed, nobody clears the folder under a living uv.
        with subprocess.Popen(
            [program, *arguments],
            env=dict(self._environ),
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
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            why, fix = explain_failure(list(tail))
            raise EngineFailed(f"Environment '{self._name}' could not be built.", why=why, fix=fix)


def _key(plan: VenvPlan) -> str:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    place = f"{sys.platform}-{platform.machine()}"
    return plan_key(plan, own_python=own, platform=place, builder=BUILDER)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(parent, name)).st_size for name in names)
    return total


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
