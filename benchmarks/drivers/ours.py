"""Our side: the v1 SDK against the server of RUNYARD_HOME, in a process that stays warm."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from lines import serve

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.runconfig import MpiConfiguration


class Ours:
    """The workspace and the experiment that everything happens in."""

    def __init__(self):
        self.workspace = Workspace.from_config()
        self.experiment = Experiment(self.workspace, "bench")
        self.environment = Environment("this-python")
        self.environment.python.user_managed_dependencies = True
        self.environment.python.interpreter_path = sys.executable

    def config(self, folder, script="script.py", arguments=()):
        return ScriptRunConfig(
            source_directory=folder,
            script=script,
            arguments=list(arguments),
            environment=self.environment,
        )

    def submit_and_wait(self, folder):
        """Seconds from the submit call to a terminal status in the caller's hands."""
        begun = time.perf_counter()
        run = self.experiment.submit(self.config(folder))
        run.wait_for_completion(show_output=False)
        seconds = time.perf_counter() - begun
        assert run.get_status() == "Completed", run.get_details()
        return seconds

    def until_mpi_met(self, folder, nodes, per_node):
        """Seconds from the submit call to the first sum, whose time the script prints."""
        config = self.config(folder)
        config.run_config.communicator = "Mpi"
        config.run_config.node_count = nodes
        config.run_config.mpi = MpiConfiguration(per_node, nodes)
        begun = time.time()
        run = self.experiment.submit(config)
        run.wait_for_completion(show_output=False)
        line = self.file(run.id, "azureml-logs/70_driver_log_0.txt").split()
        assert line[:2] == ["met", str(nodes * per_node)], line
        return float(line[2]) - begun

    def submit(self, folder, script="script.py", arguments=()):
        """The id of a submitted run and the seconds that the call took."""
        begun = time.perf_counter()
        run = self.experiment.submit(self.config(folder, script, arguments))
        return {"id": run.id, "seconds": time.perf_counter() - begun}

    def submit_many(self, folder, count, threads=8):
        """The ids of `count` runs, submitted from several threads."""
        with ThreadPoolExecutor(threads) as pool:
            return [answer["id"] for answer in pool.map(self.submit, [folder] * count)]

    def wait(self, ids):
        """The final status of each run."""
        found = {}
        for one in ids:
            run = Run.get(self.workspace, one)
            run.wait_for_completion(show_output=False, raise_on_error=False)
            found[one] = run.get_status()
        return found

    def statuses(self, ids):
        """The status of each run now."""
        return {one: Run.get(self.workspace, one).get_status() for one in ids}

    def metrics(self, id):
        return Run.get(self.workspace, id).get_metrics()

    def count_points(self, id):
        """How many points the run has, of its only metric."""
        (values,) = Run.get(self.workspace, id).get_metrics().values()
        return len(values)

    def time_metrics(self, id, expected):
        """Seconds that `get_metrics` takes; `expected` points must come."""
        run = Run.get(self.workspace, id)
        begun = time.perf_counter()
        metrics = run.get_metrics()
        seconds = time.perf_counter() - begun
        (values,) = metrics.values()
        assert len(values) == expected, len(values)
        return seconds

    def file(self, id, name):
        """The text of one of the run's files."""
        target = "fetched-" + id
        Run.get(self.workspace, id).download_file(name, target)
        with open(target) as lines:
            return lines.read()

    def file_names(self, id):
        return list(Run.get(self.workspace, id).get_file_names())

    def error(self, id):
        return Run.get(self.workspace, id).get_details().get("error")

    def interactive(self):
        """The id of a run that is open for logging from outside."""
        return self.experiment.start_logging(snapshot_directory=None).id

    def complete(self, id):
        Run.get(self.workspace, id).complete()


if __name__ == "__main__":
    ours = Ours()
    serve(**{name: getattr(ours, name) for name in vars(Ours) if not name.startswith("_")})
