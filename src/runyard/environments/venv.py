"""Virtual environments, made by uv from requirement lines and kept by content."""

import hashlib
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed, RunyardError
from runyard.domain.secrets import redact
from runyard.environments.base import Log
from runyard.environments.build_lock import BuildLock
from runyard.environments.folders import BuiltEnvironment, Folders
from runyard.environments.horovod import install_horovod
from runyard.environments.interpreters import (
    Interpreter,
    Probe,
    choose_interpreter,
    missing_interpreter,
    other_series,
)
from runyard.environments.uv_tool import Uv, install_requirements, open_uv
from runyard.planning.environments import (
    VenvPlan,
    may_fit_another_python,
    plan_key,
    plan_venv,
)
from runyard.planning.requirements import Version

BUILDER = "venv-1"  # part of every key: raise it when a build would come out differently


class VenvBuilder:
    """Builds virtual environments with uv. Safe over threads and processes."""

    def __init__(self, root: Path, environ: Mapping[str, str], probe: Probe) -> None:
        self._folders = Folders(root)
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
        return self._folders.load(_key(plan), plan.notes)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it, or wait for whoever builds it and take the result, or its failure."""
        try:
            plan = plan_venv(spec)
        except RunyardError as error:
            raise EngineFailed(error.what, why=error.why, fix=error.fix) from error

        def fill(building: Path, lock: BuildLock) -> BuiltEnvironment:
            return self._fill(building, spec.name, plan, log, lock)

        return self._folders.build(spec.name, _key(plan), plan.notes, log, fill)

    def _fill(
        self, building: Path, name: str, plan: VenvPlan, log: Log, lock: BuildLock
    ) -> BuiltEnvironment:
        """Everything inside the folder: interpreter, lock, packages."""
        tool = open_uv(name, plan, self._environ, self._folders.root, log, lock)
        interpreter, note = choose_interpreter(plan.python, self._environ, self._probe)
        if interpreter is None:
            self._download_interpreter(building, plan, tool, log)
        else:
            log(note or f"using Python {interpreter.version_text}")
            _make_venv(tool, building, interpreter)
        try:
            return self._fill_venv(building, name, plan, log, tool, note)
        except EngineFailed as failure:
            if plan.python is not None or not may_fit_another_python(failure.why):
                raise
            built = self._fill_other(building, name, plan, log, tool)
            if built is None:
                raise
            return built

    def _fill_other(
        self, building: Path, name: str, plan: VenvPlan, log: Log, tool: Uv
    ) -> BuiltEnvironment | None:
        """The packages on the newest other Python that has their wheels; None if none has.

        v1's own default was Python 3.6, so old pins without a Python version are common.
        """
        own = platform.python_version()
        log(f"they do not fit Python {own}, and no version was asked for: trying the others")
        for interpreter in other_series(sys.version_info[:3], self._environ, self._probe):
            found = interpreter.version_text
            log(f"trying Python {found}, with wheels only")
            note = f"the packages do not fit Python {own}, using {found}; no version was asked for"
            try:
                _make_venv(tool, building, interpreter)
                built = self._fill_venv(building, name, plan, log, tool, note, wheels_only=True)
            except EngineFailed:
                continue
            log(note)
            return built
        return None

    def _download_interpreter(self, building: Path, plan: VenvPlan, tool: Uv, log: Log) -> None:
        """A virtual environment of a Python that uv fetches, where it may."""
        asked = plan.python or platform.python_version()
        if self._environ.get("UV_PYTHON_DOWNLOADS") in ("never", "manual"):
            raise missing_interpreter(asked, self._environ, self._probe)
        log(f"there is no Python {asked} on this machine; uv tries to download one")
        try:
            tool.run("venv", "-q", "--relocatable", "--python", asked, str(building))
        except EngineFailed as error:
            raise missing_interpreter(asked, self._environ, self._probe) from error

    def _fill_venv(
        self,
        building: Path,
        name: str,
        plan: VenvPlan,
        log: Log,
        tool: Uv,
        note: str,
        *,
        wheels_only: bool = False,
    ) -> BuiltEnvironment:
        """Lock and packages, into the virtual environment that is there."""
        made = self._probe.ask(str(building / "bin" / "python"), self._environ)
        if made is None:
            raise EngineFailed(
                f"Environment '{name}' could not be built.",
                why="The interpreter of the new virtual environment does not start.",
                fix="Check the Python that it was made from, or ask for another version.",
            )
        locked: tuple[str, ...] = ()
        if plan.requirements:
            locked = _install(tool, building, plan, made.version, log, wheels_only=wheels_only)
        return BuiltEnvironment(
            python=made.version_text,
            lock=tuple(redact(line) for line in locked),
            note=note,
            requirements=tuple(redact(line) for line in plan.requirements),
        )


def _make_venv(tool: Uv, building: Path, interpreter: Interpreter) -> None:
    """A new virtual environment, in place of what is there."""
    tool.run(
        *("venv", "-q", "--relocatable", "--no-python-downloads", "--clear"),
        *("--python", interpreter.path, str(building)),
    )


def _install(
    tool: Uv,
    building: Path,
    plan: VenvPlan,
    version: Version,
    log: Log,
    *,
    wheels_only: bool,
) -> tuple[str, ...]:
    """Install what the plan asks for, Horovod last; returns the lock."""

    def finish(lock: tuple[str, ...], options: Sequence[str]) -> list[str]:
        if not plan.horovod:
            return []
        return [install_horovod(tool, building, plan.horovod, lock, version, options, log)]

    return install_requirements(tool, building, plan, version, finish, wheels_only=wheels_only)


def _key(plan: VenvPlan) -> str:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    place = f"{sys.platform}-{platform.machine()}"
    return plan_key(plan, own_python=own, platform=place, builder=BUILDER)
