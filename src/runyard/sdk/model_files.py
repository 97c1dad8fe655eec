"""The files of models: local ones on their way to the registry, and back."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from runyard.domain.errors import Invalid, RunyardError
from runyard.domain.files import FileEntry, Manifest
from runyard.domain.models import (
    MODELS_FOLDER,
    ModelDraft,
    ModelRecord,
    check_model_files,
    model_root,
)
from runyard.sdk.blob_upload import Content, post_with_contents
from runyard.sdk.data_transfer import (
    CHUNK_BYTES,
    LocalFile,
    fetch_to,
    folder_files,
    in_parallel,
    joined,
    measure,
)
from runyard.sdk.exceptions import (
    ModelPathNotFoundException,
    WebserviceException,
    as_v1_model,
    error_text,
)
from runyard.sdk.run_files import inside
from runyard.sdk.session import Session

StrPath = str | os.PathLike[str]


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder of this machine that becomes a model."""

    manifest: Manifest
    contents: Mapping[str, Content]
    is_folder: bool


def measure_model(path: StrPath, child_paths: Sequence[str] | None = None) -> LocalModel:
    """The files at a path: one, or those of a folder (only `child_paths` of it, if given)."""
    source = Path(os.fspath(path)).expanduser()
    if not source.exists():
        raise ModelPathNotFoundException(
            error_text(
                f"There is no file or folder '{path}' to register as a model.",
                why=f"The working directory is {Path.cwd()}.",
                fix="Correct the path.",
            )
        )
    files = _local_files(source, child_paths)
    measured = in_parallel(measure, files)
    manifest = tuple(sorted(entry for entry, _ in measured))
    try:
        check_model_files(manifest, is_folder=source.is_dir())
    except Invalid as error:
        if not manifest:
            error.why = f"'{path}' is empty."
        raise as_v1_model(error) from None
    contents = {entry.digest: content for entry, content in measured}
    return LocalModel(manifest=manifest, contents=contents, is_folder=source.is_dir())


def _local_files(source: Path, child_paths: Sequence[str] | None) -> list[LocalFile]:
    root = Path(os.path.abspath(source))
    if not source.is_dir():
        if child_paths:
            raise WebserviceException(
                error_text(f"'{source}' is a file, so child_paths makes no sense.")
            )
        return [LocalFile(source=root, target=_text_name(root.name))]
    chosen = [root] if not child_paths else [_child(root, child) for child in child_paths]
    found: dict[str, LocalFile] = {}
    for one in chosen:
        prefix = os.path.relpath(one, root.parent)
        if one.is_dir():
            _refuse_dead_links(one)
            files = folder_files(one, joined("", prefix))
        else:
            files = [LocalFile(source=one, target=joined("", prefix))]
        found.update((_text_name(file.target), file) for file in files)
    return list(found.values())


def _child(root: Path, child: str) -> Path:
    path = Path(os.path.abspath(root / child))
    if not path.is_relative_to(root):
        raise WebserviceException(
            error_text(f"The child path '{child}' leads out of the folder '{root}'.")
        )
    if not path.exists():
        raise ModelPathNotFoundException(
            error_text(f"There is no '{child}' in the folder '{root}'.")
        )
    return path


def _refuse_dead_links(folder: Path) -> None:
    """A model without a file that it should have must not be registered."""
    for above, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(above, name)
            if os.path.islink(path) and not os.path.exists(path):
                raise WebserviceException(
                    error_text(
                        f"'{path}' is a link to nothing.",
                        fix="Remove it, or name what to register in child_paths.",
                    )
                )


def _text_name(name: str) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise WebserviceException(
            error_text(
                f"A file of a model cannot be called {name!r}.",
                why="It is not valid UTF-8.",
                fix="Rename the file.",
            )
        ) from None
    return name


def post_model(
    session: Session, draft: ModelDraft, contents: Mapping[str, Content] | None = None
) -> ModelRecord:
    """Register a model; contents that the server lacks are uploaded first."""
    try:
        return post_with_contents(
            session, "/api/v1/models", draft, contents or {}, answer=ModelRecord
        )
    except RunyardError as error:
        raise as_v1_model(error) from None


def download_model(session: Session, model: ModelRecord, folder: Path, *, exist_ok: bool) -> Path:
    """Write a model's files below a folder; the path of the file or folder that it is."""
    aims = [(entry, inside(folder, entry.path)) for entry in model.manifest]
    if not exist_ok:
        there = next((aim for _, aim in aims if aim.exists()), None)
        if there is not None:
            raise WebserviceException(
                error_text(
                    f"'{there}' exists already.",
                    fix="Choose another target_dir, or pass exist_ok=True to replace it.",
                )
            )
    in_parallel(lambda pair: _fetch(session, *pair), aims)
    return folder / model_root(model)


def _fetch(session: Session, entry: FileEntry, target: Path) -> None:
    fetch_to(session, f"/api/v1/blobs/{entry.digest}", target)
    if entry.mode & 0o111:
        target.chmod(0o755)


def cached_model(session: Session, model: ModelRecord) -> Path:
    """The model in v1's cache folder of the working directory, fetched where it is not there."""
    folder = Path(MODELS_FOLDER, model.name, str(model.number))
    aims = [(entry, inside(folder, entry.path)) for entry in model.manifest]
    absent = [(entry, aim) for entry, aim in aims if not _is_there(entry, aim)]
    in_parallel(lambda pair: _fetch(session, *pair), absent)
    return folder / model_root(model)


def _is_there(entry: FileEntry, path: Path) -> bool:
    """True if the file has that content: somebody may have changed the copy."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    found = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest() == entry.digest
