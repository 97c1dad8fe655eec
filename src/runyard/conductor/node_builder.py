"""Prepares environments for nodes that do not see the server's disk."""

import hashlib
from collections.abc import Sequence

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.environments.base import Builder, Log, builder_for
from runyard.planning.node_environments import spec_for_nodes


class NodeBuilder:
    """Builds here what the nodes build again: that gives the lock, and errors before they start.

    An interpreter that the user looks after is looked for on the nodes alone.
    """

    def __init__(self, builders: Sequence[Builder]) -> None:
        self._builders = builders

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True: it is the only one for its nodes."""
        return True

    def key(self, spec: EnvironmentSpec) -> str:
        """That of the builder here; an interpreter of the nodes is its own."""
        if spec.user_managed:
            return hashlib.sha256(f"on nodes\n{spec.interpreter}".encode()).hexdigest()[:32]
        builder, spec = self._here(spec)
        return builder.key(spec)

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it was built here."""
        if spec.user_managed:
            return EnvironmentUse(key=self.key(spec), interpreter=spec.interpreter, python="")
        builder, spec = self._here(spec)
        return builder.ready(spec)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it here."""
        ready = self.ready(spec)
        if ready is not None:
            return ready
        builder, spec = self._here(spec)
        log("building the environment here, to know its packages; the nodes install the same")
        return builder.build(spec, log)

    def _here(self, spec: EnvironmentSpec) -> tuple[Builder, EnvironmentSpec]:
        spec = spec_for_nodes(spec)
        return builder_for(spec, self._builders), spec
