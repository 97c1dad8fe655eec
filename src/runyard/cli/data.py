"""Commands of data: data ls, show, register, upload, download, stores."""

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import click

from runyard.cli import console
from runyard.cli.console import Cell
from runyard.cli.options import json_option
from runyard.cli.render import render_age, size_text, state_cell
from runyard.cli.scope import Scope, open_scope
from runyard.domain.data import (
    DataFile,
    DatasetKind,
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    DatastoreRecord,
    DatastoreSpec,
    ResolvedData,
    Source,
    StoreSource,
    UrlSource,
)
from runyard.domain.errors import Invalid, NotFound
from runyard.domain.files import FileInfo
from runyard.domain.models import ModelPage, model_label
from runyard.domain.runs import RunPage, plural

FILES_SHOWN = 20
_PATIENT_SECONDS = 600.0  # a recipe of many addresses, or of a slow store, takes a while


@click.group("data")
def data() -> None:
    """Datasets and datastores: what runs read, and where it is."""


def _workspace_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--workspace", metavar="NAME", help="Another workspace than the one of this folder."
    )(command)


# ---- ls, show, stores ------------------------------------------------------------------------


@data.command("ls")
@click.argument("place", metavar="[STORE:PATH]", required=False)
@click.option("--all", "every", is_flag=True, help="All versions, not only the latest.")
@_workspace_option
@json_option
def list_data(place: str | None, every: bool, workspace: str | None, as_json: bool) -> None:
    """List datasets, or the files of a datastore below a path.

    \b
    Example:
      runyard data ls
      runyard data ls workspaceblobstore:mnist/
    """
    scope = _open(workspace)
    if place is not None:
        _list_files(scope, place, as_json=as_json)
        return
    found = scope.client.request(
        "GET",
        f"{_yard(scope)}/datasets",
        query={} if every else {"version": "latest"},
        answer=list[DatasetRecord],
    )
    if as_json:
        console.document(found)
        return
    if not found:
        console.note("No datasets yet. Make one: runyard data register NAME SOURCE")
        return
    now = datetime.now(UTC)
    console.table(
        ("NAME", "VERSION", "KIND", "AGE", "SOURCE", "DESCRIPTION"),
        [
            [
                Cell(record.name, "bold"),
                Cell(str(record.number)),
                Cell(record.spec.kind),
                Cell(render_age(record.created, now)),
                Cell(_sources(record.spec)),
                Cell(record.description),
            ]
            for record in found
        ],
        shrink=("DESCRIPTION", "SOURCE"),
    )


def _list_files(scope: Scope, place: str, *, as_json: bool) -> None:
    source = _parse_place(place)
    if source is None:
        raise Invalid(f"{place!r} is not a place in a datastore.", fix="Type STORE:PATH.")
    files = scope.client.request(
        "GET",
        f"{_yard(scope)}/datastores/{quote(source.datastore, safe='')}/files",
        query={"prefix": source.path.lstrip("/")},
        answer=list[FileInfo],
        timeout_seconds=_PATIENT_SECONDS,
    )
    if as_json:
        console.document(files)
        return
    console.table(
        ("SIZE", "PATH"), [[Cell(size_text(file.size)), Cell(file.path)] for file in files]
    )
    console.note(f"{plural(len(files), 'file')}, {size_text(sum(file.size for file in files))}.")


@data.command("show")
@click.argument("name", metavar="NAME[:VERSION]|ID")
@_workspace_option
@json_option
def show_data(name: str, workspace: str | None, as_json: bool) -> None:
    """Show a dataset: its recipe, the files it leads to now, and the runs that used it.

    \b
    Example:
      runyard data show mnist:2
    """
    scope = _open(workspace)
    record = _find(scope, name)
    resolved = _files_of(scope, record)
    key = f"runyard.dataset.{record.id}"
    used = scope.page(limit=100, query={"property": key})
    made = scope.page(limit=100, query={"property": f"runyard.output_dataset.{record.id}"})
    found = scope.client.request(
        "GET", "/api/v1/models", query={"dataset": record.id, "limit": 100}, answer=ModelPage
    )
    models = [model_label(model) for model in found.models]
    if as_json:
        console.document(
            {
                "dataset": record,
                "files": resolved.files,
                "single": resolved.single,
                "runs": [run.id for run in used.runs],
                "made_by": [run.id for run in made.runs],
                "models": models,
            }
        )
        return
    total = sum(max(0, file.size) for file in resolved.files)
    console.fields(
        {
            "dataset": Cell(record.name or record.id, "bold"),
            "version": str(record.number or ""),
            "id": record.id,
            "kind": str(record.spec.kind),
            "description": record.description,
            "tags": ", ".join(f"{key}={value or ''}" for key, value in record.tags.items()),
            "source": "\n".join(_words(source) for source in record.spec.sources[:FILES_SHOWN]),
            "steps": ", ".join(step.op for step in record.spec.steps),
            "files": f"{len(resolved.files)}, {size_text(total)}",
        }
    )
    console.heading("Files")
    rows = [
        [Cell(size_text(file.size) if file.size >= 0 else "?"), Cell(file.path)]
        for file in resolved.files[:FILES_SHOWN]
    ]
    console.table(("SIZE", "PATH"), rows)
    if len(resolved.files) > FILES_SHOWN:
        console.note(f"… and {len(resolved.files) - FILES_SHOWN} more; --json shows all.")
    _say_runs("Made by", made)
    _say_runs("Runs that read it", used)
    if models:
        console.heading("Models made with it")
        for name in models:
            console.say(name)


def _say_runs(title: str, page: RunPage) -> None:
    if page.runs:
        console.heading(title)
        rows = [[Cell(run.id, "bold"), state_cell(run.state)] for run in page.runs]
        console.table(("RUN", "STATE"), rows)


@data.command("stores")
@click.option(
    "--add", metavar="NAME=URL", help="Register a folder, or an s3://, gs://, abfs:// URL."
)
@click.option("--default", "chosen", metavar="NAME", help="Make this one the default.")
@_workspace_option
@json_option
def list_stores(add: str | None, chosen: str | None, workspace: str | None, as_json: bool) -> None:
    """List the datastores of the workspace.

    Credentials are given in Python, not here, where they would stay in the shell's history:
    Datastore.register_azure_blob_container and its like.

    \b
    Example:
      runyard data stores
      runyard data stores --add pool=/data/pool
    """
    scope = _open(workspace)
    if add is not None:
        _add_store(scope, add)
    if chosen is not None:
        path = f"{_yard(scope)}/datastores/{quote(chosen, safe='')}/default"
        scope.client.request("POST", path, answer=DatastoreRecord)
    found = _stores(scope)
    if as_json:
        console.document(found)
        return
    console.table(
        ("NAME", "KIND", "TYPE", "URL"),
        [
            [
                Cell(f"{record.name}{' (default)' if record.is_default else ''}", "bold"),
                Cell(record.kind),
                Cell(record.type),
                Cell(record.url or "kept by the server"),
            ]
            for record in found
        ],
        shrink=("URL",),
    )


def _add_store(scope: Scope, text: str) -> None:
    name, equals, url = text.partition("=")
    if not equals:
        raise Invalid(f"--add {text!r} makes no sense.", fix="Type --add NAME=URL.")
    if "://" not in url:
        url = Path(url).expanduser().absolute().as_uri()
    spec = DatastoreSpec(name=name, url=url, type="Folder" if url.startswith("file:") else "Remote")
    path = f"{_yard(scope)}/datastores/{quote(name, safe='')}"
    scope.client.request("PUT", path, body=spec, answer=DatastoreRecord)


# ---- register, upload, download --------------------------------------------------------------


@data.command("register")
@click.argument("name")
@click.argument("sources", metavar="SOURCE…", nargs=-1, required=True)
@click.option("--new-version", is_flag=True, help="If the name exists, make its next version.")
@click.option("--description", default="", metavar="TEXT", help="What it is.")
@click.option("--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="May be repeated.")
@click.option(
    "--reader",
    type=click.Choice(["delimited", "parquet", "json_lines"]),
    help="The files are tables, read so.",
)
@click.option("--no-check", is_flag=True, help="Do not look whether the sources are there.")
@_workspace_option
@json_option
def register(
    name: str,
    sources: tuple[str, ...],
    new_version: bool,
    description: str,
    tags: tuple[str, ...],
    reader: str | None,
    no_check: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Register a dataset of web addresses, or of STORE:PATH places (patterns may have * and **).

    \b
    Example:
      runyard data register mnist https://example.com/train.gz https://example.com/test.gz
      runyard data register photos 'workspaceblobstore:photos/**/*.jpg'
    """
    scope = _open(workspace)
    spec = DatasetSpec(
        kind=DatasetKind.TABULAR if reader else DatasetKind.FILE,
        sources=tuple(_parse_source(text) for text in sources),
        is_list=len(sources) > 1,
        reader=reader or "",
    )
    if not no_check:
        _resolve(scope, spec)
    record = _register(scope, name, spec, description, tags, new_version=new_version)
    _say_registered(record, as_json=as_json)


@data.command("upload")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", metavar="[[STORE:]PATH]", required=False)
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@click.option("--register", "name", metavar="NAME", help="Register what was uploaded, too.")
@_workspace_option
@json_option
def upload(
    source: Path,
    target: str | None,
    overwrite: bool,
    name: str | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Upload a file or a folder to a datastore: by default to one of its name in the default one.

    \b
    Example:
      runyard data upload ./digits
      runyard data upload ./digits pool:mnist/v2 --register mnist
    """
    from runyard.cli import data_transfer

    scope = _open(workspace)
    place = _parse_place(target or "") or StoreSource(datastore="", path=target or "")
    store = _store(scope, place.datastore)
    path = place.path.strip("/") or source.resolve().name
    if source.is_file() and place.path.endswith("/"):
        path = f"{path}/{source.name}"
    files = data_transfer.gather(source, path)
    session = data_transfer.open_session(scope)
    count = data_transfer.upload(session, store, files, overwrite=overwrite, shown=not as_json)
    spec = DatasetSpec(sources=(StoreSource(datastore=store.name, path=path),))
    record = _register(scope, name, spec, "", (), new_version=True) if name else None
    if as_json:
        console.document(
            {
                "datastore": store.name,
                "path": path,
                "uploaded": count,
                "there_already": len(files) - count,
                "dataset": record,
            }
        )
        return
    there = f", {len(files) - count} were there already" if count < len(files) else ""
    console.say(f"{plural(count, 'file')} to {store.name}:{path}{there}")
    if record is not None:
        _say_registered(record, as_json=False)


@data.command("download")
@click.argument("name", metavar="NAME[:VERSION]|ID|STORE:PATH")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@_workspace_option
@json_option
def download(
    name: str, folder: Path, overwrite: bool, workspace: str | None, as_json: bool
) -> None:
    """Download the files of a dataset, or of a place in a datastore, into a folder.

    \b
    Example:
      runyard data download mnist:2 ./mnist
    """
    from runyard.cli import data_transfer

    scope = _open(workspace)
    place = None if _is_version(name) else _parse_place(name)
    if place is not None:
        resolved = _resolve(scope, DatasetSpec(sources=(place,)))
    else:
        resolved = _files_of(scope, _find(scope, name))
    session = data_transfer.open_session(scope)
    files: tuple[DataFile, ...] = resolved.files
    paths = data_transfer.download(session, files, folder, overwrite=overwrite, shown=not as_json)
    if as_json:
        console.document([str(path) for path in paths])
        return
    console.say(f"{plural(len(paths), 'file')} in {folder}")


# ---- small steps -----------------------------------------------------------------------------


def _open(workspace: str | None) -> Scope:
    scope = open_scope(workspace)
    if scope.workspace is None:
        raise NotFound(
            "Which workspace is meant?",
            why="There is no config.json in this folder or above it.",
            fix="Name it with --workspace, or make one here with: runyard init",
        )
    return scope


def _yard(scope: Scope) -> str:
    return f"/api/v1/workspaces/{quote(scope.workspace or '', safe='')}"


def _stores(scope: Scope) -> list[DatastoreRecord]:
    return scope.client.request("GET", f"{_yard(scope)}/datastores", answer=list[DatastoreRecord])


def _store(scope: Scope, name: str) -> DatastoreRecord:
    if name:
        path = f"{_yard(scope)}/datastores/{quote(name, safe='')}"
        return scope.client.request("GET", path, answer=DatastoreRecord)
    return next(record for record in _stores(scope) if record.is_default)


def _find(scope: Scope, name: str) -> DatasetRecord:
    wanted, _, version = name.partition(":")
    query = {"name": wanted, "version": version or "latest"}
    try:
        return scope.client.request(
            "GET", f"{_yard(scope)}/datasets", query=query, answer=list[DatasetRecord]
        )[0]
    except NotFound:
        if version:
            raise
        by_id = f"/api/v1/datasets/{quote(name, safe='')}"
        try:
            return scope.client.request("GET", by_id, answer=DatasetRecord)
        except NotFound:
            pass
        raise


def _files_of(scope: Scope, record: DatasetRecord) -> ResolvedData:
    return scope.client.request(
        "GET",
        f"/api/v1/datasets/{quote(record.id, safe='')}/files",
        answer=ResolvedData,
        timeout_seconds=_PATIENT_SECONDS,
    )


def _resolve(scope: Scope, spec: DatasetSpec) -> ResolvedData:
    return scope.client.request(
        "POST",
        f"{_yard(scope)}/datasets/resolve",
        body=spec,
        answer=ResolvedData,
        safe_to_repeat=True,
        timeout_seconds=_PATIENT_SECONDS,
    )


def _register(
    scope: Scope,
    name: str,
    spec: DatasetSpec,
    description: str,
    tags: tuple[str, ...],
    *,
    new_version: bool,
) -> DatasetRecord:
    pairs = (text.partition("=") for text in tags)
    wanted = DatasetRegistration(
        spec=spec,
        name=name,
        description=description,
        tags={key: value if equals else None for key, equals, value in pairs},
        create_new_version=new_version,
    )
    return scope.client.request(
        "POST",
        f"{_yard(scope)}/datasets",
        body=wanted,
        answer=DatasetRecord,
        safe_to_repeat=True,
    )


def _say_registered(record: DatasetRecord, *, as_json: bool) -> None:
    if as_json:
        console.document(record)
    else:
        console.say(f"{record.name}:{record.number}")


def _is_version(text: str) -> bool:
    _, colon, version = text.partition(":")
    return bool(colon) and (version.isdigit() or version == "latest")


def _parse_place(text: str) -> StoreSource | None:
    """STORE:PATH, or None if the text is something else."""
    store, colon, path = text.partition(":")
    if not colon or path.startswith("//") or not store:
        return None
    return StoreSource(datastore=store, path=path)


def _parse_source(text: str) -> Source:
    if text.startswith(("http://", "https://")):
        return UrlSource(url=text)
    place = _parse_place(text)
    if place is None:
        raise Invalid(
            f"{text!r} is neither a web address nor a place in a datastore.",
            fix="Type https://… or STORE:PATH; upload files of this machine with: runyard data"
            " upload FILE",
        )
    return place


def _sources(spec: DatasetSpec) -> str:
    first = _words(spec.sources[0])
    return first if len(spec.sources) == 1 else f"{first} and {len(spec.sources) - 1} more"


def _words(source: Source) -> str:
    return source.url if isinstance(source, UrlSource) else f"{source.datastore}:{source.path}"
