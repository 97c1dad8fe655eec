"""Commands that bring models into service: deploy, service update."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runyard.cli import console
from runyard.cli.data_transfer import open_session
from runyard.cli.options import F, json_option
from runyard.cli.render import failure_text
from runyard.cli.scope import Scope, open_scope
from runyard.cli.submitting import parse_pairs
from runyard.domain.errors import Invalid
from runyard.domain.services import ServiceAuth, ServiceRecord, ServiceState

if TYPE_CHECKING:
    from runyard.sdk.deployment import Code
    from runyard.sdk.environment import Environment
    from runyard.sdk.model import Model
    from runyard.sdk.webservice import Webservice
    from runyard.sdk.workspace import Workspace

_LONGEST_EXAMPLE = 300  # characters of a body that still fits a hint

workspace_option = click.option(
    "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
)
_auth_option = click.option(
    "--auth",
    type=click.Choice([str(one) for one in ServiceAuth]),
    help="What callers have to show; by default nothing.",
)
_wait_option = click.option("--no-wait", is_flag=True, help="Return while it is coming up.")


def _code_options(command: F) -> F:
    """The options that say with which code and in which environment models are served."""
    for option in (
        click.option(
            "--conda-file",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="The script's environment, from this conda file.",
        ),
        click.option(
            "--requirements",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False),
            help="The script's environment, from this pip requirements file.",
        ),
        click.option(
            "--env",
            "environment",
            metavar="NAME[:VERSION]",
            help="A registered environment for the script. By default that of the model's run.",
        ),
        click.option(
            "--source-directory",
            metavar="DIR",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="A folder that goes along; the script is in it. By default the script alone.",
        ),
        click.option(
            "--script",
            metavar="FILE",
            help="An entry script with init() and run(data). By default the framework's own way.",
        ),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("model_names", metavar="MODEL[:VERSION]...", nargs=-1, required=True)
@click.option("--name", required=True, metavar="NAME", help="The service's name.")
@_code_options
@click.option("--replicas", type=click.IntRange(1), default=1, help="How many processes answer.")
@click.option("--cores", type=float, metavar="N", help="Cores of each; by default what there is.")
@_auth_option
@click.option("--port", type=click.IntRange(1, 65535), help="By default one is chosen, and kept.")
@click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, callback=parse_pairs, help="A tag."
)
@click.option("--description", metavar="TEXT", help="What it is.")
@click.option("--overwrite", is_flag=True, help="If there is one of that name: its next revision.")
@_wait_option
@workspace_option
@json_option
@click.pass_context
def deploy(
    context: click.Context,
    model_names: tuple[str, ...],
    name: str,
    script: str | None,
    source_directory: Path | None,
    environment: str | None,
    requirements: str | None,
    conda_file: str | None,
    replicas: int,
    cores: float | None,
    auth: str | None,
    port: int | None,
    tags: dict[str, str],
    description: str | None,
    overwrite: bool,
    no_wait: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Serve a model over HTTP, and wait until it answers.

    A model that was registered with its framework needs no script.

    \b
    Example:
      runyard deploy digits --name digits-service
      runyard deploy digits:3 --name digits-service --script score.py --overwrite
    """
    from runyard.domain.services import ServiceAccess
    from runyard.sdk.deployment import deploy_so
    from runyard.sdk.deployment_configuration import Settings

    place = workspace_of(require_workspace(workspace))
    models = [find_model(place, text) for text in model_names]
    code = _code(place, script, source_directory, environment, requirements, conda_file)
    settings = Settings(
        compute_type="Local" if port is not None else "ACI",
        replicas=replicas,
        cores=cores,
        access=ServiceAccess(auth=ServiceAuth(auth or "none"), port=port),
        description=description,
        tags=tags,
    )
    record = deploy_so(place, name, models, code, settings, overwrite=overwrite)
    _finish(context, place, record, wait=not no_wait, as_json=as_json)


@click.command("update")
@click.argument("name")
@click.option("--model", "model_names", metavar="MODEL[:VERSION]", multiple=True, help="To serve.")
@_code_options
@click.option("--replicas", type=click.IntRange(1), help="How many processes answer.")
@click.option("--cores", type=float, metavar="N", help="Cores of each process.")
@_auth_option
@click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, callback=parse_pairs, help="A tag."
)
@click.option("--description", metavar="TEXT", help="What it is.")
@_wait_option
@workspace_option
@json_option
@click.pass_context
def update(
    context: click.Context,
    name: str,
    model_names: tuple[str, ...],
    script: str | None,
    source_directory: Path | None,
    environment: str | None,
    requirements: str | None,
    conda_file: str | None,
    replicas: int | None,
    cores: float | None,
    auth: str | None,
    tags: dict[str, str],
    description: str | None,
    no_wait: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Change a service. New models or code are tried first; if they fail, the old ones go on.

    \b
    Example:
      runyard service update digits-service --model digits:4
    """
    from runyard.domain.services import AccessPatch
    from runyard.sdk import deployment
    from runyard.sdk.webservice import Webservice

    place = workspace_of(require_workspace(workspace))
    service = Webservice(place, name)._record
    change = deployment.Change(
        models=[find_model(place, text) for text in model_names] or None,
        code=_code(place, script, source_directory, environment, requirements, conda_file),
        replicas=replicas,
        cores=cores,
        access=None if auth is None else AccessPatch(auth=ServiceAuth(auth)),
        set_tags=tags,
        description=description,
    )
    if change == deployment.Change():
        raise Invalid(f"Nothing of service '{name}' is to change.", fix="See --help.")
    record = deployment.update(place, service, change)
    _finish(context, place, record, wait=not no_wait, as_json=as_json, known=service.made)


def require_workspace(name: str | None) -> Scope:
    """The scope of a command that needs a workspace: the one of this folder, or the only one."""
    from runyard.domain.workspaces import WorkspaceRecord

    scope = open_scope(name)
    if scope.workspace is not None:
        return scope
    known = scope.client.request("GET", "/api/v1/workspaces", answer=list[WorkspaceRecord])
    if len(known) == 1:
        return Scope(scope.client, known[0].name)
    names = ", ".join(sorted(one.name for one in known))
    raise Invalid(
        "No workspace is named.",
        why="There is no config.json in this folder or above it, and the server has "
        + (f"several: {names}." if known else "none."),
        fix="Pass --workspace NAME, or make this folder a workspace with: runyard init",
    )


def workspace_of(scope: Scope) -> "Workspace":
    """The scope's workspace, as the SDK's own classes take it."""
    from urllib.parse import quote

    from runyard.domain.workspaces import WorkspaceRecord
    from runyard.sdk.workspace import Workspace

    path = f"/api/v1/workspaces/{quote(scope.workspace or '', safe='')}"
    record = scope.client.request("GET", path, answer=WorkspaceRecord)
    return Workspace._of(open_session(scope), record)


def find_model(workspace: "Workspace", text: str) -> "Model":
    """The model that NAME or NAME:VERSION means."""
    from runyard.sdk.model import Model

    name, colon, number = text.rpartition(":")
    if colon and number.isdigit():
        return Model(workspace, name, version=int(number))
    return Model(workspace, text.removesuffix(":latest"))


def _code(
    workspace: "Workspace",
    script: str | None,
    source_directory: Path | None,
    environment: str | None,
    requirements: str | None,
    conda_file: str | None,
) -> "Code | None":
    from runyard.sdk.deployment import Code
    from runyard.sdk.inference_config import InferenceConfig

    if script is None:
        if environment or requirements or conda_file or source_directory:
            raise click.UsageError("Give --script, too: without one the framework says how.")
        return None
    config = InferenceConfig(
        script,
        source_directory=source_directory,
        environment=_environment(workspace, environment, requirements, conda_file),
    )
    return Code(config=config)


def _environment(
    workspace: "Workspace", name: str | None, requirements: str | None, conda_file: str | None
) -> "Environment | None":
    from runyard.sdk.environment import Environment

    if sum(one is not None for one in (name, requirements, conda_file)) > 1:
        raise click.UsageError("Give one of --env, --requirements and --conda-file.")
    if requirements is not None:
        return Environment.from_pip_requirements("cli", requirements)
    if conda_file is not None:
        return Environment.from_conda_specification("cli", conda_file)
    if name is None:
        return None
    wanted, _, version = name.partition(":")
    return Environment.get(workspace, wanted, version or None)


def _finish(
    context: click.Context,
    workspace: "Workspace",
    record: ServiceRecord,
    *,
    wait: bool,
    as_json: bool,
    known: int = 0,
) -> None:
    """Wait if asked to, and say how it is. `known`: revisions that were there before."""
    from runyard.sdk.service_waiting import is_settled, settle, succeeded
    from runyard.sdk.webservice import Webservice

    service = Webservice._of(workspace, record)
    shown = ""
    while wait and not is_settled(service._record):
        if not as_json and service._record.waiting not in ("", shown):
            shown = service._record.waiting
            console.note(console.plain(shown))
        service._look_again(30.0)
    if wait:
        settle(service)
    record = service._record
    is_good = not wait or succeeded(record, known)
    if as_json:
        console.document(record)
    elif is_good:
        console.say(service.scoring_uri)
        console.note(f"{record.name} is {record.state}. {_hint(service)}")
    else:
        _say_failure(record, service)
    if not is_good:
        context.exit(1)


def _hint(service: "Webservice") -> str:
    """How to try the service, with a body that it takes if it says one."""
    from shlex import quote

    from runyard.sdk.service_calls import example_body

    body = ""
    if service._record.state is ServiceState.HEALTHY:
        body = example_body(service.swagger_uri, service._new_secret())
    data = quote(body) if 0 < len(body) <= _LONGEST_EXAMPLE else "'{}'"
    return f"Try it: runyard service score {service.name} {console.plain(data)}"


def _say_failure(record: ServiceRecord, service: "Webservice") -> None:
    why = failure_text(record.error) if record.error is not None else f"It is {record.state}."
    console.error(console.plain(why, keep_lines=True))
    if record.serving is not None:
        console.note(f"Revision {record.serving.number} goes on serving at {service.scoring_uri}")
    console.note(f"See all it printed: runyard service logs {record.name}")
