"""Sections of a configuration: v1 refuses an attribute that a section does not have."""

from difflib import get_close_matches
from inspect import get_annotations
from typing import TypeVar

T = TypeVar("T", bound=type)


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
            near = get_close_matches(name, [one for one in allowed if not one.startswith("_")], 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise AttributeError(f"'{cls.__name__}' object has no attribute '{name}'.{hint}")
        object.__setattr__(self, name, value)

    type.__setattr__(cls, "__setattr__", set_attribute)
    return cls
