"""The options of an attached cluster, which come as texts: checked, and in their types. Pure."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec

from runyard.domain.errors import Invalid

Options = TypeVar("Options", bound=msgspec.Struct)
Seconds = Annotated[float, msgspec.Meta(gt=0, le=10**9)]

_WORDS = {"yes": "true", "no": "false"}
_MEANT = {bool: "It is true or false.", Seconds: "It is a number of seconds."}


def convert_options(whose: str, kind: type[Options], given: Mapping[str, str]) -> Options:
    """The options of an engine; `Invalid` names what it does not have, or what makes no sense."""
    types = {one.name: one.type for one in msgspec.structs.fields(kind)}
    for name in given:
        if name not in types:
            why = f"There are: {', '.join(sorted(types))}."
            raise Invalid(f"{whose} has no option '{name}'.", why=why)
    values = {
        name: _WORDS.get(text.lower(), text) if types[name] is bool else text
        for name, text in given.items()
    }
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`")
        why = _MEANT.get(types[name], f"{what}.")
        raise Invalid(f"{whose}'s option '{name}' is '{given[name]}'.", why=why) from None
