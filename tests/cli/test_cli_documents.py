"""The command line's documents keep up with it, and it starts quickly."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runyard.cli.commands import runyard

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def leaves(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, those of groups as `GROUP NAME`."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


COMMANDS = list(leaves(runyard))
HEAVY = {"urllib3", "sqlalchemy", "starlette", "yaml", "jinja2", "alembic", "fsspec", "uvicorn"}


def section(name: str) -> str:
    """The part of the document that begins with the command, up to the next one."""
    start = DOCUMENT.index(f"**`runyard {name}")
    end = DOCUMENT.find("**`runyard ", start + 1)
    return DOCUMENT[start : end if end > 0 else None]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    everywhere = {"--json", "--workspace", "--all-workspaces"}
    options = {option for parameter in command.params for option in parameter.opts}
    for option in sorted(option for option in options if option.startswith("-")):
        text = DOCUMENT if option in everywhere else section(name)
        assert re.search(rf"`{re.escape(option)}\b", text), f"docs/cli.md lacks {option} of {name}"


def test_the_document_names_no_command_that_does_not_exist() -> None:
    named = re.findall(r"\*\*`runyard ([a-z][a-z ]*[a-z])", DOCUMENT)
    assert sorted(named) == sorted(name for name, _ in COMMANDS)


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_command_has_json_and_help_with_an_example(name: str, command: click.Command) -> None:
    assert "--json" in {option for parameter in command.params for option in parameter.opts}
    assert command.help is not None
    assert f"Example:\n  runyard {name}" in inspect.cleandoc(command.help)
    assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize("module", ["runyard.cli.main", "runyard.cli.commands"])
def test_the_command_line_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(name.split('.')[0] for name in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not HEAVY & set(loaded)
    if module == "runyard.cli.main":
        assert not {"click", "msgspec"} & set(loaded)
