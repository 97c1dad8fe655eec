"""`Experiment`: a named series of runs."""

import html
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from runyard.domain.runs import RunKind, RunSpec
from runyard.domain.workspaces import ExperimentRecord, check_experiment_name
from runyard.sdk.not_here import refuse
from runyard.sdk.session import border, segment

if TYPE_CHECKING:
    from runyard.sdk.run import Run
    from runyard.sdk.workspace import Workspace

DOCS_URL = "https://docs.microsoft.com/python/api/azureml-core/azureml.core.experiment.Experiment"


class Experiment:
    """A named series of runs; made on the server when it is new."""

    def __init__(
        self,
        workspace: "Workspace",
        name: str,
        _skip_name_validation: bool = False,
        _create_in_cloud: bool = True,
        **kwargs: object,
    ) -> None:
        self.workspace = workspace
        self._session = workspace._session
        self._name = name
        if not _skip_name_validation:
            with border():
                check_experiment_name(name)
        self._record: ExperimentRecord | None = None
        if _create_in_cloud:
            self._record = self._session.request("PUT", self._path, answer=ExperimentRecord)

    @classmethod
    def _of(cls, workspace: "Workspace", record: ExperimentRecord) -> "Experiment":
        """The handle of a record that was already read."""
        experiment = cls(workspace, record.name, _create_in_cloud=False)
        experiment._record = record
        return experiment

    @staticmethod
    def list(
        workspace: "Workspace",
        experiment_name: str | None = None,
        view_type: str = "ActiveOnly",
        tags: Mapping[str, str] | str | None = None,
    ) -> "_Experiments":
        """The experiments of a workspace."""
        found = list(workspace.experiments.values())
        if experiment_name is not None:
            found = [one for one in found if one.name == experiment_name]
        wanted = {tags: None} if isinstance(tags, str) else dict(tags or {})
        return [one for one in found if _has_tags(one.tags, wanted)]

    def submit(
        self, config: object, tags: Mapping[str, object] | None = None, **kwargs: object
    ) -> "Run":
        """Start a run and return at once; follow it with `wait_for_completion`."""
        from runyard.sdk.submission import Labels, submit, tag_values

        labels = Labels(
            tags=tag_values(tags),
            run_id=_text(kwargs.get("run_id")),
            display_name=_text(kwargs.get("display_name")),
        )
        return submit(self, config, labels)

    def start_logging(
        self,
        *args: object,
        outputs: str | os.PathLike[str] | bool | None = None,
        snapshot_directory: str | os.PathLike[str] | None = None,
        display_name: str | None = None,
        **kwargs: object,
    ) -> "Run":
        """Start an interactive run: this process does the work and logs to it.

        What is written to `./outputs` meanwhile is kept when the run ends; `outputs` names
        another folder, all of whose files are kept, or is False: none.
        """
        from runyard.sdk.run import run_of
        from runyard.sdk.submission import folder_snapshot, post_run, tag_values, user_name
        from runyard.sdk.tracked_outputs import TrackedOutputs

        properties = {}
        if snapshot_directory is not None:
            snapshot = folder_snapshot(self._session, Path(os.fspath(snapshot_directory)))
            properties["ContentSnapshotId"] = snapshot.id
        chosen = _text(kwargs.get("run_id"))
        tags = kwargs.get("tags")
        spec = RunSpec(
            workspace=self.workspace.name,
            experiment=self.name,
            id=chosen or str(uuid4()),
            kind=RunKind.INTERACTIVE,
            display_name=display_name,
            tags=tag_values(tags if isinstance(tags, Mapping) else None),
            properties=properties,
            submitted_by=user_name(),
        )
        record = post_run(self._session, spec, None, chosen=chosen is not None)
        if outputs is None or outputs is True:
            return run_of(self, record, outputs=TrackedOutputs.default())
        return run_of(self, record, outputs=TrackedOutputs(outputs) if outputs else None)

    def get_runs(
        self,
        type: str | None = None,
        tags: Mapping[str, str | None] | str | None = None,
        properties: Mapping[str, str | None] | str | None = None,
        include_children: bool = False,
    ) -> "Generator[Run, None, None]":
        """The experiment's runs, newest first, fetched as they are asked for."""
        from runyard.sdk.run import Run

        return Run.list(
            self, type=type, tags=tags, properties=properties, include_children=include_children
        )

    def tag(self, key: str, value: object | None = None) -> None:
        """Not in this release."""
        refuse("Experiment.tag()", "tags of experiments", "Tag the runs: run.tag(key, value).")

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Not in this release."""
        refuse("Experiment.set_tags()", "tags of experiments", "Tag the runs: run.set_tags(...).")

    def remove_tags(self, tags: object) -> None:
        """Not in this release."""
        refuse("Experiment.remove_tags()", "tags of experiments", "Tag the runs: run.tag(key).")

    def reactivate(self, new_name: str | None = None) -> None:
        """Not in this release."""
        refuse("Experiment.reactivate()", "the archiving of experiments")

    @staticmethod
    def delete(workspace: "Workspace", experiment_id: str) -> None:
        """Not in this release."""
        refuse("Experiment.delete()", "the removal of experiments")

    def archive(self) -> None:
        """Not in this release."""
        refuse("Experiment.archive()", "the archiving of experiments")

    def refresh(self) -> None:
        """Read the experiment from the server again."""
        self._record = self._session.request("PUT", self._path, answer=ExperimentRecord)

    @staticmethod
    def get_docs_url() -> str:
        """Where v1's class is described."""
        return DOCS_URL

    def get_portal_url(self) -> str:
        """The page that lists the runs."""
        return f"{self._session.client.url}/"

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._name

    @property
    def id(self) -> str:
        """The experiment's id."""
        if self._record is None:
            self.refresh()
        assert self._record is not None
        return self._record.id

    @property
    def tags(self) -> dict[str, str | None]:
        """The experiment's tags."""
        return dict(self._record.tags) if self._record is not None else {}

    @property
    def workspace_object(self) -> "Workspace":
        """The workspace that holds it."""
        return self.workspace

    @property
    def archived_time(self) -> None:
        """When it was archived: never."""
        return

    @property
    def _path(self) -> str:
        return f"{self.workspace._path}/experiments/{segment(self._name)}"

    def __repr__(self) -> str:
        return f"Experiment(Name: {self.name},\nWorkspace: {self.workspace.name})"

    def _repr_html_(self) -> str:
        cells = {"Name": self.name, "Workspace": self.workspace.name}
        return html_table(cells, {"Report Page": self.get_portal_url()})


_Experiments = list[Experiment]


def _has_tags(tags: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> bool:
    return all(
        key in tags and (value is None or tags[key] == value) for key, value in wanted.items()
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def html_table(cells: Mapping[str, str], links: Mapping[str, str]) -> str:
    """A handle as notebooks show it: one row, with links at the end."""
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in (*cells, *links))
    row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells.values())
    for head, url in links.items():
        row += (
            f'<td><a href="{html.escape(url, quote=True)}" target="_blank" rel="noopener">'
            f"Link to {html.escape(head)}</a></td>"
        )
    return f'<table style="width:100%"><tr>{heads}</tr><tr>{row}</tr></table>'
