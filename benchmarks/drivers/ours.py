"""Our side: the v1 SDK against the server of RUNYARD_HOME, in a process that stays warm."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lines import serve

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.runconfig import MpiConfiguration, PyTorchConfiguration


class Ours:
    """The workspace and the experiment that everything happens in."""

    def __init__(self):
        self.workspace = Workspace.from_config()
        self.experiment = Experiment(self.workspace, "bench")
        self.environment = Environment("this-python")
        self.environment.python.user_managed_dependencies = True
        self.environment.python.interpreter_path = sys.executable

    def config(self, folder, script="script.py", arguments=(), **settings):
        return ScriptRunConfig(
            source_directory=folder,
            script=script,
            arguments=list(arguments),
            **{"environment": self.environment, **settings},
        )

    def submit_and_wait(self, folder, target=None):
        """Seconds from the submit call to a terminal status in the caller's hands."""
        settings = {"compute_target": target} if target else {}
        begun = time.perf_counter()
        run = self.experiment.submit(self.config(folder, **settings))
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

    def until_torch_met(self, folder, nodes, per_node, python):
        """The same with PyTorch, in the environment of that interpreter."""
        config = self.torch_config(folder, nodes, per_node, python)
        begun = time.time()
        run = self.experiment.submit(config)
        run.wait_for_completion(show_output=False)
        line = self.file(run.id, "azureml-logs/70_driver_log_0.txt").split()
        assert line[:2] == ["met", str(nodes * per_node)], line
        return float(line[2]) - begun

    def torch_config(self, folder, nodes, per_node, python, **told):
        environment = Environment("with-torch")
        environment.python.user_managed_dependencies = True
        environment.python.interpreter_path = python
        gang = PyTorchConfiguration("Gloo", process_count=nodes * per_node, node_count=nodes)
        return self.config(folder, environment=environment, distributed_job_config=gang, **told)

    def kill_a_rank(self, folder, script, python, pids, grace=""):
        """Seconds from the death of rank 1 of two, on two nodes, until rank 0 is gone, and until
        the caller sees that the run has failed. Ranks write their process number below `pids`."""
        os.mkdir(pids)
        config = self.torch_config(
            folder, 2, 1, python, script=script, arguments=[pids, *([grace] if grace else [])]
        )
        run = self.experiment.submit(config)
        paths = [Path(pids, name) for name in ("0", "1")]
        while not all(path.exists() for path in paths):
            time.sleep(0.005)
        other, killed = [int(path.read_text()) for path in paths]
        begun = time.perf_counter()
        os.kill(killed, signal.SIGKILL)
        while os.path.exists(f"/proc/{other}"):
            time.sleep(0.005)
        gone = time.perf_counter() - begun
        run.wait_for_completion(show_output=False, raise_on_error=False)
        failed = time.perf_counter() - begun
        error = run.get_details()["error"]["error"]
        assert (run.get_status(), error["rank"], error["exitCode"]) == ("Failed", 1, -9), error
        return {"gone": gone, "failed": failed}

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
