"""Builds that people ask for, outside of any run. Their logs are kept while the server runs."""

import logging
import threading
from collections.abc import Sequence

from runyard.domain.environments import EnvironmentBuild, EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import NotFound, RunyardError
from runyard.environments.base import Builder, builder_for

log = logging.getLogger(__name__)

KEPT = 100  # builds whose log can still be read


class _Build:
    def __init__(self) -> None:
        self.text = b""
        self.use: EnvironmentUse | None = None
        self.error = ""
        self.done = False


class EnvironmentBuilds:
    """Builds environments in threads of their own, each content key once at a time.

    Runs that need the same environment meanwhile wait for it: the builder's lock is one for all.
    """

    def __init__(self, builders: Sequence[Builder]) -> None:
        self.builders = builders
        self._lock = threading.Lock()
        self._builds: dict[str, _Build] = {}

    def find(self, spec: EnvironmentSpec) -> EnvironmentBuild:
        """The environment if it is there; nothing is built."""
        builder = builder_for(spec, self.builders)
        use = builder.ready(spec)
        return EnvironmentBuild(id=builder.key(spec), done=use is not None, environment=use)

    def start(self, spec: EnvironmentSpec) -> EnvironmentBuild:
        """Begin to build, or join whoever is at it; at once done if it is there."""
        found = self.find(spec)
        if found.done:
            return found
        with self._lock:
            build = self._builds.get(found.id)
            if build is None or build.done:
                build = self._builds[found.id] = _Build()
                for old in [key for key, one in self._builds.items() if one.done][:-KEPT]:
                    del self._builds[old]
                # A daemon: a server that stops does not wait for a download of gigabytes.
                threading.Thread(target=self._run, args=(build, spec), daemon=True).start()
        return self.look(found.id, 0)

    def look(self, id: str, offset: int) -> EnvironmentBuild:
        """How far a build is, and what its log says from `offset` on."""
        with self._lock:
            build = self._builds.get(id)
            if build is None:
                raise NotFound(
                    f"Nobody asked for a build '{id}'.",
                    why="The server may have been restarted since.",
                    fix="Ask for it again; what is built is not built twice.",
                )
            return EnvironmentBuild(
                id=id,
                done=build.done,
                environment=build.use,
                error=build.error,
                log=build.text[offset:].decode("utf-8", "replace"),
                offset=len(build.text),
            )

    def _run(self, build: _Build, spec: EnvironmentSpec) -> None:
        def say(line: str) -> None:
            with self._lock:
                build.text += line.encode("utf-8", "replace") + b"\n"

        try:
            build.use = builder_for(spec, self.builders).build(spec, say)
        except RunyardError as error:
            build.error = str(error)
        except Exception as error:
            log.exception("building the environment '%s' failed by a bug", spec.name)
            build.error = f"Building '{spec.name}' failed: {error!r}. See the server's log."
        with self._lock:
            build.done = True
