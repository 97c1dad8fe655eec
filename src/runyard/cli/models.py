"""Commands of models: model ls, show, download, register, rm."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import quote
from uuid import uuid4

import click
import msgspec

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.data_transfer import open_session
from runyard.cli.options import json_option
from runyard.cli.progress import CountedFile, Progress
from runyard.cli.render import render_age, size_text
from runyard.cli.scope import Scope, open_scope
from runyard.domain.errors import Conflict, Invalid, NotFound
from runyard.domain.models import (
    FRAMEWORKS,
    LineageDataset,
    ModelDraft,
    ModelLineage,
    ModelPage,
    ModelRecord,
    ModelResources,
    model_label,
    model_root,
)
from runyard.domain.runs import plural
from runyard.sdk.blob_upload import Content, post_with_contents
from runyard.sdk.data_transfer import in_parallel
from runyard.sdk.model_files import measure_model
from runyard.sdk.run_files import file_name, inside
from runyard.sdk.submission import user_name
from runyard.sdk.whole_file import write_whole

MODELS = "/api/v1/models"
FILES_SHOWN = 20


@click.group("model")
def model() -> None:
    """Models: registered files with a name, versions, and where they came from."""


def _workspace_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
    )(command)


@model.command("ls")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--all", "every", is_flag=True, help="All versions, not only the latest.")
@click.option("--run", "run_name", metavar="RUN", help="Only those that this run made.")
@click.option("--framework", metavar="NAME", help="Only those of this framework.")
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="Only with it; may be repeated."
)
@_workspace_option
@json_option
def list_models(
    name: str | None,
    every: bool,
    run_name: str | None,
    framework: str | None,
    tags: tuple[str, ...],
    workspace: str | None,
    as_json: bool,
) -> None:
    """List models, each with its latest version; with NAME, all its versions.

    \b
    Example:
      runyard model ls
      runyard model ls --framework TensorFlow --tag stage=production
    """
    scope = open_scope(workspace)
    query: dict[str, object] = {
        "name": name,
        "run": None if run_name is None else scope.find_run(run_name).id,
        "framework": framework,
        "tag": list(tags),
        "latest": not (every or name),
    }
    found = _find_all(scope, query)
    if as_json:
        console.document(found)
        return
    if not found:
        console.note("No such models. Register one: runyard model register NAME PATH")
        return
    now = datetime.now(UTC)
    console.table(
        ("MODEL", "VERSION", "FRAMEWORK", "SIZE", "AGE", "RUN", "TAGS"),
        [
            [
                Cell(record.name, "bold"),
                Cell(str(record.number)),
                Cell(f"{record.framework or ''} {record.framework_version or ''}".strip()),
                Cell(size_text(record.size)),
                Cell(render_age(record.created, now)),
                Cell(record.run or ""),
                Cell(_labels(record.tags)),
            ]
            for record in found
        ],
        shrink=("TAGS", "RUN"),
    )


def _find_all(scope: Scope, query: dict[str, object]) -> list[ModelRecord]:
    found: list[ModelRecord] = []
    after: str | None = None
    while True:
        wanted = {"workspace": scope.workspace, **query, "limit": 1000, "after": after}
        page = scope.client.request("GET", MODELS, query=wanted, answer=ModelPage)
        found += page.models
        after = page.next
        if after is None:
            return found


def _labels(labels: dict[str, str | None]) -> str:
    return ", ".join(key if value is None else f"{key}={value}" for key, value in labels.items())


@model.command("show")
@click.argument("name", metavar="NAME[:VERSION]")
@_workspace_option
@json_option
def show_model(name: str, workspace: str | None, as_json: bool) -> None:
    """Show a model: its files, its labels, and the run, code, environment and data behind it.

    \b
    Example:
      runyard model show mnist:2
    """
    scope = open_scope(workspace)
    record = _find(scope, name)
    lineage = scope.client.request("GET", f"{_path(record)}/lineage", answer=ModelLineage)
    if as_json:
        console.document({"model": record, "lineage": lineage})
        return
    resources = record.resources
    console.fields(
        {
            "model": Cell(model_label(record), "bold"),
            "workspace": record.workspace,
            "framework": f"{record.framework or ''} {record.framework_version or ''}".strip(),
            "description": record.description,
            "tags": _labels(record.tags),
            "properties": "\n".join(f"{key}={value}" for key, value in record.properties.items()),
            "resources": "" if resources is None else _resources(resources),
            "created": f"{record.created:%Y-%m-%d %H:%M:%S} UTC",
            "by": record.created_by,
        }
    )
    console.heading("Where it comes from")
    environment = lineage.environment
    console.fields(
        {
            "run": Cell(lineage.run or "none: registered from local files", "bold"),
            "experiment": lineage.experiment,
            "code": lineage.snapshot,
            "environment": f"{lineage.environment_name or ''}"
            + (f" (key {environment.key}, Python {environment.python})" if environment else ""),
            "datasets": _datasets(lineage.datasets),
            "its run read": _datasets(lineage.inputs),
        }
    )
    console.heading("Files")
    rows = [
        [Cell(size_text(entry.size)), Cell(entry.path)] for entry in record.manifest[:FILES_SHOWN]
    ]
    console.table(("SIZE", "PATH"), rows)
    if len(record.manifest) > FILES_SHOWN:
        console.note(f"… and {len(record.manifest) - FILES_SHOWN} more; --json shows all.")
    console.note(f"{plural(len(record.manifest), 'file')}, {size_text(record.size)}.")


def _resources(resources: ModelResources) -> str:
    amounts = {"CPU": resources.cpu, "GB": resources.memory_gb, "GPU": resources.gpu}
    return ", ".join(f"{amount:g} {unit}" for unit, amount in amounts.items() if amount is not None)


def _datasets(rows: tuple[LineageDataset, ...]) -> str:
    return "\n".join(
        f"{row.purpose}: " + (f"{row.name}:{row.number}" if row.name else row.id) for row in rows
    )


@model.command("download")
@click.argument("name", metavar="NAME[:VERSION]")
@click.argument("folder", metavar="[FOLDER]", default=".")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@_workspace_option
@json_option
def download(name: str, folder: str, overwrite: bool, workspace: str | None, as_json: bool) -> None:
    """Download a model's files into a folder (this one); prints the path of the model.

    \b
    Example:
      runyard model download mnist:2 ./serving
    """
    scope = open_scope(workspace)
    record = _find(scope, name)
    session, target = open_session(scope), Path(folder)
    aims = [(entry, inside(target, entry.path)) for entry in record.manifest]
    there = [aim for _, aim in aims if aim.exists()]
    if there and not overwrite:
        raise Conflict(
            f"'{there[0]}' exists already.",
            why=f"{len(there)} of {len(aims)} files do." if len(there) > 1 else "",
            fix="Choose another folder, or say --overwrite.",
        )
    with Progress("Downloading", record.size, shown=not as_json) as progress:

        def fetch(digest: str, aim: Path) -> None:
            def fill(sink: BinaryIO) -> None:
                counted = cast(BinaryIO, CountedFile(sink, progress))
                session.client.download(f"/api/v1/blobs/{digest}", counted)

            write_whole(aim, fill)

        in_parallel(lambda pair: fetch(pair[0].digest, pair[1]), aims)
    path = str(target / model_root(record))
    if as_json:
        console.document({"model": model_label(record), "path": path, "files": len(aims)})
    else:
        console.say(path)


@model.command("register")
@click.argument("name")
@click.argument("path", metavar="[PATH]", required=False)
@click.option("--run", "run_name", metavar="RUN", help="PATH is a file or folder of this run.")
@click.option("--framework", metavar="NAME", help=f"One of {', '.join(FRAMEWORKS)}, or your own.")
@click.option("--framework-version", metavar="V", help="The framework's version.")
@click.option("--description", metavar="TEXT", help="What it is.")
@click.option("--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="May be repeated.")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="Likewise.")
@click.option("--cpu", type=float, metavar="N", help="Cores that a service of it should have.")
@click.option("--memory-gb", type=float, metavar="N", help="Memory, in GB.")
@click.option("--gpu", type=int, metavar="N", help="GPUs.")
@_workspace_option
@json_option
def register(
    name: str,
    path: str | None,
    run_name: str | None,
    framework: str | None,
    framework_version: str | None,
    description: str | None,
    tags: tuple[str, ...],
    properties: tuple[str, ...],
    cpu: float | None,
    memory_gb: float | None,
    gpu: int | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Register a file or folder as the next version of a model; prints NAME:VERSION.

    Files of a run (--run) are not copied. Without PATH its file or folder NAME is meant.

    \b
    Example:
      runyard model register mnist outputs/model --run latest --framework TensorFlow
      runyard model register iris ./iris.pkl --framework ScikitLearn --framework-version 1.5
    """
    scope = open_scope(workspace)
    resources = ModelResources(cpu=cpu, memory_gb=memory_gb, gpu=gpu)
    draft = ModelDraft(
        id=uuid4().hex,
        workspace=scope.workspace or "",
        name=name,
        description=description,
        tags={key: value if equals else None for key, equals, value in map(_split, tags)},
        properties={key: value for key, _, value in map(_split, properties)},
        framework=framework,
        framework_version=framework_version,
        resources=None if resources == ModelResources() else resources,
        created_by=user_name(),
    )
    if run_name is not None:
        run = scope.find_run(run_name)
        draft = msgspec.structs.replace(
            draft,
            workspace=run.spec.workspace,
            run=run.id,
            path=None if path is None else file_name(path),
        )
        record = _post(scope, draft, {})
    elif path is None:
        raise click.UsageError("Give the PATH of a file or folder, or a --run that has it.")
    elif scope.workspace is None:
        raise Invalid(
            "Register it in which workspace?", fix="Say --workspace NAME, or: runyard init NAME"
        )
    else:
        local = measure_model(path)
        draft = msgspec.structs.replace(draft, manifest=local.manifest, is_folder=local.is_folder)
        record = _post(scope, draft, local.contents)
    if as_json:
        console.document(record)
    else:
        console.say(model_label(record))


def _split(text: str) -> tuple[str, str, str]:
    return text.partition("=")


def _post(scope: Scope, draft: ModelDraft, contents: Mapping[str, Content]) -> ModelRecord:
    return post_with_contents(open_session(scope), MODELS, draft, contents, answer=ModelRecord)


@model.command("rm")
@click.argument("names", metavar="NAME:VERSION…", nargs=-1, required=True)
@_workspace_option
@json_option
def remove(names: tuple[str, ...], workspace: str | None, as_json: bool) -> None:
    """Remove versions of models. Files of a run stay with the run; numbers are not given again.

    \b
    Example:
      runyard model rm mnist:1 mnist:2
    """
    scope = open_scope(workspace)
    if vague := next((name for name in names if ":" not in name), None):
        raise Invalid(
            f"Which version of '{vague}' is to go?",
            fix=f"Name it: runyard model rm {vague}:1   (see: runyard model ls {vague})",
        )
    found = [_find(scope, name) for name in names]
    for record in found:
        scope.client.request("DELETE", _path(record), answer=object)
        if not as_json:
            console.say(model_label(record))
    if as_json:
        console.document([model_label(record) for record in found])


def _find(scope: Scope, text: str) -> ModelRecord:
    """The model that NAME or NAME:VERSION names."""
    name, colon, version = text.partition(":")
    if colon and not (version.isascii() and version.isdigit()):
        raise Invalid(f"'{text}' is not a model.", fix="Type NAME or NAME:VERSION.")
    query: dict[str, object] = {"workspace": scope.workspace, "name": name, "limit": 2}
    if colon:
        query["number"] = int(version)
    else:
        query["latest"] = True
    found = scope.client.request("GET", MODELS, query=query, answer=ModelPage).models
    if len({record.workspace for record in found}) > 1:
        places = ", ".join(sorted({record.workspace for record in found}))
        raise Conflict(
            f"'{text}' is in several workspaces.", why=f"In: {places}.", fix="Say --workspace NAME."
        )
    if not found:
        raise NotFound(
            f"There is no model '{text}'.",
            why=f"Workspace: {scope.workspace}." if scope.workspace else "",
            fix=f"See which there are with: runyard model ls{f' {name}' if colon else ''}",
        )
    return found[0]


def _path(record: ModelRecord) -> str:
    return f"{MODELS}/{quote(record.id, safe='')}"
