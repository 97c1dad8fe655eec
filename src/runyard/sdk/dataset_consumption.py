"""`DatasetConsumptionConfig`: how a run gets at a dataset."""

import re
import secrets
from typing import TYPE_CHECKING

from runyard.domain.data import InputMode
from runyard.sdk.exceptions import user_error
from runyard_runtime import wire

if TYPE_CHECKING:
    from runyard.sdk.abstract_dataset import AbstractDataset

# The name is that of an environment variable, so it must not be one that programs live by.
FORBIDDEN = frozenset({"path", "ld_library_path", "user", "logname", "home", "pwd", "shell"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class DatasetConsumptionConfig:
    """A dataset as an input of a run: its name there, and whether it is mounted, downloaded or
    asked for by the script (direct). In arguments it becomes the path that the script finds it at.
    """

    def __init__(
        self,
        name: str,
        dataset: "AbstractDataset",
        mode: str = "direct",
        path_on_compute: str | None = None,
    ) -> None:
        from runyard.sdk.abstract_dataset import AbstractDataset

        if not isinstance(dataset, AbstractDataset):
            raise user_error(
                f"A {type(dataset).__name__} is not a dataset.",
                fix="Write DatasetConsumptionConfig('name', dataset)",
            )
        try:
            self.mode = str(InputMode(mode))
        except ValueError:
            raise user_error(
                f"mode={mode!r} is not known.", why=f"Modes are: {', '.join(InputMode)}."
            ) from None
        if self.mode != InputMode.DIRECT and not dataset._is_files:
            raise user_error(
                f"A tabular dataset cannot be {self.mode}ed.",
                why="It is a table, not a folder of files.",
                fix="Use dataset.as_named_input('name'); in the script: "
                "Run.get_context().input_datasets['name'].to_pandas_dataframe()",
            )
        self.name = check_input_name(name)
        self.dataset = dataset
        self.path_on_compute = path_on_compute

    def as_mount(self, path_on_compute: str | None = None) -> "DatasetConsumptionConfig":
        """The same input, mounted: files are fetched when they are read."""
        return DatasetConsumptionConfig(self.name, self.dataset, "mount", path_on_compute)

    def as_download(self, path_on_compute: str | None = None) -> "DatasetConsumptionConfig":
        """The same input, downloaded before the script starts."""
        return DatasetConsumptionConfig(self.name, self.dataset, "download", path_on_compute)

    def as_direct(self) -> "DatasetConsumptionConfig":
        """The same input, as a dataset in `run.input_datasets`."""
        return DatasetConsumptionConfig(self.name, self.dataset, "direct")

    def as_hdfs(self) -> "DatasetConsumptionConfig":
        """Not supported: it is for Spark on Azure."""
        raise user_error(
            "as_hdfs() is not supported.", why="There is no Spark here.", fix="Use as_mount()."
        )

    def __str__(self) -> str:
        return f"{wire.INPUT_ARGUMENT}{self.name}"

    def __repr__(self) -> str:
        return f"DatasetConsumptionConfig(name={self.name!r}, mode={self.mode!r})"


def new_input_name() -> str:
    """A name for an input that the user did not name, in v1's form."""
    return f"input__{secrets.token_hex(4)}"


def check_input_name(name: str) -> str:
    """The name, or an error: it becomes an environment variable."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise user_error(
            f"{name!r} cannot be the name of an input or output.",
            why="It becomes an environment variable: a letter or underscore, then letters, "
            "digits and underscores.",
            fix="Choose a name such as 'training_data'.",
        )
    if name.lower() in FORBIDDEN:
        raise user_error(
            f"'{name}' cannot be the name of an input or output.",
            why="The environment variable of that name is needed by the system.",
            fix=f"Choose another, such as '{name}_data'.",
        )
    return name
