"""`Dataset.File` and `Dataset.Tabular`: datasets out of paths."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runyard.domain.data import DatasetSpec
from runyard.sdk.data_transfer import folder_files, say, silent
from runyard.sdk.datastore import Datastore, store_of
from runyard.sdk.exceptions import user_error
from runyard.sdk.file_dataset import FileDataset
from runyard.sdk.local_data import keep_local
from runyard.sdk.table_files import store_table
from runyard.sdk.tabular_dataset import TabularDataset
from runyard_runtime import recipes

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace
    from runyard_runtime.column_types import DataType, FileEncoding, PromoteHeadersBehavior

Types = Mapping[str, "DataType"]


class FileDatasetFactory:
    """`Dataset.File`."""

    @staticmethod
    def from_files(
        path: object,
        validate: bool = True,
        partition_format: str | None = None,
        is_file: bool = False,
    ) -> FileDataset:
        """A dataset of files: addresses, pairs of a datastore and a path (with * and **), local
        paths (these are uploaded), or a list of one of these.
        """
        spec, workspace = _recipe("file", path, partition_format=partition_format)
        dataset = FileDataset._of(spec, workspace)
        if validate:
            dataset._validate()
        return dataset

    @staticmethod
    def upload_directory(
        src_dir: str | os.PathLike[str],
        target: object,
        pattern: str | None = None,
        overwrite: bool = False,
        show_progress: bool = True,
    ) -> FileDataset:
        """Upload a folder to a place in a datastore, and make a dataset of it."""
        tell = say if show_progress else silent
        tell("Validating arguments.")
        store, below = target_place(target)
        files = folder_files(Path(os.fspath(src_dir)), below)
        if pattern is not None:
            root = Path(os.fspath(src_dir)).expanduser()
            matching = {path for path in root.glob(pattern) if path.is_file()}
            files = [file for file in files if file.source in matching]
        if not files:
            raise user_error(
                f"There is nothing to upload in '{src_dir}'"
                + (f" that matches {pattern!r}." if pattern else ".")
            )
        tell("Arguments validated.")
        tell(f"Uploading file to {below or '/'}")
        store._send(files, overwrite, show_progress)
        tell("Creating new dataset")
        return FileDatasetFactory.from_files((store, f"{below}/**" if below else "**"))


class TabularDatasetFactory:
    """`Dataset.Tabular`."""

    @staticmethod
    def from_delimited_files(
        path: object,
        validate: bool = True,
        include_path: bool = False,
        infer_column_types: bool = True,
        set_column_types: Types | None = None,
        separator: str = ",",
        header: "bool | PromoteHeadersBehavior" = True,
        partition_format: str | None = None,
        support_multi_line: bool = False,
        empty_as_string: bool = False,
        encoding: "str | FileEncoding" = "utf8",
    ) -> TabularDataset:
        """A table out of files of separated values."""
        options = recipes.delimited_options(
            include_path,
            infer_column_types,
            set_column_types,
            separator,
            header,
            empty_as_string,
            encoding,
        )
        return _table(path, "delimited", options, partition_format, validate=validate)

    @staticmethod
    def from_parquet_files(
        path: object,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Types | None = None,
        partition_format: str | None = None,
    ) -> TabularDataset:
        """A table out of parquet files."""
        options = recipes.parquet_options(include_path, set_column_types)
        return _table(path, "parquet", options, partition_format, validate=validate)

    @staticmethod
    def from_json_lines_files(
        path: object,
        validate: bool = True,
        include_path: bool = False,
        set_column_types: Types | None = None,
        partition_format: str | None = None,
        invalid_lines: str = "error",
        encoding: "str | FileEncoding" = "utf8",
    ) -> TabularDataset:
        """A table out of files with a JSON object on each line."""
        options = recipes.json_lines_options(
            include_path, set_column_types, invalid_lines, encoding
        )
        return _table(path, "json_lines", options, partition_format, validate=validate)

    @staticmethod
    def from_sql_query(*args: object, **kwargs: object) -> TabularDataset:
        """Not supported: there are no database datastores."""
        raise user_error(
            "Dataset.Tabular.from_sql_query is not supported.",
            why="Datastores are places for files here.",
            fix="Read with pandas.read_sql and use Dataset.Tabular.register_pandas_dataframe.",
        )

    @staticmethod
    def register_pandas_dataframe(
        dataframe: Any,
        target: object,
        name: str,
        description: str | None = None,
        tags: Mapping[str, str | None] | None = None,
        show_progress: bool = True,
        row_group_size: int | None = None,
        make_target_path_unique: bool = True,
    ) -> TabularDataset:
        """Keep a DataFrame in a datastore as a parquet file, registered as a dataset."""
        tell = say if show_progress else silent
        tell("Validating arguments.")
        if not hasattr(dataframe, "to_parquet"):
            raise user_error(f"A {type(dataframe).__name__} is not a pandas DataFrame.")
        store, below = target_place(target)
        tell("Arguments validated.")
        tell("Successfully obtained datastore reference and path.")
        unique = str(uuid.uuid4()) if make_target_path_unique else ""
        folder = "/".join(part for part in (below, unique) if part)
        file = f"{folder}/part-00000.parquet" if folder else "part-00000.parquet"
        tell(f"Uploading file to {folder or '/'}")
        options = {} if row_group_size is None else {"row_group_size": row_group_size}
        store_table(store, dataframe, file, lambda table, path: table.to_parquet(path, **options))
        tell("Successfully uploaded file to datastore.")
        tell("Creating and registering a new dataset.")
        dataset = TabularDatasetFactory.from_parquet_files((store, file), validate=False)
        made = dataset.register(store.workspace, name, description, tags, create_new_version=True)
        tell("Successfully created and registered a new dataset.")
        return made


def target_place(target: object) -> tuple[Datastore, str]:
    """The datastore and the path that v1's `target` means."""
    if isinstance(target, Datastore):
        return target, ""
    if isinstance(target, tuple | list) and len(target) == 2 and isinstance(target[0], Datastore):
        return target[0], recipes.store_path(target[1])
    store = getattr(target, "datastore", None)
    if isinstance(store, Datastore):
        return store, recipes.store_path(getattr(target, "path_on_datastore", None))
    raise user_error(
        f"target={target!r} is not a place in a datastore.",
        fix="Write target=(datastore, 'folder')",
    )


def _table(
    path: object,
    reader: str,
    options: dict[str, object],
    partition_format: str | None,
    *,
    validate: bool,
) -> TabularDataset:
    spec, workspace = _recipe("tabular", path, reader, options, partition_format)
    dataset = TabularDataset._of(spec, workspace)
    if validate:
        dataset._validate()
    return dataset


def _recipe(
    kind: str,
    path: object,
    reader: str = "",
    options: dict[str, object] | None = None,
    partition_format: str | None = None,
) -> "tuple[DatasetSpec, Workspace | None]":
    sources, is_list, workspaces = recipes.read_sources(path, store_of, keep_local)
    names = {workspace.name for workspace in workspaces}
    if len(names) > 1:
        raise user_error(f"The datastores belong to several workspaces: {', '.join(names)}.")
    made = recipes.recipe(kind, sources, is_list, reader, options, partition_format)
    return msgspec.convert(made, DatasetSpec), workspaces[0] if workspaces else None
