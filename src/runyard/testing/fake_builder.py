"""An environment builder that builds nothing: tests say when it is done and how it ends."""

import threading

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import RunyardError
from runyard.environments.base import Log


class FakeBuilder:
    """Everything is ready unless its name is in `slow`; a slow build waits for `finish`."""

    def __init__(self, *slow: str) -> None:
        self.slow = set(slow)
        self.builds = 0
        self.finish = threading.Event()
        self.error: RunyardError | None = None

    def accepts(self, spec: EnvironmentSpec) -> bool:
        return True

    def key(self, spec: EnvironmentSpec) -> str:
        return spec.name

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        return None if spec.name in self.slow else self._use(spec)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        self.builds += 1
        log(f"building {spec.name}")
        self.finish.wait(30)
        if self.error is not None:
            raise self.error
        log("built")
        return self._use(spec)

    def _use(self, spec: EnvironmentSpec) -> EnvironmentUse:
        return EnvironmentUse(key=spec.name, interpreter="/usr/bin/python3", python="3.11.0")
