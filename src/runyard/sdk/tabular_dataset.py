"""`TabularDataset`: a table out of files."""

import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from runyard.sdk.abstract_dataset import AbstractDataset
from runyard.sdk.exceptions import DatasetTimestampMissingError, error_text
from runyard.sdk.file_dataset import FileDataset
from runyard.sdk.table_files import write_parts
from runyard_runtime import steps, tables

Columns = str | Sequence[str]


class TabularDataset(AbstractDataset):
    """A table: read from its files, and transformed, each time it is asked for."""

    def to_pandas_dataframe(
        self, on_error: str = "null", out_of_range_datetime: str = "null"
    ) -> Any:
        """The table as a pandas DataFrame (pandas is the user's own)."""
        tables.pandas()  # before anything travels
        recipe = msgspec.to_builtins(self._spec)
        files = self._resolved().files
        with tempfile.TemporaryDirectory(prefix="runyard-") as name:
            folder = Path(name)
            if tables.rows_needed(recipe["steps"]) is None:
                paths = self._fetch(files, folder, overwrite=True)
                local = [(file.path, str(path)) for file, path in zip(files, paths, strict=True)]
                return tables.read(recipe, local, on_error, out_of_range_datetime)
            # The first rows are enough: fetch file by file, until there are enough.
            lazy = [
                (
                    file.path,
                    lambda one=file: str(self._fetch((one,), folder, overwrite=True)[0]),
                )
                for file in files
            ]
            return tables.read(recipe, lazy, on_error, out_of_range_datetime)

    def to_csv_files(self, separator: str = ",") -> FileDataset:
        """The table written to the default datastore, as a dataset of CSV files."""
        return write_parts(
            self._place(),
            self.to_pandas_dataframe(),
            "part-00000.csv",
            lambda table, path: table.to_csv(path, sep=separator, index=False),
        )

    def to_parquet_files(self) -> FileDataset:
        """The table written to the default datastore, as a dataset of parquet files."""
        return write_parts(
            self._place(),
            self.to_pandas_dataframe(),
            "part-00000.parquet",
            lambda table, path: table.to_parquet(path, index=False),
        )

    # Columns

    def keep_columns(self, columns: Columns, validate: bool = False) -> Self:
        """These columns, in this order."""
        kept = self._with(steps.keep_columns(columns))
        return kept._checked() if validate else kept

    def drop_columns(self, columns: Columns) -> Self:
        """All columns but these."""
        return self._with(steps.drop_columns(columns))

    def _checked(self) -> Self:
        self.take(1).to_pandas_dataframe()
        return self

    # Times

    @property
    def timestamp_columns(self) -> tuple[str | None, str | None]:
        """The columns that hold the time, fine and coarse."""
        for step in reversed(self._spec.steps):
            if step.op == "timestamps":
                fine, coarse = (step.arguments.get(k) for k in ("timestamp", "partition_timestamp"))
                return (str(fine) if fine else None, str(coarse) if coarse else None)
        return None, None

    def with_timestamp_columns(
        self,
        timestamp: str | None = None,
        partition_timestamp: str | None = None,
        validate: bool = False,
        **kwargs: object,
    ) -> Self:
        """Say which columns hold the time; `time_after` and its like need that."""
        # v1's older words for the two
        timestamp = timestamp or _name(kwargs.get("fine_grain_timestamp"))
        partition_timestamp = partition_timestamp or _name(kwargs.get("coarse_grain_timestamp"))
        made = self._with(steps.timestamps(timestamp, partition_timestamp))
        return made._checked() if validate else made

    def time_before(
        self, end_time: datetime.datetime, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """What lies before a time."""
        return self._with(
            steps.time(self._time_column(), before=end_time, include_boundary=include_boundary)
        )

    def time_after(
        self, start_time: datetime.datetime, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """What lies after a time."""
        return self._with(
            steps.time(self._time_column(), after=start_time, include_boundary=include_boundary)
        )

    def time_between(
        self,
        start_time: datetime.datetime,
        end_time: datetime.datetime,
        include_boundary: bool = True,
        validate: bool = True,
    ) -> Self:
        """What lies between two times."""
        return self._with(
            steps.time(self._time_column(), start_time, end_time, include_boundary=include_boundary)
        )

    def time_recent(
        self, time_delta: datetime.timedelta, include_boundary: bool = True, validate: bool = True
    ) -> Self:
        """What lies in the span of time before now."""
        return self._with(steps.recent(self._time_column(), time_delta, include_boundary))

    def _time_column(self) -> str:
        fine, coarse = self.timestamp_columns
        column = fine or coarse
        if column is None:
            raise DatasetTimestampMissingError(
                error_text(
                    "The dataset does not know which column holds the time.",
                    fix="Say so first: dataset.with_timestamp_columns('time')",
                )
            )
        return column


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else None
