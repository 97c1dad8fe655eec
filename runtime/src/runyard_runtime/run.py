"""The run this process belongs to, and other runs of its workspace."""

import traceback
import uuid

from runyard_runtime import events, records
from runyard_runtime.api import file_path_of, path_of
from runyard_runtime.artifacts import FileFamily
from runyard_runtime.exceptions import (
    AuthenticationException,
    RunEnvironmentException,
    UserErrorException,
    explain,
)
from runyard_runtime.experiment import Experiment
from runyard_runtime.job import Job, filter_pairs
from runyard_runtime.logs import LogFamily, warn
from runyard_runtime.offline import _OfflineRun
from runyard_runtime.workspace import Workspace

_READ_FLUSH = 30.0  # seconds that a read waits for what this process logged before it


class Run(LogFamily, FileFamily):
    """A run. `Run.get_context()` is the one this process belongs to."""

    def __init__(self, experiment, run_id, outputs=None, **kwargs):
        self._set(experiment.workspace._job, run_id, None, None)
        self._experiment = experiment
        self._outputs = outputs

    @classmethod
    def _of(cls, job, run_id, record=None, owned=False):
        """The run of that id; the job's own, a descendant (`owned`), or any other."""
        kind = _SubmittedRun if run_id == job.run_id else Run
        run = kind.__new__(kind)
        run._set(job, run_id, record, job.events if owned or kind is _SubmittedRun else None)
        return run

    def _set(self, job, run_id, record, event_file):
        own = run_id == job.run_id
        self._job = job
        self._api = job.api
        self._run_id = run_id
        self._record = record
        self._events = job.events if own else event_file  # None: a run that is not ours to log to
        self._event_run = None if own else run_id
        self._end = events.line_end(self._event_run)
        self._experiment = None
        self._inputs = None
        self._outputs = None
        self._is_foreign = False  # known not to descend from the job's run

    def _join_job(self):
        """Log by the job's own file from now on, if this run descends from the job's."""
        if not self._is_foreign:
            self._is_foreign = not self._job.is_ancestor_of(self._known())
            self._events = None if self._is_foreign else self._job.events

    @staticmethod
    def get_context(allow_offline=True, used_for_context_manager=False, **kwargs):
        """The run this process belongs to; outside a job a stand-in that only prints."""
        try:
            job = Job.here()
        except RunEnvironmentException:
            if not allow_offline:
                raise
            return _OfflineRun()
        return Run._of(job, job.run_id)

    @staticmethod
    def get_submitted_run(**kwargs):
        """v1's first name of `get_context`."""
        return Run.get_context()

    @staticmethod
    def get(workspace, run_id):
        """A run of the workspace."""
        return workspace.get_run(run_id)

    @staticmethod
    def list(
        experiment, type=None, tags=None, properties=None, status=None, include_children=False
    ):
        """The runs of an experiment, newest first."""
        for run in experiment.get_runs(type, tags, properties, include_children):
            if status is None or run.status == status:
                yield run

    # What it is

    @property
    def id(self):
        return self._run_id

    @property
    def experiment(self):
        if self._experiment is None:
            name = self._job.experiment
            if self._run_id != self._job.run_id:
                name = self._known()["spec"]["experiment"]
            self._experiment = Experiment(Workspace(), name)
        return self._experiment

    @property
    def parent(self):
        """The run this one is a child of, or None."""
        parent = self._known()["spec"].get("parent")
        return self._job.run(parent) if parent else None

    @property
    def number(self):
        return self._known()["number"]

    @property
    def type(self):
        return self._known()["spec"]["kind"]

    @property
    def status(self):
        """The status when the run was last looked at; `get_status()` looks."""
        return self._known()["state"]

    @property
    def tags(self):
        return self.get_tags()

    @property
    def properties(self):
        return dict(self._known()["properties"])

    @property
    def display_name(self):
        return self._known()["display_name"]

    @display_name.setter
    def display_name(self, value):
        self._patch({"display_name": str(value)})

    @property
    def name(self):
        return self.display_name

    @property
    def input_datasets(self):
        """What the run reads: a path where it is mounted or downloaded, else the dataset."""
        from runyard_runtime import run_datasets

        if self._inputs is None:  # kept, because scripts may add to it
            self._inputs = run_datasets.inputs(self)
        return self._inputs

    @property
    def output_datasets(self):
        """The folders that the run writes and a datastore keeps."""
        from runyard_runtime import run_datasets

        return run_datasets.outputs(self)

    # What is known of it

    def get_status(self):
        """The status now."""
        return self._look()["state"]

    def get_detailed_status(self):
        """The status now, and what the run waits for."""
        record = self._look()
        return {"status": record["state"], "details": record.get("waiting") or None}

    def get_tags(self):
        """The tags now."""
        return dict(self._synced()._look()["tags"])

    def get_properties(self):
        """The properties now."""
        return dict(self._look()["properties"])

    def get_details(self):
        """Status, times, error, properties, definition and logs in one dict."""
        record = self._synced()._look()
        url = self._api.url
        logs = {
            name: url + file_path_of(self._run_id, name)
            for name in self._file_names()
            if records.is_log(name)
        }
        return records.details(record, logs)

    def get_metrics(self, name=None, recursive=False, run_type=None, populate=False):
        """What was logged: once → the value, repeated → a list; recursive → by run id."""
        query = [("name", name), ("recursive", "true" if recursive else None)]
        found = self._synced()._api.get(self._path("metrics"), query)
        views = {run_id: records.metrics_view(series) for run_id, series in found.items()}
        return views if recursive else views.get(self._run_id, {})

    def get_portal_url(self):
        """The address of the run's page."""
        return "%s%s" % (self._api.url, path_of("runs", self._run_id)[len("/api/v1") :])

    def get_snapshot_id(self):
        """The id of the source tree; None if the run has none."""
        return (self._known()["spec"].get("script") or {}).get("snapshot")

    # Tags and properties

    def tag(self, key, value=None):
        """Set a tag; its value may be None."""
        self.set_tags({key: value})

    def set_tags(self, tags):
        """Set tags; a number becomes its text."""
        texts = {str(key): _text_or_none(value) for key, value in tags.items()}
        if self._events is None:
            self._patch({"set_tags": texts})
            return
        for key, value in texts.items():
            self._events.append(events.tag_line("tag", key, value, self._event_run))

    def remove_tags(self, tags):
        """Remove tags by their keys."""
        keys = [tags] if isinstance(tags, str) else [str(key) for key in tags]
        if self._events is None:
            self._patch({"remove_tags": keys})
            return
        for key in keys:
            self._events.append(events.tag_line("untag", key, None, self._event_run))

    def add_properties(self, properties):
        """Add properties; one that is there already cannot be changed."""
        there = sorted(set(self.get_properties()) & {str(key) for key in properties})
        if there:
            raise UserErrorException(
                explain(
                    "The run '%s' has the property %s already." % (self._run_id, ", ".join(there)),
                    "Properties are never changed.",
                    "Use a tag for what changes: run.tag(key, value)",
                )
            )
        self._patch({"add_properties": {str(key): str(properties[key]) for key in properties}})

    # Children

    def child_run(self, name=None, run_id=None, outputs=None):
        """A new child of this run, to log to; use it in a `with` statement, or complete it."""
        return self._new_child(name, run_id, outputs, {})

    def create_children(self, count=None, tag_key=None, tag_values=None):
        """Several new children: `count` of them, or one for each value of a tag."""
        if (count is None) == (tag_values is None) or (tag_key is None) != (tag_values is None):
            raise UserErrorException(
                explain(
                    "Children are made by count, or by tag_key and tag_values.",
                    "Neither, both or half of these were given.",
                    "run.create_children(count=3) or run.create_children(tag_key='fold', "
                    "tag_values=[1, 2, 3])",
                )
            )
        if count is not None:
            return [self._new_child(None, None, None, {}) for _ in range(count)]
        return [
            self._new_child(None, None, None, {str(tag_key): _text_or_none(value)})
            for value in tag_values
        ]

    def get_children(
        self,
        recursive=False,
        tags=None,
        properties=None,
        type=None,
        status=None,
        _rehydrate_runs=True,
    ):
        """The children of this run, newest first; recursive: theirs too."""
        self._synced()
        owned = self._events is not None
        if recursive:  # grandchildren of children that do not match count as well
            for child in self.get_children():
                if child._matches(tags, properties, type, status):
                    yield child
                for grandchild in child.get_children(True, tags, properties, type, status):
                    yield grandchild
            return
        found = self._job.find_runs(
            parent=self._run_id,
            tag=filter_pairs(tags),
            property=filter_pairs(properties),
            kind=type,
            state=status,
        )
        for record in found:
            yield self._job.run(record["id"], record, owned)

    def _matches(self, tags, properties, type, status):
        record = self._known()
        wanted = [(record["tags"], pair) for pair in filter_pairs(tags)]
        wanted += [(record["properties"], pair) for pair in filter_pairs(properties)]
        states = [status] if isinstance(status, str) else status
        return (
            all(_has(have, pair) for have, pair in wanted)
            and type in (None, record["spec"]["kind"])
            and (states is None or record["state"] in states)
        )

    def _new_child(self, name, run_id, outputs, tags):
        spec = {
            "workspace": self._job.workspace,
            "experiment": self.experiment.name,
            # Ours to choose, so that a repeated request finds what the first one made.
            "id": run_id or str(uuid.uuid4()),
            "kind": "interactive",
            "parent": self._run_id,
            "tags": tags,
        }
        if name is not None:
            spec["display_name"] = str(name)
        try:
            record = self._api.post(path_of("runs"), {"spec": spec})
        except UserErrorException as error:
            if error.code != "conflict" or not error.repeated:
                raise
            record = self._api.get(path_of("runs", spec["id"]))
        child = self._job.run(record["id"], record, owned=self._events is not None)
        child._outputs = outputs
        return child

    # Its end

    def start(self):
        """Nothing to do: a run is started when it is made."""

    def flush(self, timeout_seconds=300):
        """Wait until the platform has all that this process logged."""
        if self._events is not None and not self._events.flush(timeout_seconds):
            warn(
                "what was logged has not reached the platform after %g seconds; it is in a file "
                "and is shipped later." % timeout_seconds
            )

    def complete(self, _set_status=True):
        """Mark the run as completed."""
        self._finish("complete", "Completed", None)

    def fail(self, error_details=None, error_code=None, _set_status=True):
        """Mark the run as failed; `error_details` is a text or an exception."""
        error = {"code": str(error_code or "UserError"), "message": str(error_details or "")}
        if isinstance(error_details, BaseException):
            error["message"] = "".join(
                traceback.format_exception_only(type(error_details), error_details)
            ).strip()
        self._finish("fail", "Failed", error)

    def cancel(self):
        """Cancel the run; a job may not be allowed to, then this only warns."""
        try:
            self._record = self._api.post(self._path("cancel"))
        except AuthenticationException as error:
            warn("The run '%s' was not canceled.\n%s" % (self._run_id, error))

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, exc_traceback):
        if exc_type is None:
            self.complete()
        else:
            self.fail(exc_value if exc_value is not None else exc_type.__name__)
        return False

    def _finish(self, verb, state, body):
        if self._outputs is not None:
            name = str(self._outputs).rstrip("/").split("/")[-1]
            self.upload_folder(name, self._outputs)
        self._synced()
        try:
            self._record = self._api.post(self._path(verb), body)
        except UserErrorException as error:
            if error.code != "conflict" or not error.repeated or self.get_status() != state:
                raise

    # Models

    def register_model(
        self,
        model_name,
        model_path=None,
        tags=None,
        properties=None,
        model_framework=None,
        model_framework_version=None,
        description=None,
        datasets=None,
        sample_input_dataset=None,
        sample_output_dataset=None,
        resource_configuration=None,
        **kwargs,
    ):
        """Register a file or folder of the run as the next version of a model.

        What the job's own run has at that path in its working directory is kept first.
        """
        from runyard_runtime import model

        details = model.Details(
            tags,
            properties,
            description,
            datasets,
            model_framework,
            model_framework_version,
            sample_input_dataset,
            sample_output_dataset,
            resource_configuration,
        )
        return model.register_from_run(self, model_name, model_path, details)

    # What a job does not have

    def get_secret(self, name):
        """Not inside a job yet."""
        raise _not_here("get_secret()", "There is no key vault.", "Pass it in a variable.")

    def get_secrets(self, secrets):
        """Not inside a job yet."""
        raise _not_here("get_secrets()", "There is no key vault.", "Pass them in variables.")

    def submit_child(self, config, tags=None, **kwargs):
        """Not inside a job yet."""
        raise _not_here(
            "submit_child()",
            "A job's token does not submit scripts.",
            "Use child_run() for parts of this run, or submit from the client.",
        )

    def wait_for_completion(self, show_output=False, wait_post_processing=False, **kwargs):
        """Not inside a job: it would wait for itself."""
        raise _not_here(
            "wait_for_completion()",
            "A job that waits for a run holds the nodes that the run may need.",
            "Wait from the client.",
        )

    # Inside

    def _path(self, *segments):
        return path_of("runs", self._run_id, *segments)

    def _known(self):
        return self._record if self._record is not None else self._look()

    def _look(self):
        self._record = self._api.get(self._path())
        return self._record

    def _patch(self, change):
        self._record = self._api.patch(self._path(), change)

    def _synced(self):
        """This run, once the platform knows what this process logged."""
        self.flush(_READ_FLUSH)
        return self

    def __repr__(self):
        state = self._record["state"] if self._record else "Running"
        return "Run(Experiment: %s,\nId: %s,\nType: %s,\nStatus: %s)" % (
            self.experiment.name,
            self._run_id,
            self._record["spec"]["kind"] if self._record else "azureml.scriptrun",
            state,
        )


class _SubmittedRun(Run):
    """The run of the job itself. How it ends is for its processes' exit codes to say."""

    def complete(self, _set_status=True):
        """Wait until the platform has all that was logged; the status is not changed."""
        self.flush()

    def fail(self, error_details=None, error_code=None, _set_status=True):
        """As `complete()`: a job fails by ending with an exit code other than 0."""
        if error_details is not None:
            warn("run.fail() inside the job: %s" % (error_details,))
        self.flush()

    def cancel(self):
        """Only warns: a job does not cancel itself."""
        warn("run.cancel() does nothing inside the job; end the script, or cancel from the client.")


Job.run_type = Run


def get_run(experiment, run_id, rehydrate=True, clean_up=True):
    """A run of the experiment's workspace."""
    return experiment.workspace.get_run(run_id)


def _text_or_none(value):
    return value if value is None else str(value)


def _has(have, pair):
    key, given, value = pair.partition("=")
    return key in have and (not given or have[key] == value)


def _not_here(what, why, fix):
    return UserErrorException(explain("A run inside a job has no %s." % what, why, fix))
