"""Commands that change runs: submit, cancel."""

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runyard.cli import console
from runyard.cli.inspecting import page_url
from runyard.cli.logs import follow_run, say_it_goes_on
from runyard.cli.options import json_option, workspace_options
from runyard.cli.render import remark
from runyard.cli.scope import Scope, open_scope, run_path
from runyard.domain.errors import RunyardError
from runyard.domain.runs import RunRecord
from runyard.domain.states import TERMINAL, RunState

if TYPE_CHECKING:
    from runyard.sdk.environment import Environment

_VERSION = re.compile(r"\d+(\.\d+)*")
LONG_POLL_SECONDS = 50


def parse_pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """KEY=VALUE, repeated, as a dict."""
    for value in values:
        if not value.partition("=")[0] or "=" not in value:
            raise click.BadParameter(f"'{value}' is not KEY=VALUE.", context, parameter)
    return {key: text for key, _, text in (value.partition("=") for value in values)}


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--experiment", metavar="NAME", help="By default the script's name.")
@click.option(
    "--source-directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that is kept and run in; SCRIPT is relative to it. By default this folder.",
)
@click.option(
    "--python",
    metavar="PATH|VERSION",
    help="An interpreter to use as it is, or the version to build an environment with. "
    "By default the `python` of this shell, as it is.",
)
@click.option(
    "--requirements",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Build an environment from this pip requirements file.",
)
@click.option(
    "--conda-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Build an environment from this conda file.",
)
@click.option(
    "--env-var",
    "variables",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="A variable of the job; may be repeated.",
)
@click.option(
    "--tag",
    "tags",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="A tag of the run; may be repeated.",
)
@click.option("--target", metavar="NAME", help="A compute target; by default 'local'.")
@click.option(
    "--max-restarts",
    metavar="N",
    default=0,
    type=click.IntRange(0),
    help="Start it again, so often, if it fails or its node is lost; its outputs are kept.",
)
@click.option("--name", metavar="TEXT", help="The run's display name.")
@click.option("--wait", is_flag=True, help="Return when the run is over; exit code 1 if it failed.")
@click.option("--follow", "-f", is_flag=True, help="Like --wait, and print its log meanwhile.")
@json_option
@click.pass_context
def submit(
    context: click.Context,
    script: str,
    arguments: tuple[str, ...],
    experiment: str | None,
    source_directory: Path | None,
    python: str | None,
    requirements: str | None,
    conda_file: str | None,
    variables: dict[str, str],
    tags: dict[str, str],
    target: str | None,
    max_restarts: int,
    name: str | None,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Run a script as it is now, and keep its code, log, metrics and outputs.

    What follows SCRIPT goes to the script; options of this command stand before it.

    \b
    Example:
      runyard submit -f --requirements requirements.txt train.py --lr 0.01
    """
    from runyard.sdk.experiment import Experiment
    from runyard.sdk.script_run_config import ScriptRunConfig
    from runyard.sdk.workspace import Workspace

    environment = _environment(python, requirements, conda_file)
    environment.environment_variables = {**environment.environment_variables, **variables}
    folder, inside = place_script(script, source_directory, Path.cwd())
    workspace = Workspace.from_config()
    run = Experiment(workspace, experiment or experiment_name(script)).submit(
        ScriptRunConfig(
            source_directory=str(folder),
            script=inside,
            arguments=list(arguments),
            environment=environment,
            compute_target=target,
            max_restarts=max_restarts,
        ),
        tags=tags,
        display_name=name,
    )
    scope = open_scope()
    record = scope.find_run(run.id)
    if not as_json:
        console.say(record.id)
        console.note(f"See it at {page_url(scope, record)}")
    if wait or follow:
        record = _wait(scope, record, follow=follow and not as_json)
    if as_json:
        console.document(record)
    if (wait or follow) and record.state is not RunState.COMPLETED:
        context.exit(1)


def _environment(
    python: str | None, requirements: str | None, conda_file: str | None
) -> "Environment":
    from runyard.sdk.environment import Environment

    version = python if python and _VERSION.fullmatch(python) else None
    if requirements and conda_file:
        raise click.UsageError("Give either --requirements or --conda-file, not both.")
    if (requirements or conda_file) and python and not version:
        raise click.UsageError("With --requirements or --conda-file, --python is a version.")
    if conda_file:
        made = Environment.from_conda_specification("cli", conda_file)
    elif requirements:
        made = Environment.from_pip_requirements("cli", requirements)
    else:
        made = Environment("cli")
        if not version:
            made.python.user_managed_dependencies = True
            made.python.interpreter_path = python or default_interpreter()
    if version:
        made.python.conda_dependencies.set_python_version(version)
    return made


def default_interpreter() -> str:
    """The `python` that this shell would run."""
    return shutil.which("python") or shutil.which("python3") or sys.executable


def place_script(script: str, source: Path | None, here: Path) -> tuple[Path, str]:
    """The folder to keep, and the script's path inside it.

    Without a source directory that is this folder, or the script's own if it lies elsewhere.
    """
    if source is not None:
        folder = source.absolute()
        beside = (here / script).absolute()
        # `submit --source-directory src src/train.py`: the path as the shell completes it.
        if not (folder / script).exists() and beside.is_relative_to(folder):
            return folder, str(beside.relative_to(folder))
        return folder, script
    path = (here / script).resolve()
    if path.is_relative_to(here.resolve()):
        return here, str(path.relative_to(here.resolve()))
    return path.parent, path.name


def experiment_name(script: str) -> str:
    """A valid experiment name that resembles the script's."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-_")[:255] or "script"


def _wait(scope: Scope, record: RunRecord, *, follow: bool) -> RunRecord:
    try:
        if follow:
            return follow_run(scope, record)
        while record.state not in TERMINAL:
            record = scope.client.request(
                "GET",
                run_path(record.id),
                query={"newer_than": record.version, "wait": LONG_POLL_SECONDS},
                answer=RunRecord,
                timeout_seconds=LONG_POLL_SECONDS + 20,
            )
    except KeyboardInterrupt:
        say_it_goes_on(record)
        raise
    if why := remark(record):
        console.note(console.plain(f"Run {record.id} is {record.state}: {why}"))
    return record


@click.command()
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--force",
    is_flag=True,
    help="Give up what is on a cluster that does not answer; it may still run there.",
)
@workspace_options
@json_option
@click.pass_context
def cancel(
    context: click.Context,
    run_names: tuple[str, ...],
    force: bool,
    workspace: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """Stop runs; what they have written so far is kept.

    RUN is an id, the beginning of one, or `latest`.

    \b
    Example:
      runyard cancel latest
    """
    scope = open_scope(workspace, every=every)
    runs = [scope.find_run(name) for name in run_names]
    results: list[RunRecord] = []
    refused = False
    for run in runs:
        try:
            record = scope.client.request(
                "POST",
                f"{run_path(run.id)}/cancel",
                query={"force": force or None},
                answer=RunRecord,
                safe_to_repeat=True,
            )
        except RunyardError as error:
            refused = True
            console.error(str(error))
            continue
        results.append(record)
        if not as_json:
            console.say(f"{record.id} is {record.state}.")
    if as_json:
        console.document(results)
    if refused:
        context.exit(1)
