"""What several commands have in common: options, and the way a command is made."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

JSON_ASKED = "runyard.json"  # in the context: errors are to be JSON, too


def _remember(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON_ASKED] = value
    return value


def json_option(command: F) -> F:
    """`--json`: one JSON document on stdout and nothing else."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        is_eager=True,
        callback=_remember,
        help="Print one JSON document and nothing else.",
    )(command)


def workspace_options(command: F) -> F:
    """`--workspace` and `--all-workspaces`: whose runs are meant."""
    command = click.option(
        "--all-workspaces", "every", is_flag=True, help="Look at the runs of all workspaces."
    )(command)
    return click.option(
        "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
    )(command)
