"""An interpreter that the user looks after: used as it is, nothing is installed."""

import hashlib
import os
import sys
from collections.abc import Mapping

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.environments.base import Log
from runyard.environments.interpreters import (
    OLDEST,
    Interpreter,
    Probe,
    installed,
    is_pyenv_shim,
    locate,
)

_DEFAULT = "python"  # v1's default; many machines only have a `python3`


class UserManagedBuilder:
    """Finds the interpreter and asks it for its version, once."""

    def __init__(self, environ: Mapping[str, str], probe: Probe) -> None:
        self._environ = environ
        self._probe = probe

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True if the user brings the interpreter."""
        return spec.user_managed

    def key(self, spec: EnvironmentSpec) -> str:
        """The same interpreter has the same key."""
        path, _ = self._find(spec)
        content = f"user-managed\n{path or spec.interpreter}"
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The interpreter if it was asked before and is still the same file."""
        path, notes = self._find(spec)
        known = self._probe.known(path) if path else None
        if known is None or known.version < OLDEST or not os.access(known.path, os.X_OK):
            return None
        return self._use(spec, known, notes)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Ask the interpreter; `EngineFailed` if there is none, or it is no Python."""
        path, notes = self._find(spec)
        if path is None:
            raise self._failed(spec, self._why_missing(spec))
        if not os.access(path, os.X_OK):
            raise self._failed(spec, f"{path} is not executable.")
        interpreter = self._probe.ask(path, self._environ)
        if interpreter is None:
            raise self._failed(spec, f"{path} did not answer as a Python interpreter.")
        if interpreter.version < OLDEST:
            raise self._failed(
                spec, f"{path} is Python {interpreter.version_text}; jobs need 3.6 or newer."
            )
        for note in notes:
            log(note)
        log(f"using Python {interpreter.version_text} at {interpreter.path}, as it is")
        return self._use(spec, interpreter, notes)

    def _find(self, spec: EnvironmentSpec) -> tuple[str | None, tuple[str, ...]]:
        path = locate(spec.interpreter or _DEFAULT, self._environ)
        if path is not None or spec.interpreter.strip() not in ("", _DEFAULT):
            return path, ()
        other = locate("python3", self._environ)
        if other is None or is_pyenv_shim(other):
            other = sys.executable
        return other, (f"there is no 'python' on PATH, using {other}",)

    def _use(
        self, spec: EnvironmentSpec, interpreter: Interpreter, notes: tuple[str, ...]
    ) -> EnvironmentUse:
        return EnvironmentUse(
            key=self.key(spec),
            interpreter=interpreter.path,
            python=interpreter.version_text,
            notes=notes,
        )

    def _why_missing(self, spec: EnvironmentSpec) -> str:
        text = os.path.expanduser(spec.interpreter.strip())
        if os.path.isdir(text):
            return f"The folder {text} holds no bin/python."
        if os.sep in text:
            return f"There is no file {text}."
        return f"There is no '{text}' on PATH: {self._environ.get('PATH', '')}"

    def _failed(self, spec: EnvironmentSpec, why: str) -> EngineFailed:
        found = [
            f"{one.path} ({one.version_text})" for one in installed(self._environ, self._probe)
        ]
        return EngineFailed(
            f"The interpreter '{spec.interpreter}' of environment '{spec.name}' cannot be used.",
            why=why,
            fix="Set python.interpreter_path to an interpreter of this machine: "
            + (", ".join(found[:8]) or "install one first")
            + ".",
        )
