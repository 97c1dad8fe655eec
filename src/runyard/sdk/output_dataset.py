"""`OutputFileDatasetConfig`: a folder that a run writes and a datastore keeps."""

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runyard.domain.data import DataOutput
from runyard.sdk.dataset_consumption import check_input_name
from runyard.sdk.exceptions import user_error
from runyard_runtime import recipes, wire

if TYPE_CHECKING:
    from runyard.sdk.datastore import Datastore
    from runyard_runtime.column_types import DataType, PromoteHeadersBehavior

DEFAULT_PATH = "dataset/{run-id}/{output-name}"


class OutputFileDatasetConfig:
    """A folder to write to. In arguments it becomes the folder's path; what is in it at the end
    is kept at `destination`, a pair of a datastore and a path.
    """

    def __init__(
        self,
        name: str | None = None,
        destination: "tuple[Datastore, str] | Datastore | None" = None,
        source: str | None = None,
        partition_format: str | None = None,
    ) -> None:
        self.name = check_input_name(name or f"output_{secrets.token_hex(4)}")
        self.destination = _check_destination(destination)
        self.source = source
        self.partition_format = partition_format
        self.mode = "mount"
        self._overwrite = False
        self._globs: tuple[str, ...] = ()
        self._registration = ("", "", dict[str, str | None]())
        self._reader = ""
        self._reader_options: dict[str, object] = {}
        self._pattern = ""

    def as_mount(self, disable_metadata_cache: bool = False) -> "OutputFileDatasetConfig":
        """Keep what is written while the run goes on, too."""
        return self._but(mode="mount")

    def as_upload(
        self, overwrite: bool = False, source_globs: Sequence[str] | None = None
    ) -> "OutputFileDatasetConfig":
        """Keep what is there when the run ends; with `source_globs` only what matches."""
        globs = (source_globs,) if isinstance(source_globs, str) else tuple(source_globs or ())
        return self._but(mode="upload", _overwrite=bool(overwrite), _globs=globs)

    def register_on_complete(
        self,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> "OutputFileDatasetConfig":
        """Register what was written as a dataset when the run has completed."""
        if not isinstance(name, str) or not name:
            raise user_error(f"{name!r} cannot be the name of a dataset.")
        return self._but(_registration=(name, description or "", dict(tags or {})))

    def read_delimited_files(
        self,
        include_path: bool = False,
        separator: str = ",",
        header: "bool | PromoteHeadersBehavior" = True,
        partition_format: str | None = None,
        path_glob: str | None = None,
        set_column_types: "Mapping[str, DataType] | None" = None,
    ) -> "OutputFileDatasetConfig":
        """Register what was written as a table out of files of separated values."""
        options = recipes.delimited_options(
            include_path, True, set_column_types, separator, header, False, "utf8"
        )
        return self._as_table("delimited", options, partition_format, path_glob)

    def read_parquet_files(
        self,
        include_path: bool = False,
        partition_format: str | None = None,
        path_glob: str | None = None,
        set_column_types: "Mapping[str, DataType] | None" = None,
    ) -> "OutputFileDatasetConfig":
        """Register what was written as a table out of parquet files."""
        options = recipes.parquet_options(include_path, set_column_types)
        return self._as_table("parquet", options, partition_format, path_glob)

    def _as_table(
        self,
        reader: str,
        options: dict[str, object],
        partition_format: str | None,
        path_glob: str | None,
    ) -> "OutputFileDatasetConfig":
        return self._but(
            _reader=reader,
            _reader_options=options,
            partition_format=partition_format or self.partition_format,
            _pattern=recipes.store_path(path_glob),
        )

    def as_input(self, name: str | None = None) -> "OutputFileDatasetConfig":
        """Not outside pipelines, which this release does not have."""
        raise user_error(
            "OutputFileDatasetConfig.as_input() is not in this release.",
            why="It hands an output to the next step of a pipeline; there are no pipelines yet.",
            fix="Use register_on_complete('name'), and Dataset.get_by_name(ws, 'name') afterwards.",
        )

    def _but(self, **changes: object) -> "OutputFileDatasetConfig":
        other = copy.copy(self)
        for key, value in changes.items():
            setattr(other, key, value)
        return other

    def __str__(self) -> str:
        return f"{wire.OUTPUT_ARGUMENT}{self.name}"

    def __repr__(self) -> str:
        return f"OutputFileDatasetConfig(name={self.name!r}, mode={self.mode!r})"


def plan_output(config: OutputFileDatasetConfig, default_store: str) -> DataOutput:
    """What a run is told of an output. Pure."""
    store, path = config.destination or (None, "")
    name, description, tags = config._registration
    return DataOutput(
        name=config.name,
        datastore=store.name if store is not None else default_store,
        path=path or DEFAULT_PATH,
        mode=config.mode,
        path_on_compute=config.source,
        overwrite=config._overwrite,
        globs=config._globs,
        register_as=name,
        description=description,
        tags=tags,
        reader=config._reader,
        reader_options=config._reader_options,
        partition_format=config.partition_format,
        pattern=config._pattern,
    )


def _check_destination(destination: object) -> "tuple[Datastore, str] | None":
    from runyard.sdk.datastore import Datastore

    if destination is None:
        return None
    if isinstance(destination, Datastore):
        return destination, ""
    if isinstance(destination, tuple | list) and len(destination) == 2:
        store, path = destination
        if isinstance(store, Datastore) and isinstance(path, str):
            return store, recipes.store_path(path)
    raise user_error(
        f"destination={destination!r} is not a place in a datastore.",
        fix="Write destination=(datastore, 'results/{run-id}')",
    )
