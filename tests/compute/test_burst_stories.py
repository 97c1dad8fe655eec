"""Forty runs of one to four nodes at once on a cluster of four, with real processes."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.runconfig import PyTorchConfiguration
from runyard.domain.runs import RunRecord
from runyard.domain.states import RunState

pytestmark = pytest.mark.filterwarnings("ignore:.*share this machine")

RUNS, NODES = 40, 4


class Watcher(threading.Thread):
    """Asks the server again and again which nodes there are and who works on them."""

    def __init__(self, ask: Callable[[], list[dict[str, Any]]]) -> None:
        super().__init__(daemon=True)
        self.most_there = self.most_busy = self.looks = 0
        self.done = threading.Event()
        self._ask = ask

    def run(self) -> None:
        while not self.done.wait(0.02):
            nodes = self._ask()
            self.looks += 1
            self.most_there = max(self.most_there, len(nodes))
            busy = sum(node["nodeState"] == "running" for node in nodes)
            self.most_busy = max(self.most_busy, busy)


def entered(run: RunRecord, state: RunState) -> float:
    return next(step.at for step in run.history if step.state is state).timestamp()


def busiest(records: list[RunRecord], nodes: list[int]) -> int:
    """The most nodes that runs had at any moment, by their own histories."""
    moments = []
    for record, count in zip(records, nodes, strict=True):
        assert record.ended is not None
        moments.append((entered(record, RunState.STARTING), 1, count))
        moments.append((record.ended.timestamp(), 0, -count))  # ends come before starts
    most = now = 0
    for _, _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def test_a_burst_of_gangs_keeps_its_order_and_its_nodes(ws: Workspace) -> None:
    Path("nothing.txt").write_text("the folder of the runs")
    target = ComputeTarget.create(
        ws,
        "burst",
        AmlCompute.provisioning_configuration(
            "STANDARD_D2_V2", max_nodes=NODES, idle_seconds_before_scaledown=1
        ),
    )
    watcher = Watcher(target.list_nodes)
    watcher.start()
    counts = [number * 7 % NODES + 1 for number in range(RUNS)]
    assert set(counts) == {1, 2, 3, 4}
    experiment = Experiment(ws, "burst")
    runs = [
        experiment.submit(
            ScriptRunConfig(
                ".",
                command="true",
                compute_target=target,
                distributed_job_config=PyTorchConfiguration("Gloo", node_count=count),
            )
        )
        for count in counts
    ]
    for run in runs:
        run.wait_for_completion()
    watcher.done.set()
    watcher.join()
    assert (watcher.most_there, watcher.most_busy) == (NODES, NODES)
    assert watcher.looks > RUNS / 2
    records = [run._record for run in runs]
    assert {record.state for record in records} == {RunState.COMPLETED}
    assert [len(record.nodes) for record in records] == counts
    assert busiest(records, counts) == NODES
    starts = [entered(record, RunState.STARTING) for record in records]
    assert starts == sorted(starts), "nobody overtakes"
    deadline = time.monotonic() + 20
    while target.list_nodes():
        assert time.monotonic() < deadline, "idle nodes go"
        time.sleep(0.1)
