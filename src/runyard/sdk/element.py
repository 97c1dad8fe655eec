"""Sections of a configuration: v1 refuses an attribute that a section does not have."""

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import get_annotations
from typing import TypeVar

T = TypeVar("T", bound=type)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant; None if none is near enough to be offered."""
    names = list(names)
    swapped = [one for one in names if sorted(one) == sorted(name)]  # 'scr' for 'src'
    # The usual cutoff, 0.6, offers 'mpi' for 'api'.
    found = swapped or get_close_matches(name, names, 1, cutoff=0.75)
    return found[0] if found else None


def closed(cls: T) -> T:
    """Make setting an undeclared attribute an error that offers the nearest name.

    Declared are the annotated attributes and the properties of the class.
    """
    allowed = {name for base in cls.__mro__ for name in get_annotations(base)}
    allowed |= {
        name for name, value in vars(cls).items() if isinstance(value, property) and value.fset
    }

    def set_attribute(self: object, name: str, value: object) -> None:
        if name not in allowed:
            near = nearest(name, [one for one in allowed if not one.startswith("_")])
            hint = f" Did you mean '{near}'?" if near else ""
            raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'.{hint}")
        object.__setattr__(self, name, value)

    type.__setattr__(cls, "__setattr__", set_attribute)
    return cls
