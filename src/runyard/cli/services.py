"""Commands of services: service ls, show, logs, score, restart, keys, rm."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.deploy import require_workspace, update, workspace_of, workspace_option
from runyard.cli.logs import follow_run
from runyard.cli.options import json_option
from runyard.cli.render import failure_text, render_age
from runyard.cli.scope import Scope
from runyard.domain.errors import Invalid
from runyard.domain.services import ServiceAuth, ServiceRecord, ServiceState, revision_roles
from runyard.domain.states import TERMINAL, RunState

if TYPE_CHECKING:
    from runyard.sdk.webservice import Webservice

_COLOURS = {
    ServiceState.HEALTHY: "green",
    ServiceState.FAILED: "red",
    ServiceState.UNHEALTHY: "red",
    ServiceState.TRANSITIONING: "blue",
}


@click.group("service")
def service() -> None:
    """Services: deployed models that answer over HTTP."""


service.add_command(update)


@service.command("ls")
@workspace_option
@json_option
def list_services(workspace: str | None, as_json: bool) -> None:
    """List the services of the workspace.

    \b
    Example:
      runyard service ls
    """
    from runyard.sdk.webservice import Webservice

    found = Webservice.list(workspace_of(require_workspace(workspace)))
    if as_json:
        console.document([one._record for one in found])
        return
    if not found:
        console.note("No services. Deploy one: runyard deploy MODEL --name NAME")
        return
    now = datetime.now(UTC)
    rows = [
        [
            Cell(one.name, "bold"),
            Cell(one._record.state, _COLOURS[one._record.state]),
            Cell(", ".join(model.id for model in one.models)),
            Cell(str(one._record.serving.number if one._record.serving else "-")),
            Cell(one.scoring_uri),
            Cell(render_age(one.updated_time, now)),
            Cell(_note(one._record)),
        ]
        for one in found
    ]
    headers = ("NAME", "STATE", "MODELS", "REVISION", "ADDRESS", "CHANGED", "NOTE")
    console.table(headers, rows, shrink=("NOTE", "MODELS"))


@service.command()
@click.argument("name")
@workspace_option
@json_option
def show(name: str, workspace: str | None, as_json: bool) -> None:
    """Show a service: its state and why, its address, models and revisions.

    \b
    Example:
      runyard service show digits-service
    """
    found = _find(require_workspace(workspace), name)
    if as_json:
        addresses = {"scoring_uri": found.scoring_uri, "swagger_uri": found.swagger_uri}
        console.document({"service": found._record, **addresses})
        return
    record = found._record
    console.fields(
        {
            "service": Cell(record.name, "bold"),
            "workspace": record.workspace,
            "state": Cell(record.state, _COLOURS[record.state]),
            "waits for": record.waiting,
            "address": found.scoring_uri,
            "swagger": found.swagger_uri,
            "callers show": str(record.access.auth),
            "models": ", ".join(model.id for model in found.models),
            "kind": record.compute_type,
            "description": record.description,
            "tags": ", ".join(f"{key}={value or ''}" for key, value in record.tags.items()),
        }
    )
    if record.error is not None:
        console.heading("Error")
        text = console.plain(failure_text(record.error), keep_lines=True)
        if record.failed is not None and record.serving is not None:
            console.say(f"Revision {record.failed.number} did not come up:")
        console.say(console.paint(text, "red"))
        if record.failed is not None and record.serving is not None:
            console.say(f"Revision {record.serving.number} goes on serving.")
    console.heading("Revisions")
    console.table(("REVISION", "ROLE", "SCORER", "REPLICAS", "ENVIRONMENT", "RUN"), _rows(record))


@service.command()
@click.argument("name")
@click.option("--follow", "-f", is_flag=True, help="Go on until the service ends.")
@click.option(
    "--lines", default=200, show_default=True, type=click.IntRange(1, 100_000), help="Of each log."
)
@workspace_option
@json_option
def logs(name: str, follow: bool, lines: int, workspace: str | None, as_json: bool) -> None:
    """Print what the processes of a service print: builds, init(), requests.

    \b
    Example:
      runyard service logs -f digits-service
    """
    scope = require_workspace(workspace)
    found = _find(scope, name)
    if follow and not as_json:
        _follow(scope, found)
        return
    text = found.get_logs(lines)
    if as_json:
        console.document({"service": name, "state": found.state, "text": text})
    elif text:
        console.write(text)
    else:
        console.note(f"{name} has printed nothing yet. {found._record.waiting}".rstrip())


@service.command()
@click.argument("name")
@click.argument("data", metavar="[DATA|@FILE]", required=False)
@workspace_option
@json_option
def score(name: str, data: str | None, workspace: str | None, as_json: bool) -> None:
    """Send data to a service and print its answer; without DATA, what is on stdin.

    \b
    Example:
      runyard service score digits-service '{"data": [[0, 1, 2]]}'
      runyard service score digits-service @request.json
    """
    found = _find(require_workspace(workspace), name)
    answer = found.run(_read(data))
    if as_json:
        console.document({"answer": answer})
    elif isinstance(answer, str):
        console.say(answer)
    elif isinstance(answer, bytes):
        console.binary_output().write(answer)
    else:
        console.document(answer)


@service.command()
@click.argument("name")
@workspace_option
@json_option
def restart(name: str, workspace: str | None, as_json: bool) -> None:
    """Serve the same once more, in new processes; the old ones answer meanwhile.

    \b
    Example:
      runyard service restart digits-service
    """
    from runyard.sdk.webservice import Webservice

    found = _find(require_workspace(workspace), name)
    Webservice.reload(found)
    if as_json:
        console.document(found._record)
    else:
        console.say(f"{name} is {found._record.state}: {found._record.waiting}")


@service.command()
@click.argument("name")
@click.option("--renew", type=click.Choice(["primary", "secondary"]), help="Make a new one first.")
@workspace_option
@json_option
def keys(name: str, renew: str | None, workspace: str | None, as_json: bool) -> None:
    """Print the two keys of a service; either opens it.

    \b
    Example:
      runyard service keys digits-service --renew secondary
    """
    found = _find(require_workspace(workspace), name)
    if renew is not None:
        found.regen_key(renew)
    primary, secondary = found.get_keys()
    if as_json:
        console.document({"primary": primary, "secondary": secondary})
        return
    console.fields({"primary": primary, "secondary": secondary})
    if found._record.access.auth is not ServiceAuth.KEY:
        console.note(f"{name} asks its callers for: {found._record.access.auth}.")


@service.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@workspace_option
@json_option
def remove(names: tuple[str, ...], workspace: str | None, as_json: bool) -> None:
    """End services and forget them; returns when they are gone. Their models stay.

    \b
    Example:
      runyard service rm digits-service
    """
    scope = require_workspace(workspace)
    for found in [_find(scope, name) for name in names]:
        found.delete()
        if not as_json:
            console.say(f"removed {found.name}")
    if as_json:
        console.document({"removed": names})


def _find(scope: Scope, name: str) -> "Webservice":
    from runyard.sdk.webservice import Webservice

    return Webservice(workspace_of(scope), name)


def _note(record: ServiceRecord) -> str:
    if record.error is None:
        return record.waiting
    return _failed_update(record, record.error.message.partition("\n")[0])


def _failed_update(record: ServiceRecord, why: str) -> str:
    """Why the service is unwell, or why it still serves what it did before."""
    if record.failed is None or record.serving is None:
        return why
    return (
        f"revision {record.failed.number} did not come up: {why.rstrip('.')}; "
        f"revision {record.serving.number} goes on serving"
    )


def _rows(record: ServiceRecord) -> list[list[Cell]]:
    return [
        [
            Cell(str(revision.number)),
            Cell(role),
            Cell(revision.spec.entry_script or revision.spec.scorer),
            Cell(str(revision.spec.replicas)),
            Cell(revision.spec.environment.name if revision.spec.environment else ""),
            Cell(revision.run or ""),
        ]
        for role, revision in reversed(revision_roles(record))
    ]


def _follow(scope: Scope, found: "Webservice") -> None:
    """Print what the workers that serve print; after an update, what the next ones do."""
    from runyard.sdk.exceptions import WebserviceException

    seen: set[str] = set()
    while True:
        record = found._record
        revision = record.serving or record.coming or record.failed
        if revision is not None and revision.run is not None and revision.run not in seen:
            seen.add(revision.run)
            console.note(f"── revision {revision.number}", "dim")
            run = follow_run(scope, scope.find_run(revision.run), says_end=False)
            if run.state is RunState.FAILED:
                why = f"see why: runyard service show {record.name}"
                console.note(f"── revision {revision.number} has failed; {why}")
            elif run.state in TERMINAL:
                console.note(f"── revision {revision.number} has ended", "dim")
            continue
        if record.coming is None and record.serving is None:
            return
        try:
            found._look_again(30.0)
        except WebserviceException:  # it is gone
            return


def _read(data: str | None) -> bytes:
    if data is None:
        if sys.stdin.isatty():
            console.note("Reading the data from the terminal; end it with Ctrl-D.")
        return sys.stdin.buffer.read()
    if not data.startswith("@"):
        return data.encode()
    try:
        with open(data[1:], "rb") as source:
            return source.read()
    except OSError as error:
        raise Invalid(f"'{data[1:]}' cannot be read.", why=f"{error.strerror}.") from None
