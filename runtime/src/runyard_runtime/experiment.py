"""An experiment as a job's script sees it: its name and its runs."""

from runyard_runtime.exceptions import UserErrorException, explain
from runyard_runtime.job import filter_pairs


class Experiment(object):
    """A named series of runs of the job's workspace."""

    def __init__(self, workspace, name, **kwargs):
        self._workspace = workspace
        self._name = name

    @property
    def name(self):
        return self._name

    @property
    def workspace(self):
        return self._workspace

    @property
    def id(self):
        job = self._workspace._job
        return job.experiment_id if self._name == job.experiment else ""

    def get_runs(self, type=None, tags=None, properties=None, include_children=False):
        """The experiment's runs, newest first."""
        job = self._workspace._job
        found = job.find_runs(
            experiment=self._name,
            kind=type,
            tag=filter_pairs(tags),
            property=filter_pairs(properties),
            top_level=None if include_children else "true",
        )
        return (job.run(record["id"], record) for record in found)

    @staticmethod
    def list(workspace, **kwargs):
        """All experiments of the workspace."""
        return list(workspace.experiments.values())

    def submit(self, config, tags=None, **kwargs):
        """Not inside a job."""
        raise _outside("submit()")

    def start_logging(self, *args, **kwargs):
        """Not inside a job."""
        raise _outside("start_logging()")

    def __repr__(self):
        return "Experiment(Name: %s,\nWorkspace: %s)" % (self._name, self._workspace.name)


def _outside(name):
    return UserErrorException(
        explain(
            "Experiment.%s does not work inside a job." % name,
            "A job's token writes to its own run and to that run's children.",
            "Use run.child_run() for parts of this run, or submit from the client.",
        )
    )
