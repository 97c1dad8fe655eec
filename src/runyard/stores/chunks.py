"""Points as bytes: a chunk is the MessagePack of [steps, times, values], columns of equal length.

MessagePack has NaN and the infinities, which JSON has not. It lacks integers beyond 64 bits and
text that is not Unicode; these two are kept as extension types.
"""

from typing import NamedTuple

import msgspec
from msgspec.msgpack import Ext

BIG_INTEGER, ODD_TEXT = 1, 2  # extension codes; never reuse one


class Columns(NamedTuple):
    """Points of one series, column by column."""

    steps: list[int | None]
    times: list[float]
    values: list[object]

    def plus(self, other: "Columns") -> "Columns":
        """These points, then the others."""
        return Columns(
            self.steps + other.steps, self.times + other.times, self.values + other.values
        )


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    steps: list[int | None] | None  # None: no point has a step, the usual case
    times: list[float]
    values: list[object]


def encode_chunk(columns: Columns) -> bytes:
    """The points as bytes."""
    steps = None if all(step is None for step in columns.steps) else columns.steps
    try:
        return msgspec.msgpack.encode(_Chunk(steps, columns.times, columns.values))
    except (OverflowError, UnicodeEncodeError):
        values = [_tagged(value) for value in columns.values]
        return msgspec.msgpack.encode((_tagged(steps), columns.times, values))


def decode_chunk(data: bytes) -> Columns:
    """The points that `encode_chunk` was given."""
    steps, times, values = msgspec.msgpack.decode(data, ext_hook=_untagged)
    return Columns(steps or [None] * len(times), times, values)


def _tagged(value: object) -> object:
    match value:
        case bool():
            return value
        case int() if not -(2**63) <= value < 2**64:
            return Ext(BIG_INTEGER, hex(value).encode())
        case str():
            data = value.encode("utf-8", "surrogatepass")
            return value if data.decode("utf-8", "replace") == value else Ext(ODD_TEXT, data)
        case list() | tuple():
            return [_tagged(item) for item in value]
        case dict():
            return {_tagged_key(key): _tagged(item) for key, item in value.items()}
        case _:
            return value


def _tagged_key(key: object) -> object:
    # A key has to be plain when it is read back; what is not Unicode in it is replaced.
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else key


def _untagged(code: int, data: memoryview) -> object:
    if code == BIG_INTEGER:
        return int(bytes(data), 16)
    if code == ODD_TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    raise ValueError(f"a chunk of points has the unknown extension {code}; is it newer than this?")
