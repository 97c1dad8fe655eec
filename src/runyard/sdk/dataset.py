"""`Dataset`: the way to all datasets."""

from typing import TYPE_CHECKING, NoReturn

from runyard.domain.data import DatasetKind, DatasetRecord
from runyard.sdk.abstract_dataset import AbstractDataset
from runyard.sdk.dataset_factory import FileDatasetFactory, TabularDatasetFactory
from runyard.sdk.exceptions import user_error
from runyard.sdk.file_dataset import FileDataset
from runyard.sdk.session import segment
from runyard.sdk.tabular_dataset import TabularDataset

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace


class Dataset:
    """Datasets are made by `Dataset.File` and `Dataset.Tabular`, and found by name or id."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(
        workspace: "Workspace", name: str, version: int | str = "latest"
    ) -> AbstractDataset:
        """The dataset of that name; the newest version, or one of its others."""
        found = _find(workspace, {"name": name, "version": str(version)})
        if not found:
            raise user_error(f"There is no dataset '{name}'.")
        return dataset_of(workspace, found[0])

    @staticmethod
    def get_by_id(workspace: "Workspace", id: str) -> AbstractDataset:
        """The dataset of that id."""
        return dataset_of(workspace, load_dataset(workspace, id))

    @staticmethod
    def get_all(workspace: "Workspace") -> dict[str, AbstractDataset]:
        """The newest version of every registered dataset, by name."""
        found = _find(workspace, {"version": "latest"})
        return {record.name: dataset_of(workspace, record) for record in found}

    @staticmethod
    def auto_read_files(*args: object, **kwargs: object) -> NoReturn:
        """Not supported: v1 gave it up as well."""
        raise _retired("auto_read_files", "from_delimited_files")

    @staticmethod
    def from_delimited_files(*args: object, **kwargs: object) -> NoReturn:
        """Not supported: v1 gave it up as well."""
        raise _retired("from_delimited_files", "from_delimited_files")

    @staticmethod
    def from_parquet_files(*args: object, **kwargs: object) -> NoReturn:
        """Not supported: v1 gave it up as well."""
        raise _retired("from_parquet_files", "from_parquet_files")


def load_dataset(workspace: "Workspace", id: str) -> DatasetRecord:
    """The record of a dataset."""
    return workspace._session.request(
        "GET", f"/api/v1/datasets/{segment(id)}", answer=DatasetRecord
    )


def dataset_of(workspace: "Workspace", record: DatasetRecord) -> AbstractDataset:
    """The handle of a record."""
    kind = FileDataset if record.spec.kind is DatasetKind.FILE else TabularDataset
    return kind._of(record.spec, workspace, record)


def _find(workspace: "Workspace", query: dict[str, object]) -> tuple[DatasetRecord, ...]:
    return workspace._session.request(
        "GET", f"{workspace._path}/datasets", query=query, answer=tuple[DatasetRecord, ...]
    )


def _retired(name: str, instead: str) -> Exception:
    return user_error(
        f"Dataset.{name} is not supported.",
        why="It belonged to the datasets before v1's File and Tabular ones.",
        fix=f"Use Dataset.Tabular.{instead}(path).",
    )
