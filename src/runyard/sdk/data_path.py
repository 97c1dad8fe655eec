"""`DataPath`: a place in a datastore that is not tied to a run."""

from typing import TYPE_CHECKING

from runyard.sdk.exceptions import user_error
from runyard_runtime.recipes import store_path

if TYPE_CHECKING:
    from runyard.sdk.data_reference import DataReference
    from runyard.sdk.datastore import Datastore

MODES = ("mount", "download", "upload")


class DataPath:
    """A path in a datastore."""

    def __init__(
        self,
        datastore: "Datastore | None" = None,
        path_on_datastore: str | None = None,
        name: str | None = None,
    ) -> None:
        if datastore is None:
            raise user_error("A DataPath needs a datastore.", fix="DataPath(datastore, 'folder')")
        self.datastore = datastore
        self.path_on_datastore: str = store_path(path_on_datastore)
        self.name = name

    @property
    def datastore_name(self) -> str:
        """The datastore's name."""
        return self.datastore.name

    @staticmethod
    def create_from_data_reference(data_reference: "DataReference") -> "DataPath":
        """The place a reference leads to."""
        return DataPath(
            data_reference.datastore,
            data_reference.path_on_datastore,
            data_reference.data_reference_name,
        )

    def create_data_reference(
        self,
        data_reference_name: str | None = None,
        datapath_compute_binding: "DataPathComputeBinding | None" = None,
    ) -> "DataReference":
        """A reference to this place, for a run."""
        from runyard.sdk.data_reference import DataReference

        binding = datapath_compute_binding or DataPathComputeBinding()
        return DataReference(
            self.datastore,
            data_reference_name or self.name,
            self.path_on_datastore,
            binding.mode,
            binding.path_on_compute,
            binding.overwrite,
        )

    def __repr__(self) -> str:
        return f"DataPath(datastore={self.datastore_name!r}, path={self.path_on_datastore!r})"


class DataPathComputeBinding:
    """How a DataPath gets to the machine that runs: mounted, downloaded, or written back."""

    def __init__(
        self, mode: str = "mount", path_on_compute: str | None = None, overwrite: bool = False
    ) -> None:
        self.mode = check_mode(mode)
        self.path_on_compute = path_on_compute
        self.overwrite = overwrite


def check_mode(mode: str) -> str:
    """The mode of a reference, or an error that names them."""
    if mode not in MODES:
        raise user_error(f"mode={mode!r} is not known.", why=f"Modes are: {', '.join(MODES)}.")
    return mode
