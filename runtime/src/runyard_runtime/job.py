"""What this process knows of the job it belongs to: its environment variables, read once asked."""

import os

from runyard_runtime import wire
from runyard_runtime.api import Api, path_of
from runyard_runtime.events import event_file
from runyard_runtime.exceptions import RunEnvironmentException, explain


class Job(object):
    """The job of this process."""

    run_type = None  # the class of its runs; `run.py` gives it, because a run knows its job

    def __init__(self, environ):
        self.run_id = environ[wire.RUN_ID]
        self.folder = environ[wire.JOB_DIR]
        self.workspace = environ.get(wire.WORKSPACE, "")
        self.experiment = environ.get(wire.EXPERIMENT, "")
        self.experiment_id = environ.get(wire.EXPERIMENT_ID, "")
        self.subscription_id = environ.get(wire.SUBSCRIPTION, "")
        self.resource_group = environ.get(wire.RESOURCE_GROUP, "")
        self.events = event_file(
            os.path.join(environ[wire.JOB_DIR], wire.events_file(environ.get(wire.RANK) or "0"))
        )
        self.api = Api(
            environ.get(wire.SERVICE_ENDPOINT),
            environ.get(wire.RUN_TOKEN, ""),
            environ.get(wire.ADDRESS_FILE),
        )

    @classmethod
    def here(cls, environ=None):
        """The job of this process, or `RunEnvironmentException`."""
        environ = os.environ if environ is None else environ
        absent = [name for name in (wire.RUN_ID, wire.JOB_DIR) if not environ.get(name)]
        if absent:
            raise RunEnvironmentException(
                explain(
                    "This process does not belong to a job.",
                    "%s is not set." % " and ".join(absent),
                    "Submit the script with Experiment.submit(ScriptRunConfig(...)), or call "
                    "Run.get_context() without allow_offline=False to try it here.",
                )
            )
        return cls(environ)

    def run(self, run_id, record=None, owned=False):
        """A run of the workspace. `owned`: a descendant of the job, which the job may log to."""
        return self.run_type._of(self, run_id, record, owned)

    def is_ancestor_of(self, record):
        """True if the run of that record is a child of the job's run, or a child's child …"""
        parent = record["spec"].get("parent")
        while parent and parent != self.run_id:
            parent = self.api.get(path_of("runs", parent))["spec"].get("parent")
        return bool(parent)

    def find_runs(self, **filters):
        """The runs that match, newest first, page by page."""
        query = [("workspace", self.workspace), ("limit", "100")]
        for name, value in filters.items():
            many = value if isinstance(value, (list, tuple)) else [value]
            query.extend((name, item) for item in many)
        after = None
        while True:
            page = self.api.get("/api/v1/runs", query + [("after", after)])
            for record in page["runs"]:
                yield record
            after = page.get("next")
            if after is None:
                return


def filter_pairs(wanted):
    """v1's filter by tags or properties, a key or a dict, as the server takes it."""
    if wanted is None:
        return []
    if isinstance(wanted, str):
        return [wanted]
    return [key if value is None else "%s=%s" % (key, value) for key, value in wanted.items()]
