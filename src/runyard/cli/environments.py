"""Commands of environments: env ls, show, build, gc."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option
from runyard.cli.render import environment_line, render_age, render_span, size_text
from runyard.cli.scope import Scope, open_scope
from runyard.domain.environments import (
    EnvironmentBuild,
    EnvironmentOnDisk,
    EnvironmentRecord,
    EnvironmentSpec,
    EnvironmentUse,
    Eviction,
    lock_text,
)
from runyard.domain.errors import EngineFailed, Invalid, NotFound
from runyard.domain.secrets import redact

if TYPE_CHECKING:
    from runyard.sdk.environment import Environment

BUILT = "/api/v1/environments"
SHORT_KEY = 12  # what a table shows of a key; enough to name it
_POLL_SECONDS = 0.5
_KEY = re.compile(r"[0-9a-f]{4,}")


@click.group("env")
def env() -> None:
    """Environments: what runs run on, built once and kept."""


def _workspace_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
    )(command)


@env.command("ls")
@click.option("--names", is_flag=True, help="The registered and curated ones instead.")
@_workspace_option
@json_option
def list_environments(names: bool, workspace: str | None, as_json: bool) -> None:
    """List the built environments, the last used first, with their sizes.

    \b
    Example:
      runyard env ls
      runyard env ls --names
    """
    scope = open_scope(workspace)
    if names:
        _list_names(scope, as_json=as_json)
        return
    built = scope.client.request("GET", BUILT, answer=list[EnvironmentOnDisk])
    if as_json:
        console.document(built)
        return
    if not built:
        console.note("No environment is built yet. Build one: runyard env build NAME")
        return
    now = datetime.now(UTC)
    console.table(
        ("KEY", "NAME", "PYTHON", "PACKAGES", "SIZE", "LAST USED", "RUNS"),
        [_row(one, now) for one in built],
        shrink=("NAME",),
    )
    console.note(f"{len(built)} environments, {size_text(sum(one.size_bytes for one in built))}.")


def _row(one: EnvironmentOnDisk, now: datetime) -> list[Cell]:
    return [
        Cell(one.key[:SHORT_KEY], "bold"),
        Cell(one.name),
        Cell(one.python),
        Cell(str(len(one.lock))),
        Cell(size_text(one.size_bytes)),
        Cell(f"{render_age(one.last_used, now)} ago"),
        Cell(str(len(one.runs)) if one.runs else "", "blue"),
    ]


def _list_names(scope: Scope, *, as_json: bool) -> None:
    path = f"{_workspace_path(scope)}/environments"
    found = scope.client.request("GET", path, answer=list[EnvironmentRecord])
    if as_json:
        console.document(found)
        return
    rows = [
        [
            Cell(record.name, "bold"),
            Cell(record.spec.version or ""),
            Cell("curated" if record.curated else ", ".join(record.labels)),
            Cell(record.spec.python or ""),
            Cell(", ".join(_packages(record.spec))),
        ]
        for record in found
    ]
    headers = ("NAME", "VERSION", "LABELS", "PYTHON", "PACKAGES")
    console.table(headers, rows, shrink=("PACKAGES",))


class _Shown(NamedTuple):
    """What a word led to: a registered environment, a built one, or both."""

    name: str
    spec: EnvironmentSpec | None = None
    record: EnvironmentRecord | None = None
    built: EnvironmentOnDisk | EnvironmentUse | None = None


@env.command()
@click.argument("what", metavar="NAME|KEY|RUN")
@click.option("--version", metavar="N", help="This version of NAME.")
@click.option("--lock", "only_lock", is_flag=True, help="Print the lock alone, as a file.")
@_workspace_option
@json_option
def show(
    what: str, version: str | None, only_lock: bool, workspace: str | None, as_json: bool
) -> None:
    """Show an environment: what was asked, and what was installed for it.

    It is named by its name, the key of a build, or a run that used it.

    \b
    Example:
      runyard env show AzureML-TensorFlow-2.2-GPU
      runyard env show latest --lock > tf.lock
    """
    scope = open_scope(workspace)
    shown = _find(scope, what, version)
    if only_lock and shown.built is None:
        raise NotFound(
            f"The environment '{shown.name}' has no lock.",
            why="It is not built yet.",
            fix=f"Build it first: runyard env build {shown.name}",
        )
    if as_json:
        built = shown.built
        lock = None if built is None else lock_text(shown.name, built)
        console.document({"record": shown.record, "built": built, "lock": lock})
    elif only_lock and shown.built is not None:
        console.write(lock_text(shown.name, shown.built))
    else:
        _say(shown)


def _say(shown: _Shown) -> None:
    record, built = shown.record, shown.built
    on_disk = built if isinstance(built, EnvironmentOnDisk) else None
    console.fields(
        {
            "name": Cell(shown.name, "bold"),
            "version": "" if record is None else record.spec.version,
            "labels": "" if record is None else ", ".join(record.labels),
            "asked": "" if shown.spec is None else environment_line(shown.spec),
            "packages": "" if shown.spec is None else "\n".join(_packages(shown.spec)),
        }
    )
    if built is None:
        console.note("It is not built yet.")
        return
    console.heading("Built")
    console.fields(
        {
            "key": built.key,
            "python": built.python,
            "size": "" if on_disk is None else size_text(on_disk.size_bytes),
            "last used": ""
            if on_disk is None
            else f"{render_age(on_disk.last_used, datetime.now(UTC))} ago",
            "runs": "" if on_disk is None else "\n".join(on_disk.runs),
            "notes": "\n".join(built.notes),
            "lock": "\n".join(built.lock),
        }
    )


def _find(scope: Scope, what: str, version: str | None) -> _Shown:
    """What the word names: a build, a registered environment or a run, looked for in that order."""
    if _KEY.fullmatch(what) and (built := _find_built(scope, what)) is not None:
        return _Shown(built.name, built=built)
    if scope.workspace is not None:
        try:
            record = _load_record(scope, what, version)
        except NotFound:
            if version is not None:
                raise
        else:
            use = _find_use(scope, record.spec)
            kept = None if use is None else _find_built(scope, use.key) or use
            return _Shown(record.name, record.spec, record, kept)
    try:
        run = scope.find_run(what)
    except NotFound:
        raise NotFound(
            f"There is no environment '{what}'.",
            why="It is neither a name nor the key of a build, nor a run.",
            fix="See what there is with: runyard env ls, runyard env ls --names",
        ) from None
    if run.spec.script is None:
        raise NotFound(f"Run '{run.id}' has no environment.", why="It runs no script.")
    spec = run.spec.script.environment
    return _Shown(spec.name, spec, built=run.environment)


def _find_built(scope: Scope, key: str) -> EnvironmentOnDisk | None:
    try:
        return scope.client.request("GET", f"{BUILT}/{key}", answer=EnvironmentOnDisk)
    except NotFound:
        return None


def _find_use(scope: Scope, spec: EnvironmentSpec) -> EnvironmentUse | None:
    found = scope.client.request(
        "POST", f"{BUILT}/find", body=spec, answer=EnvironmentBuild, safe_to_repeat=True
    )
    return found.environment


def _load_record(scope: Scope, name: str, version: str | None) -> EnvironmentRecord:
    path = f"{_workspace_path(scope)}/environments/{quote(name, safe='')}"
    return scope.client.request("GET", path, query={"version": version}, answer=EnvironmentRecord)


@env.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--version", metavar="N", help="This version of NAME.")
@click.option("--conda-file", metavar="FILE", help="Build what this conda file describes.")
@click.option("--requirements", metavar="FILE", help="Build what this requirements file describes.")
@click.option("--lock", metavar="FILE", help="Build what this lock fixes, version for version.")
@_workspace_option
@json_option
def build(
    name: str | None,
    version: str | None,
    conda_file: str | None,
    requirements: str | None,
    lock: str | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Build an environment now, so that runs need not wait for it.

    NAME is a registered or curated one; with a file it is only a label.

    \b
    Example:
      runyard env build AzureML-TensorFlow-2.2-CPU
      runyard env build --lock tf.lock
    """
    files = [file for file in (conda_file, requirements, lock) if file]
    if len(files) > 1 or not (files or name):
        raise click.UsageError("Give a NAME, or one of --conda-file, --requirements and --lock.")
    scope = open_scope(workspace)
    if files:
        spec = _from_file(name or "project", conda_file, requirements, lock).to_spec()
    else:
        spec = _load_record(scope, name or "", version).spec
    use = _build(scope, spec)
    if as_json:
        console.document(use)
    else:
        console.say(use.key)


def _from_file(
    name: str, conda_file: str | None, requirements: str | None, lock: str | None
) -> "Environment":
    from runyard.sdk.environment import Environment

    if conda_file:
        return Environment.from_conda_specification(name, conda_file)
    if requirements:
        return Environment.from_pip_requirements(name, requirements)
    return Environment.from_lock(name, lock or "")


def _build(scope: Scope, spec: EnvironmentSpec) -> EnvironmentUse:
    started = time.monotonic()
    state = scope.client.request(
        "POST", f"{BUILT}/builds", body=spec, answer=EnvironmentBuild, safe_to_repeat=True
    )
    while True:
        for line in state.log.splitlines():
            console.note(console.plain(line), "dim")
        if state.done:
            break
        time.sleep(_POLL_SECONDS)
        path = f"{BUILT}/builds/{state.id}"
        query = {"offset": state.offset}
        state = scope.client.request("GET", path, query=query, answer=EnvironmentBuild)
    if state.environment is None:
        raise EngineFailed(state.error)
    spent = timedelta(seconds=time.monotonic() - started)
    console.note(f"'{spec.name}' is ready after {render_span(spent)}.")
    return state.environment


@env.command()
@click.option("--keep-days", type=float, metavar="N", help="Remove those not used for N days.")
@click.option(
    "--max-gb", type=float, metavar="N", help="Then the longest unused, until N GB are left."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def gc(keep_days: float | None, max_gb: float | None, dry_run: bool, as_json: bool) -> None:
    """Remove built environments by age and space, never one that a run uses.

    \b
    Example:
      runyard env gc --keep-days 30 --max-gb 50
    """
    scope = open_scope(every=True)
    wanted = Eviction(keep_days=keep_days, max_gb=max_gb, dry_run=dry_run)
    gone = scope.client.request(
        "POST",
        f"{BUILT}/evict",
        body=wanted,
        answer=list[EnvironmentOnDisk],
        timeout_seconds=600,  # gigabytes of small files
    )
    if as_json:
        console.document(gone)
        return
    now = datetime.now(UTC)
    for one in gone:
        age = render_age(one.last_used, now)
        size = size_text(one.size_bytes)
        console.say(f"{one.key[:SHORT_KEY]}  {one.name}  {size}, last used {age} ago")
    total = size_text(sum(one.size_bytes for one in gone))
    console.note(f"{len(gone)} environments, {total}, {'would go' if dry_run else 'are removed'}.")


def _packages(spec: EnvironmentSpec) -> list[str]:
    lines = (*spec.conda, *spec.pip)
    return [redact(line) for line in lines if not line.startswith("azureml-")]


def _workspace_path(scope: Scope) -> str:
    if scope.workspace is None:
        raise Invalid(
            "No workspace is named.",
            why="Registered environments belong to one.",
            fix="Work in a folder with a config.json (runyard init), or give --workspace NAME.",
        )
    return f"/api/v1/workspaces/{quote(scope.workspace, safe='')}"
