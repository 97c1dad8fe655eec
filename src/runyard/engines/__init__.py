"""Engines by name. An engine is one file in this folder and one line in `ENGINES`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from runyard.engines.base import Engine
from runyard.engines.local import LocalEngine

# Each makes an engine that keeps its jobs below the folder it is given.
ENGINES: Mapping[str, Callable[[Path], Engine]] = {
    "local": LocalEngine,
}
