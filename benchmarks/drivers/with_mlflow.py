"""MLflow's side: its own client against its own server, in a process that stays warm."""

import os
import time

import mlflow
from lines import serve
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

client = MlflowClient()


def project(folder):
    """Seconds of one `mlflow.projects.run`, until it is over."""
    begun = time.perf_counter()
    submitted = mlflow.projects.run(folder, env_manager="local", synchronous=True)
    seconds = time.perf_counter() - begun
    assert submitted.get_status() == "FINISHED", submitted.get_status()
    return seconds


def create_run():
    """The id of a new run."""
    experiment = mlflow.set_experiment("bench")
    return client.create_run(experiment.experiment_id).info.run_id


def log(count):
    """Seconds of each of `count` calls of `mlflow.log_metric`."""
    mlflow.set_experiment("bench")
    found = []
    with mlflow.start_run():
        for step in range(count):
            begun = time.perf_counter()
            mlflow.log_metric("loss", 0.5, step=step)
            found.append(time.perf_counter() - begun)
    return found


def fill(count):
    """The id of a run with `count` points of one metric."""
    run = create_run()
    now = int(time.time() * 1000)
    for first in range(0, count, 1000):
        batch = [Metric("loss", 0.5, now, step) for step in range(first, min(first + 1000, count))]
        client.log_batch(run, metrics=batch)
    return run


def history(run, expected):
    """Seconds that the history of the metric takes."""
    begun = time.perf_counter()
    points = client.get_metric_history(run, "loss")
    seconds = time.perf_counter() - begun
    assert len(points) == expected, len(points)
    return seconds


if __name__ == "__main__":
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    serve(project=project, create_run=create_run, log=log, fill=fill, history=history)
