"""What turns an environment spec into an interpreter.

A builder is one file in this folder and one line in `runyard.environments.BUILDERS`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import Unsupported

Log = Callable[[str], None]  # takes one line of the build log, without its newline


class Builder(Protocol):
    """Builds environments of one kind. Safe to call from several threads and processes."""

    def accepts(self, spec: EnvironmentSpec) -> bool:
        """True if this builder is the one for that spec."""

    def key(self, spec: EnvironmentSpec) -> str:
        """The content key: specs that build the same thing have the same one."""

    def ready(self, spec: EnvironmentSpec) -> EnvironmentUse | None:
        """The environment if it is there already, at no cost; else None."""

    def build(self, spec: EnvironmentSpec, log: Log) -> EnvironmentUse:
        """Build it, or wait for whoever is building it; `EngineFailed` with the reason if not.

        A crash in the middle leaves nothing that a later build could take for whole.
        """


def builder_for(spec: EnvironmentSpec, builders: Sequence[Builder]) -> Builder:
    """The builder for that spec: the first in the table that accepts it."""
    for builder in builders:
        if builder.accepts(spec):
            return builder
    raise Unsupported(
        f"No builder takes the environment '{spec.name}'.",
        fix="Name pip packages, or an interpreter with python.user_managed_dependencies.",
    )
