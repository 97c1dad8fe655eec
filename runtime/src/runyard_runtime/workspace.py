"""The workspace a job belongs to, as its scripts see it."""

from runyard_runtime.api import path_of
from runyard_runtime.exceptions import UserErrorException, explain
from runyard_runtime.experiment import Experiment
from runyard_runtime.job import Job


class Workspace(object):
    """The job's workspace. Inside a job there is no other."""

    def __init__(self, subscription_id=None, resource_group=None, workspace_name=None, **kwargs):
        self._job = Job.here()
        self._record = None
        if workspace_name not in (None, self._job.workspace):
            raise UserErrorException(
                explain(
                    "A job cannot open the workspace '%s'." % workspace_name,
                    "Its token is for its own workspace, '%s'." % self._job.workspace,
                    "Use Run.get_context().experiment.workspace, or do this from the client.",
                )
            )

    @classmethod
    def from_config(cls, path=None, auth=None, _logger=None, _file_name=None):
        """The job's workspace; no config.json is looked for."""
        return cls()

    @classmethod
    def get(cls, name=None, auth=None, subscription_id=None, resource_group=None, **kwargs):
        """The job's workspace."""
        return cls(subscription_id, resource_group, name)

    @property
    def name(self):
        return self._job.workspace

    @property
    def subscription_id(self):
        return self._job.subscription_id

    @property
    def resource_group(self):
        return self._job.resource_group

    @property
    def location(self):
        return self._known()["location"]

    @property
    def tags(self):
        return dict(self._known().get("tags") or {})

    @property
    def experiments(self):
        """The workspace's experiments by name."""
        found = self._job.api.get(path_of("workspaces", self.name, "experiments"))
        return {one["name"]: Experiment(self, one["name"]) for one in found}

    def get_details(self):
        """What is known of the workspace."""
        record = self._known()
        return {
            "id": "/subscriptions/%s/resourceGroups/%s/workspaces/%s"
            % (self.subscription_id, self.resource_group, self.name),
            "name": self.name,
            "location": record["location"],
            "friendlyName": record.get("friendly_name") or self.name,
            "description": record.get("description", ""),
            "creationTime": record["created"],
            "workspaceid": record["id"],
            "tags": dict(record.get("tags") or {}),
        }

    @property
    def datastores(self):
        """The workspace's datastores by name."""
        from runyard_runtime import datastores

        return datastores.list_datastores(self)

    @property
    def datasets(self):
        """The newest version of every registered dataset, by name."""
        from runyard_runtime import datasets

        return datasets.Dataset.get_all(self)

    @property
    def models(self):
        """The newest version of every model, by name."""
        from runyard_runtime import model

        return {one.name: one for one in model.Model.list(self, latest=True)}

    def get_default_datastore(self):
        """The datastore that is meant when none is named."""
        from runyard_runtime import datastores

        return datastores.Datastore(self)

    def get_run(self, run_id):
        """A run of the workspace."""
        record = self._job.api.get(path_of("runs", run_id))
        return self._job.run(record["id"], record)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            explain(
                "A workspace inside a job has no '%s'." % name,
                "A job sees the workspace's name, experiments, runs, data and models.",
                "Do this from the client, and pass what the script needs as arguments.",
            )
        )

    def __repr__(self):
        return "Workspace(name='%s', subscription_id='%s', resource_group='%s')" % (
            self.name,
            self.subscription_id,
            self.resource_group,
        )

    def _known(self):
        if self._record is None:
            self._record = self._job.api.get(path_of("workspaces", self.name))
        return self._record
