"""What turns an environment spec into an interpreter: one file a builder, one line in the table."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runyard.environments.base import Builder
from runyard.environments.interpreters import Probe
from runyard.environments.user_managed import UserManagedBuilder
from runyard.environments.venv import VenvBuilder

# Asked in this order; the first that accepts a spec gets it.
BUILDERS: dict[str, Callable[[Path, Mapping[str, str], Probe], Builder]] = {
    "user-managed": lambda root, environ, probe: UserManagedBuilder(environ, probe),
    "venv": VenvBuilder,
}


def open_builders(root: Path, environ: Mapping[str, str] = os.environ) -> Sequence[Builder]:
    """Every builder, keeping what it makes in folders under `root`."""
    probe = Probe()
    return [make(root, environ, probe) for make in BUILDERS.values()]
