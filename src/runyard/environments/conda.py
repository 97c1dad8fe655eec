"""Conda environments: packages of conda channels, solved and linked without conda itself."""

import hashlib
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec
import yaml

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed, RunyardError
from runyard.domain.secrets import redact
from runyard.environments.base import Builder, Log
from runyard.environments.build_lock import BuildLock
from runyard.environments.conda_pip import install_on_top
from runyard.environments.conda_plan import (
    CondaPlan,
    CondaSettings,
    conda_fix,
    conda_key,
    needs_conda,
    plan_conda,
)
from runyard.environments.folders import LOCK_FILE, BuiltEnvironment, Folders, write_private
from runyard.environments.interpreters import Probe
from runyard.environments.uv_tool import compile_modules, open_uv
from runyard.planning.environments import plan_venv

_PATIENCE = 300.0  # seconds for the channels to answer: repodata is large and links are slow
_SHORT_PATIENCE = 60.0  # where PyPI has the packages too


class CondaBuilder:
    """Builds conda prefixes with py-rattler. Safe over threads and processes.

    Where that is not possible and PyPI has every package too, the venv builder does it.
    """

    def __init__(
        self, root: Path, environ: Mapping[str, str], probe: Probe, without_conda: Builder
    ) -> None:
        self._folders = Folders(root)
        self._environ = environ
        self._probe = probe
        self._without_conda = without_conda

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True for specs with conda packages beyond python and pip."""
        return not spec.user_managed and needs_conda(spec)

    def key(self, spec: EnvironmentSpec) -> str:
        """Equal for specs that ask for the same packages of the same channels."""
        try:
            return _key(plan_conda(spec, self._settings()))
        except RunyardError:  # it cannot be built; `build` says why, to each such spec its own
            return hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:32]

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it was built, with conda or once without."""
        try:
            plan = plan_conda(spec, self._settings())
        except RunyardError:
            return None  # `build` says what is wrong
        use = self._folders.load(_key(plan), plan.notes)
        if use is None and _has_pip_names(spec):
            # What was built without conda stays: a run of next week gets the same packages.
            return self._without_conda.ready(spec)
        return use

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it, or wait for whoever builds it and take the result, or its failure."""
        try:
            plan = plan_conda(spec, self._settings())
        except RunyardError as error:
            raise EngineFailed(error.what, why=error.why, fix=error.fix) from error
        if find_spec("rattler") is None:
            return self._build_without(spec, log, _not_installed(spec))

        def fill(prefix: Path, lock: BuildLock) -> BuiltEnvironment:
            return self._fill(prefix, spec, plan, log, lock)

        try:
            # In place: conda packages have their prefix written into them, so they cannot be
            # moved once they are linked. Until its marker is there the folder does not count,
            # and only the holder of the build lock removes or makes it.
            return self._folders.build(spec.name, _key(plan), plan.notes, log, fill, in_place=True)
        except _ChannelAway as error:
            return self._build_without(spec, log, error.failure)

    def _build_without(
        self, spec: EnvironmentSpec, log: Log, reason: EngineFailed
    ) -> EnvironmentUse:
        if not _has_pip_names(spec):
            raise reason
        log(f"{reason.what} {reason.why}")
        log("PyPI has every one of these packages: installing them with pip instead")
        return self._without_conda.build(spec, log)

    def _fill(
        self, prefix: Path, spec: EnvironmentSpec, plan: CondaPlan, log: Log, lock: BuildLock
    ) -> BuiltEnvironment:
        """Everything inside the prefix: conda's packages, then pip's."""
        locked = self._link(prefix, spec, plan, log)
        python = self._probe.ask(str(prefix / "bin" / "python"), self._environ)
        if python is None:
            raise EngineFailed(
                f"Environment '{spec.name}' could not be built.",
                why="The Python that the channel gave does not start.",
                fix="Ask for another Python version, or for another channel.",
            )
        log(f"using Python {python.version_text} of the channel")
        tool = open_uv(spec.name, plan.pip, self._environ, self._folders.root, log, lock)
        locked += install_on_top(tool, prefix, plan.pip, python.version, log)
        compile_modules(prefix)
        write_private(prefix / LOCK_FILE, "".join(f"{line}\n" for line in locked))
        return BuiltEnvironment(
            python=python.version_text,
            lock=locked,
            requirements=(*plan.specs, *(redact(line) for line in plan.pip.requirements)),
        )

    def _link(
        self, prefix: Path, spec: EnvironmentSpec, plan: CondaPlan, log: Log
    ) -> tuple[str, ...]:
        # Imported when first needed: it is an optional extra, and costs a tenth of a second.
        from runyard.environments import conda_solver  # noqa: PLC0415

        log(f"solving {', '.join(plan.specs)}")
        log(f"with the channels {', '.join(redact(url) for url in plan.channels)}")
        patience = _SHORT_PATIENCE if _has_pip_names(spec) else _PATIENCE
        try:
            return conda_solver.install_packages(
                plan.channels, plan.specs, prefix, self._cache(), patience, log
            )
        except conda_solver.Unreachable as error:
            words = redact(str(error))
            what = f"A channel of environment '{spec.name}' cannot be reached."
            failure = EngineFailed(what, why=words, fix=conda_fix(words))
            raise _ChannelAway(failure) from error
        except conda_solver.Unsolved as error:
            words = redact(str(error))
            raise EngineFailed(
                f"Environment '{spec.name}' could not be built.", why=words, fix=conda_fix(words)
            ) from error

    def _cache(self) -> Path:
        """Where packages and indexes are kept: rattler's own place, shared with its tools."""
        if named := self._environ.get("RATTLER_CACHE_DIR"):
            return Path(named)
        home = Path(self._environ.get("HOME") or Path.home())
        return Path(self._environ.get("XDG_CACHE_HOME") or home / ".cache") / "rattler" / "cache"

    def _settings(self) -> CondaSettings:
        """conda's own configuration, as far as it says where packages come from."""
        home = Path(self._environ.get("HOME") or Path.home())
        path = Path(self._environ.get("CONDARC") or home / ".condarc")
        try:
            said = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            said = {}
        if not isinstance(said, dict):
            said = {}
        known = CondaSettings()
        alias = self._environ.get("CONDA_CHANNEL_ALIAS") or said.get("channel_alias")
        defaults = said.get("default_channels")
        return CondaSettings(
            alias=alias if isinstance(alias, str) else known.alias,
            defaults=tuple(str(one) for one in defaults)
            if isinstance(defaults, list)
            else known.defaults,
        )


class _ChannelAway(Exception):
    """A channel did not answer: the one failure that pip may heal."""

    def __init__(self, failure: EngineFailed) -> None:
        super().__init__(failure.what)
        self.failure = failure


def _not_installed(spec: EnvironmentSpec) -> EngineFailed:
    return EngineFailed(
        f"Environment '{spec.name}' needs conda packages: {', '.join(spec.conda)}.",
        why="What installs them, py-rattler, is not there.",
        fix="Install it next to Runyard: pip install 'runyard[conda]'. Or move packages that "
        "PyPI has too under 'pip:' in the environment's file.",
    )


def _has_pip_names(spec: EnvironmentSpec) -> bool:
    try:
        plan_venv(spec)
    except RunyardError:
        return False
    return True


def _key(plan: CondaPlan) -> str:
    return conda_key(plan, f"{sys.platform}-{platform.machine()}")
