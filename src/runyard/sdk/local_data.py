"""Local paths in a dataset: they are uploaded, because jobs run elsewhere."""

import glob
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runyard.sdk.current_workspace import current_workspace
from runyard.sdk.data_transfer import LocalFile, folder_files, relative_name, say, silent
from runyard.sdk.exceptions import user_error

if TYPE_CHECKING:
    from runyard.sdk.datastore import Datastore

FOLDER = "local"


def keep_local(path: str) -> tuple[str, str, Any]:
    """Upload a local file, folder or pattern to the default datastore.

    Returned are the datastore's name, the path there and the workspace. The path follows from
    where the files are and when they changed: unchanged data is uploaded once, and a dataset that
    was made of it earlier keeps what it had.
    """
    workspace = current_workspace()
    store = workspace.get_default_datastore()
    given = Path(path).expanduser()
    if given.is_file():
        files, tail = [LocalFile(source=given, target=given.name)], given.name
    elif given.is_dir():
        files, tail = folder_files(given, ""), ""
    else:
        files, tail = _matching(str(given)), ""
    if not files:
        raise user_error(
            f"There is nothing at '{path}'.",
            why="It is neither a web address nor a path in a datastore, and on this machine there "
            f"is no such file; the working directory is {Path.cwd()}.",
            fix="Correct the path, or pass (datastore, 'path').",
        )
    folder = f"{FOLDER}/{_fingerprint(files)}"
    _send(store, path, folder, files)
    return store.name, f"{folder}/{tail}" if tail else folder, workspace


def _send(store: "Datastore", path: str, folder: str, files: list[LocalFile]) -> None:
    say(f"Uploading '{path}' to the datastore '{store.name}', as {folder}")
    from runyard.sdk import data_transfer

    moved = [LocalFile(source=one.source, target=f"{folder}/{one.target}") for one in files]
    data_transfer.upload(store._place(), moved, overwrite=False, tell=silent)


def _matching(pattern: str) -> list[LocalFile]:
    parts = Path(pattern).parts
    fixed = next((n for n, part in enumerate(parts) if glob.has_magic(part)), None)
    if fixed is None:
        return []
    root = Path(*parts[:fixed])
    return [
        LocalFile(source=Path(found), target=relative_name(os.path.relpath(found, root)))
        for found in sorted(glob.glob(pattern, recursive=True))
        if os.path.isfile(found)
    ]


def _fingerprint(files: list[LocalFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        found = file.source.stat()
        line = f"{file.source.absolute()}\0{file.target}\0{found.st_size}\0{found.st_mtime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
