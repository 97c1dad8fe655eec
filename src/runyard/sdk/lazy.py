"""Names that are loaded when they are first used, so that importing a package is quick."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from runyard.sdk.not_here import missing_name


def lazy_names(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` for `names`: name → the module that has it, or is it."""

    def find(name: str) -> object:
        if name not in names:
            raise missing_name(module, name)
        source = import_module(names[name])
        value: object = source
        if names[name] != f"{module}.{name}":
            value = getattr(source, name)
        setattr(sys.modules[module], name, value)
        return value

    return find
