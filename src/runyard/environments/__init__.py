"""What turns an environment spec into an interpreter: one file a builder, one line in the table."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runyard.environments.base import Builder
from runyard.environments.conda import CondaBuilder
from runyard.environments.container import ContainerBuilder
from runyard.environments.container_plan import Mode
from runyard.environments.interpreters import Probe
from runyard.environments.user_managed import UserManagedBuilder
from runyard.environments.venv import VenvBuilder

# Asked in this order; the first that accepts a spec gets it.
BUILDERS: dict[str, Callable[[Path, Mapping[str, str], Probe], Builder]] = {
    "user-managed": lambda root, environ, probe: UserManagedBuilder(environ, probe),
    "conda": lambda root, environ, probe: CondaBuilder(
        root, environ, probe, without_conda=VenvBuilder(root, environ, probe)
    ),
    "venv": VenvBuilder,
}


def open_builders(
    root: Path, environ: Mapping[str, str] = os.environ, containers: Mode = "auto"
) -> Sequence[Builder]:
    """Every builder, keeping what it makes in folders under `root`."""
    probe = Probe()
    builders = [make(root, environ, probe) for make in BUILDERS.values()]
    # Before all others, because it hands on to them what needs no container or can have none.
    return [ContainerBuilder(root, environ, containers, builders), *builders]
