"""What every handle of a run has: its record, its state and its labels."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from runyard.domain.runs import RunPatch, RunRecord
from runyard.sdk.exceptions import user_error
from runyard.sdk.experiment import Experiment, html_table
from runyard.sdk.session import Session, segment
from runyard.sdk.submission import tag_values

if TYPE_CHECKING:
    from runyard.sdk.abstract_dataset import AbstractDataset

DOCS_URL = "https://docs.microsoft.com/python/api/azureml-core/azureml.core.run.Run"


class RunHandle:
    """A run's last known record, and what can be asked and said of it."""

    _experiment: Experiment
    _session: Session
    _record: RunRecord

    # What it is

    @property
    def id(self) -> str:
        """The run's id."""
        return self._record.id

    @property
    def number(self) -> int:
        """Its number within the experiment, from 1."""
        return self._record.number

    @property
    def type(self) -> str:
        """What stands behind it: 'azureml.scriptrun', 'interactive'."""
        return str(self._record.spec.kind)

    @property
    def experiment(self) -> Experiment:
        """The experiment it belongs to."""
        return self._experiment

    @property
    def display_name(self) -> str:
        """The name people see; may be set."""
        return self._record.display_name or self._record.id

    @display_name.setter
    def display_name(self, name: str) -> None:
        self._patch(RunPatch(display_name=str(name)))

    @property
    def name(self) -> str:
        """The name people see."""
        return self.display_name

    @property
    def status(self) -> str:
        """The status when it was last looked at; `get_status()` looks."""
        return str(self._record.state)

    @property
    def tags(self) -> dict[str, str | None]:
        """The tags when it was last looked at."""
        return dict(self._record.tags)

    @property
    def properties(self) -> dict[str, str]:
        """The properties when it was last looked at."""
        return dict(self._record.properties)

    @property
    def input_datasets(self) -> "dict[str, AbstractDataset]":
        """The datasets it was given, by the name of the input."""
        from runyard.sdk.dataset import Dataset

        script = self._record.spec.script
        workspace = self._experiment.workspace
        return {
            one.name: Dataset.get_by_id(workspace, one.dataset)
            for one in (script.inputs if script is not None else ())
            if one.dataset is not None
        }

    # How it is

    def get_status(self) -> str:
        """The status now."""
        return str(self._look().state)

    def get_detailed_status(self) -> dict[str, str | None]:
        """The status now, and what the run waits for."""
        record = self._look()
        return {"status": str(record.state), "details": record.waiting or None}

    def get_portal_url(self) -> str:
        """The address of the run's page, with a ticket that opens it."""
        answer = self._session.request(
            "POST", f"{self._path}/ticket", answer=dict[str, str], safe_to_repeat=True
        )
        return f"{self._session.client.url}{answer['url']}"

    # Labels

    def get_tags(self) -> dict[str, str | None]:
        """The tags now."""
        return dict(self._look().tags)

    def tag(self, key: str, value: object | None = None) -> None:
        """Set a tag; its value may be None."""
        self.set_tags({key: value})

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Set tags; a number becomes its text."""
        self._patch(RunPatch(set_tags=tag_values(tags)))

    def remove_tags(self, tags: str | Iterable[str]) -> None:
        """Remove tags by their keys."""
        keys = (tags,) if isinstance(tags, str) else tuple(str(key) for key in tags)
        self._patch(RunPatch(remove_tags=keys))

    def get_properties(self) -> dict[str, str]:
        """The properties now."""
        return dict(self._look().properties)

    def add_properties(self, properties: Mapping[str, object]) -> None:
        """Add properties; one that is there already cannot be changed."""
        taken = sorted(set(self.get_properties()).intersection(map(str, properties)))
        if taken:
            raise user_error(
                f"Run '{self.id}' has the property '{taken[0]}' already.",
                why="Properties are never changed.",
                fix="Use a tag for what changes: run.tag(key, value)",
            )
        added = {str(key): str(value) for key, value in properties.items()}
        self._patch(RunPatch(add_properties=added))

    # Inside

    @property
    def _path(self) -> str:
        return f"/api/v1/runs/{segment(self.id)}"

    def _look(self) -> RunRecord:
        self._record = load_run(self._session, self.id)
        return self._record

    def _patch(self, patch: RunPatch) -> None:
        self._record = self._session.request(
            "PATCH", self._path, body=patch, answer=RunRecord, safe_to_repeat=True
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return (
            f"Run(Experiment: {self._experiment.name},\nId: {self.id},\n"
            f"Type: {self.type},\nStatus: {self.status})"
        )

    def _repr_html_(self) -> str:
        cells = {
            "Experiment": self._experiment.name,
            "Id": self.id,
            "Type": self.type,
            "Status": self.get_status(),
        }
        return html_table(cells, {"Details Page": self.get_portal_url(), "Docs Page": DOCS_URL})


def load_run(session: Session, run_id: str) -> RunRecord:
    """The record of a run as it is now."""
    return session.request("GET", f"/api/v1/runs/{segment(run_id)}", answer=RunRecord)
