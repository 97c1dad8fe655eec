"""What file and tabular datasets share: a recipe, its registration, its transformations."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from runyard.domain.data import (
    DataFile,
    DatasetKind,
    DatasetRecord,
    DatasetRegistration,
    DatasetSpec,
    ResolvedData,
    StoreSource,
)
from runyard.sdk.current_workspace import current_workspace, last_workspace
from runyard.sdk.dataset_consumption import DatasetConsumptionConfig
from runyard.sdk.exceptions import user_error
from runyard.sdk.not_here import missing_attribute
from runyard.sdk.resolved_data import fetch_files
from runyard.sdk.session import segment
from runyard_runtime import expressions, recipes, steps
from runyard_runtime.partitions import Partitioning

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

Tags = Mapping[str, str | None]

# Methods of v1's classes that wait for a later release, and what they belong to.
_NOT_YET = {
    "add_tags": "changes to a registered dataset; register a new version of it",
    "as_hdfs": "Spark",
    "get_partition_key_values": "partitions as values",
    "get_profile": "profiles of data",
    "get_profile_runs": "profiles of data",
    "partition_by": "tables that are written in partitions",
    "remove_tags": "changes to a registered dataset; register a new version of it",
    "submit_profile_run": "profiles of data",
    "to_dask_dataframe": "Dask; use to_pandas_dataframe()",
    "to_spark_dataframe": "Spark; use to_pandas_dataframe()",
    "update": "changes to a registered dataset; register a new version of it",
}


class AbstractDataset:
    """A recipe: where data is, and what is done to it when it is used. The data stays there."""

    _spec: DatasetSpec
    _workspace: "Workspace | None"
    _record: DatasetRecord | None

    @classmethod
    def _of(
        cls,
        spec: DatasetSpec,
        workspace: "Workspace | None" = None,
        record: DatasetRecord | None = None,
    ) -> Self:
        dataset = cls.__new__(cls)
        dataset._spec, dataset._workspace, dataset._record = spec, workspace, record
        return dataset

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise user_error(
            f"A {type(self).__name__} is not made by calling its class.",
            fix="Use Dataset.File.from_files(...), Dataset.Tabular.from_delimited_files(...) or "
            "Dataset.get_by_name(ws, name).",
        )

    # What it is

    @property
    def name(self) -> str | None:
        """The name it is registered under, or None."""
        return (self._record.name or None) if self._record else None

    @property
    def version(self) -> int | None:
        """Its version under that name, or None."""
        return (self._record.number or None) if self._record else None

    @property
    def id(self) -> str | None:
        """Its id, or None while the workspace does not know it."""
        return self._record.id if self._record else None

    @property
    def description(self) -> str | None:
        """What was said of it when it was registered."""
        return (self._record.description or None) if self._record else None

    @property
    def tags(self) -> dict[str, str | None]:
        """The tags it was registered with."""
        return dict(self._record.tags) if self._record else {}

    @property
    def partition_keys(self) -> list[str]:
        """The names of the columns that come from the files' paths."""
        text = self._spec.partition_format
        return list(Partitioning(text).keys) if text else []

    @property
    def _is_files(self) -> bool:
        return self._spec.kind is DatasetKind.FILE

    def __getattr__(self, name: str) -> Any:
        """Words for what v1's class had besides."""
        raise missing_attribute(self, name, _NOT_YET)

    def __getitem__(self, name: str) -> Any:
        """A column, to filter by: `dataset.filter(dataset['age'] > 18)`."""
        return expressions.column(name)

    # Registration

    def register(
        self,
        workspace: "Workspace",
        name: str,
        description: str | None = None,
        tags: Tags | None = None,
        create_new_version: bool = False,
    ) -> Self:
        """Keep it in the workspace under a name; what is returned knows its version."""
        self._check_workspace(workspace)
        if not isinstance(name, str) or not name:
            raise user_error(
                "A dataset cannot be registered without a name.",
                fix="Write dataset.register(workspace, name='mnist')",
            )
        record = self._post(
            workspace,
            DatasetRegistration(
                spec=self._spec,
                name=name,
                description=description or "",
                tags={str(key): _text(value) for key, value in dict(tags or {}).items()},
                create_new_version=create_new_version,
            ),
        )
        return type(self)._of(self._spec, workspace, record)

    def unregister_all_versions(self) -> None:
        """Take its name from all versions; runs that used them keep them."""
        if self.name is None or self._workspace is None:
            raise user_error("The dataset is not registered.")
        self._workspace._session.request(
            "DELETE", f"{self._workspace._path}/datasets/{segment(self.name)}", answer=object
        )

    def _saved(self, workspace: "Workspace") -> DatasetRecord:
        """Its record; one that has none gets an id, without a name."""
        self._check_workspace(workspace)
        if self._record is None:
            self._record = self._post(workspace, DatasetRegistration(spec=self._spec))
            self._workspace = workspace
        return self._record

    def _post(self, workspace: "Workspace", registration: DatasetRegistration) -> DatasetRecord:
        return workspace._session.request(
            "POST", f"{workspace._path}/datasets", body=registration, answer=DatasetRecord
        )

    def _check_workspace(self, workspace: "Workspace") -> None:
        bound = any(isinstance(source, StoreSource) for source in self._spec.sources)
        own = self._workspace
        if own is not None and own.name != workspace.name and (bound or self._record):
            raise user_error(
                f"The dataset belongs to the workspace '{own.name}', not '{workspace.name}'.",
                fix=f"Make it again with datastores of '{workspace.name}'.",
            )

    # Transformations: stored, not done

    def take(self, count: int) -> Self:
        """The first `count` of it."""
        return self._with(steps.take(count))

    def skip(self, count: int) -> Self:
        """All but the first `count`."""
        return self._with(steps.skip(count))

    def take_sample(self, probability: float, seed: int | None = None) -> Self:
        """Each one with a probability; the same ones each time it is read."""
        return self._with(steps.sample(probability, seed))

    def random_split(self, percentage: float, seed: int | None = None) -> tuple[Self, Self]:
        """Two datasets that have all of it between them: about `percentage`, and the rest."""
        first, second = steps.split(percentage, seed)
        return self._with(first), self._with(second)

    def filter(self, expression: object) -> Self:
        """What a condition is true for: `dataset.filter(dataset['age'] > 18)`."""
        return self._with(steps.filter(expression))

    def _with(self, step: Mapping[str, object]) -> Self:
        spec = recipes.with_step(msgspec.to_builtins(self._spec), step)
        return type(self)._of(msgspec.convert(spec, DatasetSpec), self._workspace)

    # How a run gets it

    def as_named_input(self, name: str) -> DatasetConsumptionConfig:
        """An input of a run under a name; in the script: `run.input_datasets[name]`."""
        return DatasetConsumptionConfig(name, self)

    # Its files

    def _place(self) -> "Workspace":
        return self._workspace or current_workspace()

    def _resolved(self) -> ResolvedData:
        workspace = self._place()
        return workspace._session.request(
            "POST",
            f"{workspace._path}/datasets/resolve",
            body=self._spec,
            answer=ResolvedData,
            safe_to_repeat=True,
            timeout_seconds=600.0,
        )

    def _validate(self) -> None:
        """Follow the recipe once, so that a wrong path is an error where it is written."""
        if self._workspace is not None or last_workspace() is not None:
            self._resolved()

    def _fetch(self, files: tuple[DataFile, ...], folder: Path, *, overwrite: bool) -> list[Path]:
        return fetch_files(self._place()._session, files, folder, overwrite=overwrite)

    def __repr__(self) -> str:
        sources = [
            f"{one.datastore}/{one.path}" if isinstance(one, StoreSource) else one.url
            for one in self._spec.sources
        ]
        shown = sources if len(sources) < 4 else [*sources[:3], f"… ({len(sources)})"]
        name = f"name={self.name!r}, version={self.version}, " if self.name else ""
        did = [step.op for step in self._spec.steps]
        return f"{type(self).__name__}({name}sources={shown}" + (f", steps={did})" if did else ")")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
