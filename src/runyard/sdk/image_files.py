"""Where images of models are kept between programs: in the workspace's own datastore.

azureml-images/NAME/VERSION/image.json   what it was made of
azureml-images/NAME/VERSION/files/       the script and what goes along with it
"""

import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runyard.sdk.data_transfer import LocalFile, folder_files
from runyard.sdk.datastore import Datastore
from runyard.sdk.run_file_family import WORKSPACE_STORE
from runyard.sdk.session import segment

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

_CACHE = "cache/images"  # below the home folder
_FOLDER = "azureml-images"
_NOTE, _FILES = "image.json", "files"


class ImageNote(msgspec.Struct, frozen=True, kw_only=True):
    """What an image was made of."""

    name: str
    version: int
    created: datetime
    models: tuple[str, ...]  # NAME:VERSION of each
    script: str
    conda_file: str | None = None  # among its files
    runtime: str
    enable_gpu: bool | None = None
    base_image: str | None = None
    description: str | None = None
    tags: dict[str, str | None] = {}
    properties: dict[str, str | None] = {}
    is_deleted: bool = False  # its number is not used again


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image as it was kept, and where its files are now."""

    note: ImageNote
    folder: Path


def keep_image(workspace: "Workspace", note: ImageNote, files: Mapping[str, Path]) -> None:
    """Keep an image for programs to come."""
    root = _root(note)
    sent: list[LocalFile] = []
    for name, place in files.items():
        target = f"{root}/{_FILES}/{name}"
        if place.is_dir():
            sent += folder_files(place, target)
        else:
            sent.append(LocalFile(source=place, target=target))
    with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
        written = Path(folder, _NOTE)
        written.write_bytes(msgspec.json.encode(note))
        sent.append(LocalFile(source=written, target=f"{root}/{_NOTE}"))
        _store(workspace)._send(sent, overwrite=True, show_progress=False)


def stored_images(workspace: "Workspace", name: str | None = None) -> list[StoredImage]:
    """All images that were kept, deleted ones too, in the order of names and versions."""
    # A deployment needs the files later, so they stay.
    folder = workspace._session.settings.home / _CACHE / workspace._record.id
    wanted = segment(name) if name else "*"
    prefix = f"{_FOLDER}/{wanted}/" if name else f"{_FOLDER}/"
    _store(workspace).download(folder, prefix, overwrite=True, show_progress=False)
    found = [
        StoredImage(
            note=msgspec.json.decode(path.read_bytes(), type=ImageNote),
            folder=path.parent / _FILES,
        )
        for path in folder.glob(f"{_FOLDER}/{wanted}/*/{_NOTE}")
    ]
    return sorted(found, key=lambda one: (one.note.name, one.note.version))


def _root(note: ImageNote) -> str:
    return f"{_FOLDER}/{segment(note.name)}/{note.version}"


def _store(workspace: "Workspace") -> Datastore:
    return Datastore(workspace, WORKSPACE_STORE)
