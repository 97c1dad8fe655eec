"""Commands about the server: init, up, down, status."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
import msgspec

from runyard.cli import console
from runyard.cli.options import json_option
from runyard.cli.render import render_age
from runyard.cli.scope import find_settings_anyhow
from runyard.domain.errors import Conflict, EngineFailed, RunyardError, Unsupported
from runyard.domain.server import LOCK_TAKEN, ServerInfo
from runyard.domain.workspaces import WorkspaceRecord, WorkspaceSpec, check_workspace_name
from runyard.sdk.exceptions import AzureMLException
from runyard.settings import Settings, load_settings

if TYPE_CHECKING:
    from runyard.sdk.config_file import WorkspaceConfig


@click.command()
@click.argument("name", required=False)
@click.option("--force", is_flag=True, help="Overwrite the config.json of another workspace.")
@json_option
def init(name: str | None, force: bool, as_json: bool) -> None:
    """Make this folder a workspace: write config.json, start the server.

    NAME is the workspace's; by default this folder's name.

    \b
    Example:
      runyard init digits
    """
    from runyard.sdk import config_file
    from runyard.sdk.embedded import connect

    file = _config_of(Path.cwd())
    present = _present_config(file, force=force, named=name is not None)
    wanted = name or (present.workspace_name if present else "") or _folder_name(Path.cwd())
    wanted = check_workspace_name(wanted)
    if present is not None and present.workspace_name != wanted:
        raise Conflict(
            f"{file} belongs to workspace '{present.workspace_name}'.",
            why=f"It would be overwritten for '{wanted}'.",
            fix="Choose another folder, or add --force.",
        )
    settings = config_file.settings_for(present) if present else load_settings()
    client = connect(settings)
    spec = WorkspaceSpec(
        name=wanted,
        subscription_id=present.subscription_id if present else "",
        resource_group=present.resource_group if present else "",
    )
    record = client.request(
        "POST", "/api/v1/workspaces", body=spec, answer=WorkspaceRecord, safe_to_repeat=True
    )
    if present is None:
        config_file.write_config(
            config_file.config_for(
                record.name, record.subscription_id, record.resource_group, settings
            ),
            file,
        )
    if as_json:
        result = {"workspace": record.name, "config": str(file), "url": client.url}
        console.document({**result, "home": str(settings.home)})
        return
    console.say(f"Workspace '{record.name}' is ready; this folder's config.json names it.")
    console.say(f"The server runs at {client.url} and keeps everything in {settings.home}.")
    console.heading("What next")
    console.say("  runyard submit train.py     run a script; its code, log and outputs are kept")
    console.say("  runyard ls                  see the runs")
    console.say("  runyard doctor              see whether all is well on this machine")
    console.say("In Python:  from azureml.core import Workspace; ws = Workspace.from_config()")


def _config_of(folder: Path) -> Path:
    """The configuration of this folder, where it is or where it is to be."""
    from runyard.sdk.config_file import CONFIG_NAME, candidates

    there = (file for file in candidates(folder) if file.is_file() and folder in file.parents)
    return next(there, folder / CONFIG_NAME)


def _present_config(file: Path, *, force: bool, named: bool) -> "WorkspaceConfig | None":
    """What the file says; None if there is none, or if it is to be written anew."""
    from runyard.sdk.config_file import read_config

    if force or not file.exists():
        return None
    try:
        return read_config(file)
    except AzureMLException:
        if not named:
            raise
        kept = file.rename(file.with_name(f"{file.name}.damaged"))
        console.note(f"{file} could not be used; it is {kept.name} now, and a new one is written.")
        return None


def _folder_name(folder: Path) -> str:
    """A valid workspace name that resembles the folder's."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-_")[:33]
    return name if len(name) >= 2 else "workspace"


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Return when it is ready; it goes on.")
@json_option
def up(detach: bool, as_json: bool) -> None:
    """Start the server; Ctrl-C stops it. Jobs never need it to stay.

    \b
    Example:
      runyard up --detach
    """
    from runyard.sdk import embedded

    settings = _embedded_settings("start")
    found = embedded.status(settings).server
    if found is None and not detach:
        _serve_in_foreground(settings, as_json=as_json)
        return
    server = embedded.ensure_running(settings)
    if as_json:
        console.document(server)
    else:
        verb = "already runs" if found is not None and found.pid == server.pid else "is ready"
        console.say(f"The server {verb} at {server.url} (process {server.pid}).")


@click.command()
@json_option
def down(as_json: bool) -> None:
    """Stop the server of this home folder; running jobs and services go on.

    \b
    Example:
      runyard down
    """
    from runyard.sdk import embedded

    settings = _embedded_settings("stop")
    services = _services(settings)
    stopped = embedded.stop(settings)
    if as_json:
        console.document({"stopped": stopped, "services": services})
        return
    console.say("The server has stopped." if stopped else "No server was running.")
    if services:
        console.note(
            f"Services go on without it: {', '.join(services)}. To end one, start the server again "
            "(runyard up) and say: runyard service rm NAME"
        )


def _services(settings: Settings) -> list[str]:
    """The names of the services of a server that runs; none if it cannot be asked."""
    from runyard.domain.services import ServiceRecord
    from runyard.sdk import embedded

    if embedded.status(settings).server is None:
        return []
    names: list[str] = []
    try:
        client = embedded.connect(settings)
        for workspace in client.request("GET", "/api/v1/workspaces", answer=list[WorkspaceRecord]):
            path = f"/api/v1/workspaces/{quote(workspace.name, safe='')}/services"
            found = client.request("GET", path, answer=list[ServiceRecord])
            names += [service.name for service in found if service.serving is not None]
    except RunyardError:  # it is to stop all the same
        return []
    return names


@click.command()
@json_option
@click.pass_context
def status(context: click.Context, as_json: bool) -> None:
    """Say whether the server runs, and where; exit code 1 if it does not.

    \b
    Example:
      runyard status --json
    """
    from runyard.sdk import embedded

    settings, workspace, damage = find_settings_anyhow()
    found = embedded.status(settings)
    if as_json:
        told = msgspec.to_builtins(found.server) if found.server else {"home": str(settings.home)}
        reason = {} if found.server else {"reason": found.reason}
        console.document({"running": found.server is not None, **told, **reason})
    elif found.server is None:
        console.say(f"The server does not run: {found.reason.rstrip('.')}.")
        console.say("Start it with: runyard up --detach")
    else:
        _say_status(found.server, workspace, damage)
    if found.server is None:
        context.exit(1)


def _say_status(server: ServerInfo, workspace: str | None, damage: AzureMLException | None) -> None:
    from datetime import UTC, datetime

    nowhere = "none: this folder has no config.json (runyard init)"
    console.fields(
        {
            "server": console.Cell("running", "green"),
            "url": server.url,
            "version": server.version,
            "pid": str(server.pid),
            "started": f"{render_age(server.started, datetime.now(UTC))} ago",
            "home": server.home,
            "database": server.database,
            "runs": ", ".join(f"{count} {state}" for state, count in server.active.items()),
            "workspace": workspace or (str(damage) if damage is not None else nowhere),
        }
    )


def _embedded_settings(verb: str) -> Settings:
    settings, _, _ = find_settings_anyhow()
    if settings.url:
        raise Unsupported(
            f"This command cannot {verb} the server at {settings.url}.",
            why="It is a remote one: RUNYARD_URL, or this folder's config.json, names it.",
            fix="Unset RUNYARD_URL to work with the embedded server of this machine.",
        )
    return settings


def _serve_in_foreground(settings: Settings, *, as_json: bool) -> None:
    """Show the server's log until it ends; a signal to us is a graceful stop for it."""
    from runyard.sdk import embedded
    from runyard.settings import to_environ

    embedded.prepare_home(settings.home)
    with subprocess.Popen(
        embedded.server_command(),
        cwd=settings.home,
        env=to_environ(settings),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,  # Ctrl-C reaches us alone, so the server is told once
    ) as process:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: process.terminate())
        while process.poll() is None:
            server = embedded.status(settings).server
            if server is not None and server.pid == process.pid:
                if as_json:
                    console.document(server)
                else:
                    console.note(f"The server is ready at {server.url}; Ctrl-C stops it.")
                break
            time.sleep(embedded.STEP_SECONDS)
        code = process.wait()
    if code == LOCK_TAKEN:
        raise Conflict(
            f"Another server has the home folder {settings.home}.",
            why="One home has one server.",
            fix="See it with: runyard status   (stop it with: runyard down)",
        )
    if code not in (0, -signal.SIGTERM):
        raise EngineFailed(
            "The server has failed.",
            why=f"It ended with exit code {code}; its last words are above.",
            fix="Mend what they say; runyard doctor helps.",
        )
