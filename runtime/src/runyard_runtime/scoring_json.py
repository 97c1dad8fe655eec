"""JSON as scoring needs it: strict about NaN, and as quick as the environment allows."""

import importlib
import json

BadJson = ValueError  # what `loads` raises, with words


def codec():
    """(loads, dumps): from bytes, to bytes. orjson or msgspec do the work where they are there."""
    for name, load, dump in (
        ("orjson", "loads", "dumps"),
        ("msgspec.json", "decode", "encode"),
    ):
        try:
            module = importlib.import_module(name)
            return _careful(getattr(module, load), read), _careful(getattr(module, dump), write)
        except (ImportError, AttributeError):
            continue
    return read, write


def _careful(quick, sure):
    def do(value):
        try:
            return quick(value)
        except Exception:  # whatever it does not like, the standard library has the last word
            return sure(value)

    return do


def read(body):
    """The document in `body`; NaN and Infinity, which JSON does not have, are refused in words."""
    try:
        return _DECODE(body.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise BadJson("The body is not UTF-8 text: %s." % problem)
    except RecursionError:
        raise BadJson("The body is nested too deeply.")
    except _NotFinite as problem:
        raise BadJson(str(problem))
    except ValueError as problem:
        if not body.strip():
            raise BadJson("The body is empty.")
        raise BadJson("The body is not JSON: %s." % problem)


def write(document):
    """`document` as bytes. NaN and the infinities become null: JSON has no word for them."""
    try:
        return _ENCODE(document).encode("utf-8")
    except ValueError:
        return _ENCODE(_finite(document)).encode("utf-8")


class _NotFinite(ValueError):
    pass


def _refuse(word):
    raise _NotFinite(
        "The body has the value %s, which is not JSON. Leave such rows out, or replace the value "
        "by a number." % word
    )


def _finite(value):
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


_DECODE = json.JSONDecoder(parse_constant=_refuse).decode
_ENCODE = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode
