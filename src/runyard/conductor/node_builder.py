"""Prepares environments for nodes that are not the server's machine."""

import hashlib
from collections.abc import Sequence

import msgspec

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.engines.base import Capabilities
from runyard.environments.base import Builder, Log, builder_for
from runyard.planning.node_environments import (
    notes_for_nodes,
    spec_for_nodes,
    without_wish_for_container,
)


def builders_for(can: Capabilities, builders: Sequence[Builder]) -> Sequence[Builder]:
    """Who builds what runs on the nodes of an engine that can do that."""
    if not can.shared_folder:
        return [NodeBuilder(builders)]
    return builders if can.containers else [PlainBuilder(builders)]


class PlainBuilder:
    """Builds here for nodes that see our disk, but have no containers."""

    def __init__(self, builders: Sequence[Builder]) -> None:
        self._builders = builders

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True: it is the only one for its nodes."""
        return True

    def key(self, spec: EnvironmentSpec) -> str:
        """That of the same environment without a container."""
        builder, spec = self._here(spec)
        return builder.key(spec)

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it was built."""
        builder, spec = self._here(spec)
        return builder.ready(spec)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it."""
        builder, spec = self._here(spec)
        return builder.build(spec, log)

    def _here(self, spec: EnvironmentSpec) -> tuple[Builder, EnvironmentSpec]:
        spec = without_wish_for_container(spec)
        return builder_for(spec, self._builders), spec


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
        builder, made = self._here(spec)
        use = builder.ready(made)
        return None if use is None else _with_notes(use, spec)

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it here."""
        ready = self.ready(spec)
        if ready is not None:
            return ready
        builder, made = self._here(spec)
        log("building the environment here, to know its packages; the nodes install the same")
        return _with_notes(builder.build(made, log), spec)

    def _here(self, spec: EnvironmentSpec) -> tuple[Builder, EnvironmentSpec]:
        spec = spec_for_nodes(spec)
        return builder_for(spec, self._builders), spec


def _with_notes(use: EnvironmentUse, spec: EnvironmentSpec) -> EnvironmentUse:
    """The environment with what was decided about it for such nodes."""
    return msgspec.structs.replace(use, notes=(*notes_for_nodes(spec), *use.notes))
