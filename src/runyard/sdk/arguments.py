"""What users write as arguments and commands, as the texts that reach the script. Pure."""

import os
from collections.abc import Iterable

from runyard.sdk.exceptions import UserErrorException, user_error

_NESTED = (list, tuple, dict, set, frozenset, bytes, bytearray)


def argument_texts(arguments: object) -> tuple[str, ...]:
    """Every argument as v1 passed it on: `str()` of it. What has no sensible text is refused."""
    if arguments is None:
        return ()
    if isinstance(arguments, str) or not isinstance(arguments, Iterable):
        raise user_error(
            f"arguments={arguments!r} is not a list.",
            why="Each word of the command line is one element.",
            fix="Write arguments=['--lr', 0.01]",
        )
    return tuple(_text(position, value) for position, value in enumerate(arguments))


def command_text(command: object) -> str:
    """A command, given as a text or as a list of words, as one line for the shell."""
    if isinstance(command, str):
        text = _passable("The command", command)
    elif isinstance(command, list | tuple):
        text = " ".join(_text(position, value) for position, value in enumerate(command))
    else:
        raise user_error(
            f"command={command!r} is not a command.",
            why="It is a text, or a list of words.",
            fix="Write command=['python', 'train.py', '--lr', 0.01]",
        )
    if not text.strip():
        raise user_error("The command is empty.", fix="Write command='python train.py'")
    return text


def _text(position: int, value: object) -> str:
    if isinstance(value, os.PathLike):
        return _passable(f"Argument {position}", os.fsdecode(value))
    if _is_dataset(value):
        raise user_error(
            f"Argument {position} is a dataset itself.",
            why="A script gets the path of the data, not the data.",
            fix="Pass dataset.as_mount(), dataset.as_download() or dataset.as_named_input(...).",
        )
    kind = type(value)
    no_text = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    if isinstance(value, _NESTED) or callable(value) or no_text:
        raise _odd(position, value)
    return _passable(f"Argument {position}", str(value))


def _passable(what: str, text: str) -> str:
    """The text, or an error if no command line can hold it."""
    if "\0" in text:
        raise user_error(
            f"{what} has a NUL character: {text!r:.200}.",
            why="The words of a command line end there.",
            fix="Remove it, or pass the text in a file.",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise user_error(
            f"{what} has half a character: {text!r:.200}.",
            why=f"{error.reason[0].upper()}{error.reason[1:]}, at position {error.start}; "
            "often it comes from a file name that is not UTF-8.",
            fix="Correct the text, or rename the file.",
        ) from None
    return text


def _is_dataset(value: object) -> bool:
    """Whatever class they have, datasets can be made inputs by name."""
    return hasattr(value, "as_named_input") and type(value).__name__.endswith("Dataset")


def _odd(position: int, value: object) -> UserErrorException:
    return user_error(
        f"Argument {position} is of type {type(value).__name__}, "
        "which cannot be passed to a script.",
        why="Arguments become the words of a command line: texts, numbers, booleans, paths.",
        fix="Make each element of a list an argument of its own, or pass text, e.g. json.dumps(x).",
    )
