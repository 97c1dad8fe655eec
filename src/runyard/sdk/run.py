"""`Run`: a live handle of one run."""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from runyard.domain.runs import RunError, RunKind, RunPage, RunRecord, RunSpec
from runyard.domain.states import TERMINAL, RunState
from runyard.sdk import run_files
from runyard.sdk.exceptions import (
    ActivityFailedException,
    ExperimentExecutionException,
    error_text,
    user_error,
)
from runyard.sdk.experiment import Experiment
from runyard.sdk.not_here import refuse
from runyard.sdk.run_details import error_words, label_queries, render_details, render_error
from runyard.sdk.run_file_family import FileFamily
from runyard.sdk.run_following import Printer, print_until_over, wait_until_over
from runyard.sdk.run_handle import load_run
from runyard.sdk.run_log_family import LogFamily
from runyard.sdk.session import segments
from runyard.sdk.submission import Labels, post_run, submit, tag_values, user_name
from runyard.sdk.tracked_outputs import TrackedOutputs
from runyard_runtime.records import is_log, metrics_view

if TYPE_CHECKING:
    from runyard.sdk.model import Model
    from runyard.sdk.workspace import Workspace

PAGE = 100  # runs in one answer

StrPath = str | os.PathLike[str]
Filter = Mapping[str, str | None] | str | None


class Run(FileFamily, LogFamily):
    """A run: what was asked, how it is, what it logged and kept."""

    def __init__(
        self,
        experiment: Experiment,
        run_id: str,
        outputs: StrPath | None = None,
        **kwargs: object,
    ) -> None:
        record = load_run(experiment._session, run_id)
        if (record.spec.workspace, record.spec.experiment) != (
            experiment.workspace.name,
            experiment.name,
        ):
            raise user_error(
                f"Run '{run_id}' is not in experiment '{experiment.name}'.",
                why=f"It is in '{record.spec.experiment}' of '{record.spec.workspace}'.",
                fix="Use Run.get(ws, run_id), which needs no experiment.",
            )
        tracked = TrackedOutputs(outputs) if outputs is not None else None
        self._attach(experiment, record, tracked)

    def _attach(
        self, experiment: Experiment, record: RunRecord, outputs: TrackedOutputs | None
    ) -> None:
        self._experiment = experiment
        self._session = experiment._session
        self._record = record
        self._outputs = outputs

    # Finding runs

    @staticmethod
    def get(workspace: "Workspace", run_id: str) -> "Run":
        """The run of that id."""
        record = load_run(workspace._session, run_id)
        if record.spec.workspace != workspace.name:
            raise user_error(
                f"Run '{run_id}' is not in workspace '{workspace.name}'.",
                why=f"It is in '{record.spec.workspace}'.",
                fix=f"Use Workspace.get('{record.spec.workspace}').get_run('{run_id}').",
            )
        experiment = Experiment(workspace, record.spec.experiment, _create_in_cloud=False)
        return run_of(experiment, record)

    @staticmethod
    def list(
        experiment: Experiment,
        type: str | None = None,
        tags: Filter = None,
        properties: Filter = None,
        status: str | None = None,
        include_children: bool = False,
        _rehydrate_runs: bool = True,
    ) -> "Generator[Run, None, None]":
        """The experiment's runs, newest first, fetched as they are asked for."""
        return _find(
            experiment,
            {
                "experiment": experiment.name,
                "top_level": not include_children,
                **_filters(type, tags, properties, status),
            },
        )

    @staticmethod
    def get_context(
        allow_offline: bool = True, used_for_context_manager: bool = False, **kwargs: object
    ) -> Any:
        """The run this process belongs to; outside a job a stand-in that only prints.

        Both are the runtime's classes, which are old Python and carry no types.
        """
        from runyard_runtime.run import Run as JobRun

        return JobRun.get_context(allow_offline=allow_offline)

    @staticmethod
    def get_submitted_run(**kwargs: object) -> Any:
        """v1's first name of `get_context`."""
        return Run.get_context()

    @staticmethod
    def add_type_provider(
        runtype: str, run_factory: "Callable[[Experiment, RunRecord], Run]"
    ) -> None:
        """Have runs of that type come back as what `run_factory` makes of them."""
        _FACTORIES[runtype] = run_factory

    # How it is

    def get_details(self) -> dict[str, object]:
        """Status, times, error, properties, definition and logs in one dictionary."""
        record = self._look()
        base = f"{self._session.client.url}{self._path}/files"
        logs = {name: f"{base}/{segments(name)}" for name in self.get_file_names() if is_log(name)}
        return render_details(record, logs)

    def get_details_with_logs(self) -> dict[str, object]:
        """As `get_details`, with the contents of the logs (of long ones, the end)."""
        details = self.get_details()
        files = run_files.list_files(self._session, self.id)
        details["logFiles"] = {
            info.path: self._log_text(info.path, info.size) for info in files if is_log(info.path)
        }
        return details

    def wait_for_completion(
        self,
        show_output: bool = False,
        wait_post_processing: bool = False,
        raise_on_error: bool = True,
    ) -> dict[str, object]:
        """Wait until the run is over, outputs and all; returns its details.

        A failed run raises `ActivityFailedException` unless `raise_on_error` is False. Ctrl-C
        ends the waiting, not the run.
        """
        try:
            if show_output:
                printer = Printer(_write, self.id, self.get_portal_url())
                printer.begins()
                self._record = print_until_over(self._session, self.id, printer)
                printer.ends(self._record, raising=raise_on_error)
            else:
                self._record = wait_until_over(self._session, self._record)
        except KeyboardInterrupt:
            raise ExperimentExecutionException(
                error_text(
                    f"Waiting for run '{self.id}' was broken off.",
                    why="The run itself goes on.",
                    fix="End it with run.cancel(), or wait again: run.wait_for_completion()",
                )
            ) from None
        if raise_on_error and self._record.state is RunState.FAILED:
            details = render_error(self._record.error) if self._record.error else None
            raise ActivityFailedException(error_words(self._record), error_details=details)
        return self.get_details()

    # What it logged

    def get_metrics(
        self,
        name: str | None = None,
        recursive: bool = False,
        run_type: str | None = None,
        populate: bool = False,
    ) -> dict[str, object]:
        """What was logged: once → the value, repeated → a list; recursive → by run id."""
        found = self._session.request(
            "GET",
            f"{self._path}/metrics",
            query={"name": name, "recursive": recursive or None},
            answer=dict[str, list[dict[str, object]]],
        )
        views: dict[str, dict[str, object]] = {
            id: metrics_view(series) for id, series in found.items()
        }
        if not recursive:
            return views.get(self.id, {})
        if run_type is not None:
            kept = {child.id for child in self.get_children(recursive=True, type=run_type)}
            kept |= {self.id} if self.type == run_type else set()
            views = {id: values for id, values in views.items() if id in kept}
        return dict(views)

    # Children

    @property
    def parent(self) -> "Run | None":
        """The run it is a child of, or None."""
        parent = self._record.spec.parent
        return Run.get(self._experiment.workspace, parent) if parent else None

    def child_run(
        self, name: str | None = None, run_id: str | None = None, outputs: StrPath | None = None
    ) -> "Run":
        """A new child, to log to; use it in a `with` statement, or complete it."""
        return self._new_child(name, run_id, outputs, {})

    def create_children(
        self,
        count: int | None = None,
        tag_key: str | None = None,
        tag_values: Sequence[object] | None = None,
    ) -> "_Runs":
        """Several new children: `count` of them, or one for each value of a tag."""
        if (count is None) == (tag_values is None) or (tag_key is None) != (tag_values is None):
            raise user_error(
                "Children are made by count, or by tag_key and tag_values.",
                fix="Write run.create_children(count=3), or "
                "run.create_children(tag_key='fold', tag_values=[1, 2, 3])",
            )
        if tag_values is None:
            return [self._new_child(None, None, None, {}) for _ in range(count or 0)]
        return [self._new_child(None, None, None, {str(tag_key): value}) for value in tag_values]

    def get_children(
        self,
        recursive: bool = False,
        tags: Filter = None,
        properties: Filter = None,
        type: str | None = None,
        status: str | None = None,
        _rehydrate_runs: bool = True,
    ) -> "Generator[Run, None, None]":
        """The children, newest first; recursive: theirs too."""
        filters = _filters(type, tags, properties, status)
        yield from _find(self._experiment, {"parent": self.id, **filters})
        if recursive:
            for child in _find(self._experiment, {"parent": self.id}):
                yield from child.get_children(True, tags, properties, type, status)

    def submit_child(
        self, config: object, tags: Mapping[str, object] | None = None, **kwargs: object
    ) -> "Run":
        """Submit a configuration as a child of this run."""
        labels = Labels(tags=tag_values(tags), parent=self.id)
        return submit(self._experiment, config, labels)

    def _new_child(
        self,
        name: str | None,
        run_id: str | None,
        outputs: StrPath | None,
        tags: Mapping[str, object],
    ) -> "Run":
        spec = RunSpec(
            workspace=self._record.spec.workspace,
            experiment=self._experiment.name,
            id=run_id or str(uuid4()),
            kind=RunKind.INTERACTIVE,
            parent=self.id,
            display_name=name,
            tags=tag_values(tags),
            submitted_by=user_name(),
        )
        record = post_run(self._session, spec, None, chosen=run_id is not None)
        tracked = TrackedOutputs(outputs) if outputs is not None else None
        return run_of(self._experiment, record, outputs=tracked)

    # Its end

    def start(self) -> None:
        """Nothing to do: a run is started when it is made."""

    def flush(self, timeout_seconds: int = 300) -> None:
        """Nothing to do: what is logged here is with the server when `log` returns."""

    def complete(self, _set_status: bool = True) -> None:
        """Mark the run as completed."""
        self._keep_outputs()
        self._record = self._end("complete", None)

    def fail(
        self,
        error_details: object | None = None,
        error_code: str | None = None,
        _set_status: bool = True,
    ) -> None:
        """Mark the run as failed; `error_details` is a text or an exception."""
        self._keep_outputs()
        error = RunError(code=str(error_code or "UserError"), message=_error_message(error_details))
        self._record = self._end("fail", error)

    def cancel(self) -> None:
        """Ask for the run's end."""
        self._record = self._end("cancel", None)

    def _end(self, verb: str, body: object | None) -> RunRecord:
        return self._session.request(
            "POST", f"{self._path}/{verb}", body=body, answer=RunRecord, safe_to_repeat=True
        )

    def _keep_outputs(self) -> None:
        if self._outputs is None or self._record.state in TERMINAL:
            return
        if named := self._outputs.files():
            run_files.upload_paths(self._session, self.id, named, replace=True)
        self._outputs.let_go()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        elif self._look().state not in TERMINAL:
            self.complete()

    # Models

    def register_model(
        self,
        model_name: str,
        model_path: str | None = None,
        tags: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        description: str | None = None,
        datasets: object | None = None,
        sample_input_dataset: object | None = None,
        sample_output_dataset: object | None = None,
        resource_configuration: object | None = None,
        **kwargs: object,
    ) -> "Model":
        """Register a file or folder of the run as the next version of a model; copies nothing."""
        from runyard.sdk.model import register_from_run
        from runyard.sdk.model_drafts import Details

        details = Details(
            tags=tags,
            properties=properties,
            description=description,
            datasets=datasets,
            framework=model_framework,
            framework_version=model_framework_version,
            sample_input=sample_input_dataset,
            sample_output=sample_output_dataset,
            resources=resource_configuration,
        )
        return register_from_run(self, model_name, model_path, details)

    # Not in this release

    def get_secret(self, name: str) -> str:
        """Not in this release."""
        refuse("run.get_secret()", "the secret store", "Use an environment variable.")


_Runs = list[Run]


class ScriptRun(Run):
    """A run of a submitted script."""


_FACTORIES: dict[str, Callable[[Experiment, RunRecord], Run]] = {}
_CLASSES: dict[str, type[Run]] = {RunKind.SCRIPT: ScriptRun}


def run_of(
    experiment: Experiment, record: RunRecord, *, outputs: TrackedOutputs | None = None
) -> Run:
    """The handle for a record, of the class that its type has."""
    kind = str(record.spec.kind)
    if kind in _FACTORIES:
        return _FACTORIES[kind](experiment, record)
    handle = _CLASSES.get(kind, Run)
    run = handle.__new__(handle)
    run._attach(experiment, record, outputs)
    return run


def get_run(experiment: Experiment, run_id: str, rehydrate: bool = True) -> Run:
    """The run of that id in the experiment's workspace."""
    return Run.get(experiment.workspace, run_id)


def _filters(
    type: str | None, tags: Filter, properties: Filter, status: str | None
) -> dict[str, object]:
    return {
        "kind": type,
        "tag": label_queries(tags),
        "property": label_queries(properties),
        "state": status,
    }


def _find(experiment: Experiment, query: Mapping[str, object]) -> Generator[Run, None, None]:
    """Runs of the experiment's workspace, page by page."""
    after: str | None = None
    while True:
        page = experiment._session.request(
            "GET",
            "/api/v1/runs",
            query={
                "workspace": experiment.workspace.name,
                "limit": PAGE,
                "after": after,
                **query,
            },
            answer=RunPage,
        )
        for record in page.runs:
            yield run_of(_experiment_of(experiment, record), record)
        after = page.next
        if after is None:
            return


def _experiment_of(experiment: Experiment, record: RunRecord) -> Experiment:
    if record.spec.experiment == experiment.name:
        return experiment
    return Experiment(experiment.workspace, record.spec.experiment, _create_in_cloud=False)


def _error_message(details: object | None) -> str:
    if isinstance(details, BaseException):
        return f"{type(details).__name__}: {details}"
    return "" if details is None else str(details)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
