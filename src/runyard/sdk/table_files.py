"""Tables written to a datastore."""

import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runyard.domain.data import DatasetSpec, StoreSource
from runyard.sdk.data_transfer import LocalFile

if TYPE_CHECKING:
    from runyard.sdk.datastore import Datastore
    from runyard.sdk.file_dataset import FileDataset
    from runyard.sdk.workspace import Workspace

FOLDER = "managed-dataset"


def write_parts(
    workspace: "Workspace", table: Any, name: str, write: Callable[[Any, str], object]
) -> "FileDataset":
    """A table written to a folder of its own in the default datastore."""
    from runyard.sdk.file_dataset import FileDataset

    store = workspace.get_default_datastore()
    folder = f"{FOLDER}/{uuid.uuid4()}"
    store_table(store, table, f"{folder}/{name}", write)
    sources = (StoreSource(datastore=store.name, path=folder),)
    return FileDataset._of(DatasetSpec(sources=sources), workspace)


def store_table(
    store: "Datastore", table: Any, target: str, write: Callable[[Any, str], object]
) -> None:
    """Write a table as one file of a datastore."""
    with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
        path = Path(folder, target.rsplit("/", 1)[-1])
        write(table, str(path))
        store._send([LocalFile(source=path, target=target)], overwrite=True, show_progress=False)
