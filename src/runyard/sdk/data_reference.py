"""`DataReference`: v1's older way to hand a place in a datastore to a script."""

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runyard.domain.data import DataInput, DataOutput, InputMode, StoreSource
from runyard.sdk.data_path import check_mode
from runyard.sdk.element import closed
from runyard.sdk.exceptions import user_error
from runyard_runtime import wire
from runyard_runtime.recipes import store_path

if TYPE_CHECKING:
    from runyard.sdk.datastore import Datastore

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@closed
@dataclass(init=False)
class DataReferenceConfiguration:
    """A data reference as `run_config.data_references` holds it.

    v1 spells `datastore_name` and `path_on_datastore` otherwise as attributes.
    """

    data_store_name: str | None
    mode: str
    path_on_data_store: str | None
    path_on_compute: str | None
    overwrite: bool

    def __init__(
        self,
        datastore_name: str | None = None,
        mode: str = "mount",
        path_on_datastore: str | None = None,
        path_on_compute: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.data_store_name = datastore_name
        self.mode = mode
        self.path_on_data_store = path_on_datastore
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite


class DataReference:
    """A place in a datastore; in arguments it becomes the path that the script finds it at."""

    def __init__(
        self,
        datastore: "Datastore",
        data_reference_name: str | None = None,
        path_on_datastore: str | None = None,
        mode: str = "mount",
        path_on_compute: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.datastore = datastore
        self.path_on_datastore: str | None = store_path(path_on_datastore) or None
        if data_reference_name is None:
            # As in v1: a whole datastore is known by its name, a part of it by a name of its own.
            data_reference_name = uuid.uuid4().hex if self.path_on_datastore else datastore.name
        self.data_reference_name = check_reference_name(data_reference_name)
        self.mode = check_mode(mode)
        self.path_on_compute = path_on_compute
        self.overwrite = bool(overwrite)

    def path(
        self, path: str | None = None, data_reference_name: str | None = None
    ) -> "DataReference":
        """A reference to something below this one."""
        below = "/".join(part for part in (self.path_on_datastore, store_path(path)) if part)
        return DataReference(
            self.datastore,
            data_reference_name,
            below,
            self.mode,
            self.path_on_compute,
            self.overwrite,
        )

    def as_mount(self) -> "DataReference":
        """The same place, mounted."""
        return self._as("mount", None, overwrite=False)

    def as_download(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> "DataReference":
        """The same place, downloaded before the script starts."""
        return self._as("download", path_on_compute, overwrite=overwrite)

    def as_upload(
        self, path_on_compute: str | None = None, overwrite: bool = False
    ) -> "DataReference":
        """A folder that the script writes, kept in that place when it has ended."""
        return self._as("upload", path_on_compute, overwrite=overwrite)

    def _as(self, mode: str, path_on_compute: str | None, *, overwrite: bool) -> "DataReference":
        return DataReference(
            self.datastore,
            self.data_reference_name,
            self.path_on_datastore,
            mode,
            path_on_compute,
            overwrite,
        )

    def to_config(self) -> DataReferenceConfiguration:
        """The reference as `run_config.data_references` holds it."""
        return DataReferenceConfiguration(
            self.datastore.name,
            self.mode,
            self.path_on_datastore,
            self.path_on_compute,
            self.overwrite,
        )

    def __str__(self) -> str:
        return f"${wire.DATA_REFERENCE}{self.data_reference_name}"

    __repr__ = __str__


def check_reference_name(name: str) -> str:
    """The name, or an error: it becomes part of a variable's name."""
    if not isinstance(name, str) or not _NAME.fullmatch("_" + name):
        raise user_error(
            f"'{name}' cannot be the name of a data reference.",
            why="It becomes part of an environment variable: letters, digits and underscores.",
            fix="Pass data_reference_name='images'.",
        )
    return name


def plan_reference(name: str, config: DataReferenceConfiguration) -> DataInput | DataOutput:
    """What a run is told of a reference. Pure."""
    if not config.data_store_name:
        raise user_error(f"The data reference '{name}' names no datastore.")
    path = store_path(config.path_on_data_store)
    if config.mode == "upload":
        return DataOutput(
            name=wire.DATA_REFERENCE + name,
            datastore=config.data_store_name,
            path=path,
            mode="upload",
            path_on_compute=config.path_on_compute,
            overwrite=config.overwrite,
        )
    return DataInput(
        name=name,
        mode=InputMode(check_mode(config.mode)),
        source=StoreSource(datastore=config.data_store_name, path=path),
        path_on_compute=config.path_on_compute,
        overwrite=config.overwrite,
    )
