"""The only place that prints: tables for people, JSON for programs, errors on stderr."""

import io
import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple, TextIO

import msgspec

MAX_NAME = 60  # columns of the names beside values
MAX_CELL = 500  # columns of a table's cell where there is no terminal to fit; ids and paths fit

COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


class Cell(NamedTuple):
    """A text and the colour it has on a terminal."""

    text: str
    colour: str = ""


def say(text: str = "") -> None:
    """A line of a command's result."""
    print(text)


def note(text: str, colour: str = "") -> None:
    """A line beside the result, on stderr: it never gets into a pipe."""
    print(_painted(text, colour) if _has_colours(sys.stderr) else text, file=sys.stderr)


def overwrite(text: str, *, last: bool = False) -> None:
    """A line on stderr that takes the place of the one before; `last`: and stays."""
    width = shutil.get_terminal_size().columns - 1
    print(
        f"\r\x1b[K{clip(plain(text), width)}", end="\n" if last else "", file=sys.stderr, flush=True
    )


def binary_output() -> BinaryIO:
    """Where the bytes of a log go, as they are."""
    sys.stdout.flush()
    return sys.stdout.buffer


def write(text: str) -> None:
    """Text of a log that is being followed, shown at once."""
    output = binary_output()
    output.write(text.encode(errors="replace"))
    output.flush()


def document(value: object) -> None:
    """The one JSON document that `--json` promises."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, shrink: Sequence[str] = ()
) -> None:
    """Aligned columns. On a terminal the columns named in `shrink` give way to its width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in render_table(headers, rows, width=width, shrink=shrink, coloured=has_colours()):
        print(line)


def fields(pairs: Mapping[str, Cell | str | None]) -> None:
    """Names and values, one a line; those without a value are left out."""
    shown = [(clip(plain(name), MAX_NAME), value) for name, value in pairs.items() if value]
    width = max((text_width(name) for name, _ in shown), default=0)
    for name, value in shown:
        cell = value if isinstance(value, Cell) else Cell(value or "")
        first, *more = plain(cell.text, keep_lines=True).split("\n")
        pad = " " * (width - text_width(name))
        print(f"{paint(name, 'dim')}{pad}  {paint(first, cell.colour)}")
        for line in more:
            print(f"{'':<{width}}  {paint(line, cell.colour)}")


def heading(text: str) -> None:
    """A line above a group of lines."""
    print(f"\n{paint(text, 'bold')}")


def paint(text: str, colour: str) -> str:
    """The text in a colour, where there are colours."""
    return _painted(text, colour) if has_colours() else text


def error(text: str) -> None:
    """What went wrong, why and what to do, on stderr."""
    what, *rest = plain(text, keep_lines=True).split("\n")
    note(f"error: {what}", "red")
    for line in rest:
        note(line)


def has_colours() -> bool:
    """True if stdout is a terminal and the user has not asked for plain text."""
    return _has_colours(sys.stdout)


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def accept_any_text() -> None:
    """A terminal that lacks a character shows another; it is no reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def render_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    width: int | None,
    shrink: Sequence[str] = (),
    coloured: bool = False,
) -> list[str]:
    """The lines of a table. Pure."""
    cells = [[Cell(name, "dim") for name in headers]]
    cells += [[Cell(clip(plain(cell.text), MAX_CELL), cell.colour) for cell in row] for row in rows]
    widths = [max(text_width(row[column].text) for row in cells) for column in range(len(headers))]
    if width is not None:
        widths = _fitted(headers, widths, width, shrink)
    lines = []
    for row in cells:
        parts = []
        for cell, room in zip(row, widths, strict=True):
            text = clip(cell.text, room)
            pad = " " * (room - text_width(text))
            parts.append((_painted(text, cell.colour) if coloured else text) + pad)
        lines.append("  ".join(parts).rstrip())
    return lines


def _fitted(
    headers: Sequence[str], widths: list[int], width: int, shrink: Sequence[str]
) -> list[int]:
    fitted = list(widths)
    for name in shrink:
        column = headers.index(name)
        over = sum(fitted) + 2 * (len(fitted) - 1) - width
        fitted[column] = max(min(fitted[column], 8), fitted[column] - max(0, over))
    return fitted


def _painted(text: str, colour: str) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colour and text else text


def plain(text: str, *, keep_lines: bool = False) -> str:
    """The text without anything that could move the cursor: it may come from a stranger's job."""
    if keep_lines:
        return "\n".join(plain(line) for line in text.split("\n"))
    return "".join(
        char if char.isprintable() else " " if char == "\t" else repr(char)[1:-1] for char in text
    )


def text_width(text: str) -> int:
    """How many columns a terminal gives the text."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def clip(text: str, room: int) -> str:
    """The text, cut to so many columns; an ellipsis says that there was more."""
    if text_width(text) <= room:
        return text
    kept, used = "", 0
    for char in text:
        used += text_width(char)
        if used > room - 1:
            break
        kept += char
    return kept + "…"
