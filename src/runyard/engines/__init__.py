"""Engines by name. An engine is what one line of `ENGINES` opens; see `base` for its promises."""

from collections.abc import Mapping

from runyard.engines.base import Opener
from runyard.engines.local import LocalEngine
from runyard.engines.ray import open_ray
from runyard.engines.slurm import open_slurm

ENGINES: Mapping[str, Opener] = {
    "local": lambda folder, options, secrets: LocalEngine(folder),
    "ray": open_ray,
    "slurm": open_slurm,
}
