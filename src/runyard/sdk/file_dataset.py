"""`FileDataset`: files, wherever they are."""

import os
import tempfile
from pathlib import Path
from typing import Any

from runyard.sdk.abstract_dataset import AbstractDataset
from runyard.sdk.dataset_consumption import DatasetConsumptionConfig, new_input_name
from runyard.sdk.exceptions import user_error
from runyard.sdk.mounting import MountContext
from runyard_runtime import expressions


class FileDataset(AbstractDataset):
    """Files: addresses on the web, or paths in datastores."""

    @property
    def file_metadata(self) -> Any:
        """What is known of the files, to filter by: `dataset.file_metadata['Size'] > 1000`."""
        return expressions.Fields()

    def to_path(self) -> list[str]:
        """The files' paths in the dataset, each with a slash before it."""
        return [f"/{file.path}" for file in self._resolved().files]

    def download(
        self,
        target_path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        ignore_not_found: bool = False,
    ) -> list[str]:
        """Download the files, into a new temporary folder if none is given; their paths."""
        if target_path is None:
            target_path = tempfile.mkdtemp(prefix="runyard-")
        folder = Path(os.fspath(target_path)).expanduser()
        if folder.exists() and not folder.is_dir():
            raise user_error(f"'{folder}' is not a folder.")
        found = self._fetch(self._resolved().files, folder, overwrite=overwrite)
        return [str(path.absolute()) for path in found]

    def mount(
        self, mount_point: str | os.PathLike[str] | None = None, **kwargs: object
    ) -> MountContext:
        """The files as a folder, in a `with` statement or between `start()` and `stop()`."""
        return MountContext(self, mount_point)

    def as_mount(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """An input of a run whose files are fetched when the script reads them."""
        return DatasetConsumptionConfig(new_input_name(), self, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> DatasetConsumptionConfig:
        """An input of a run whose files are there before the script starts."""
        return DatasetConsumptionConfig(new_input_name(), self, "download", path_on_compute)

    def as_hdfs(self) -> DatasetConsumptionConfig:
        """Not supported: it is for Spark on Azure."""
        return self.as_named_input(new_input_name()).as_hdfs()

    def as_cache(self, datacache_store: object) -> object:
        """Not needed: every node keeps what was read."""
        raise user_error(
            "as_cache() is not supported.",
            why="Every node keeps the data it read, for all runs.",
            fix="Use as_mount().",
        )
