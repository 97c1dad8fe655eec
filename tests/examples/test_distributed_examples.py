"""Distributed training with real frameworks: the examples, on the two nodes of a real cluster.

Their environments are kept beside uv's cache, for all tests and sessions: the first time takes
minutes, others nothing. Horovod is compiled only if RUNYARD_TEST_ALL_SPECS is set; once it was,
its example always runs.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.runconfig import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from azureml.train.dnn import Gloo, PyTorch
from runyard.environments.interpreters import Probe, choose_interpreter
from runyard.environments.uv_tool import find_uv
from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.settings import load_settings

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"
GUIDE = Path(__file__).parents[2] / "docs" / "distributed.md"

pytestmark = [
    pytest.mark.story,
    pytest.mark.heavy,
    # The machine of the tests is smaller than what they ask for.
    pytest.mark.filterwarnings("ignore:.*share this machine"),
]


needs_python_37 = pytest.mark.skipif(
    choose_interpreter("3.7", os.environ, Probe())[0] is None, reason="no Python 3.7 here"
)


def kept_environments() -> Path:
    """Where environments outlive the tests. Not in uv's cache: uv installs nothing in there."""
    found = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=True)
    folder = Path(found.stdout.strip()).with_name("runyard-tests") / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    (home / "environments").symlink_to(kept_environments())
    settings = load_settings({"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"})
    yield home
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def ws(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a cluster of two nodes, seen from a user's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_HOME", str(home))
    monkeypatch.setenv("RUNYARD_SAMPLE_SECONDS", "0")
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    ws = Workspace.create("examples", exist_ok=True)
    ws.write_config(path=str(tmp_path))
    if "cpu-2" not in ws.compute_targets:
        size = AmlCompute.provisioning_configuration("STANDARD_D2_V2", max_nodes=2)
        ComputeTarget.create(ws, "cpu-2", size)
    return ws


def environment(kind: str) -> Environment:
    return Environment.from_conda_specification(kind, EXAMPLES / kind / "conda_dependencies.yml")


def example(ws: Workspace, kind: str, per_node: int) -> tuple[Run, str]:
    """The example, as a user runs it: its run, and what was printed."""
    words = (str(EXAMPLES / "submit.py"), kind, "--processes-per-node", str(per_node))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if "SIGABRT" in done.stdout + done.stderr:  # PyTorch's threads may outlive Python's end
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(iter(Experiment(ws, kind).get_runs())), done.stdout


def log_of(run: Run, rank: int | str) -> str:
    """What a rank printed."""
    file = Path(f"{run.id}_{rank}.txt")
    run.download_file(f"azureml-logs/70_driver_log_{rank}.txt", str(file))
    return file.read_text()


def logged_ranks(run: Run) -> list[str]:
    names = run.get_file_names()
    found = [re.fullmatch(r"azureml-logs/70_driver_log_(.+)\.txt", name) for name in names]
    return sorted(match[1] for match in found if match)


def falls(run: Run) -> bool:
    losses: Any = run.get_metrics()["loss"]
    return len(losses) >= 5 and losses[-1] < losses[0] / 1.5


def weights_of(run: Run, ranks: list[str]) -> set[str]:
    """The digests of the weights that the ranks ended with."""
    return {re.findall(r"^weights (\w{16})$", log_of(run, rank), re.MULTILINE)[0] for rank in ranks}


def check_equal_ranks(run: Run, printed: str, per_node: int, word: str = "rank") -> None:
    """Of processes that are all alike: each is there, and all have learned the same."""
    prefix = "worker_" if word == "worker" else ""
    ranks = [f"{prefix}{number}" for number in range(2 * per_node)]
    assert logged_ranks(run) == ranks
    for number, rank in enumerate(ranks):
        assert f"{word} {number} of {2 * per_node}" in log_of(run, rank)
    assert falls(run)
    assert len(weights_of(run, ranks)) == 1
    assert f"Streaming azureml-logs/70_driver_log_{ranks[0]}.txt" in printed
    assert not any(f"Streaming azureml-logs/70_driver_log_{rank}" in printed for rank in ranks[1:])


def test_pytorch_averages_gradients_over_gloo(ws: Workspace) -> None:
    run, printed = example(ws, "pytorch-ddp", 2)
    check_equal_ranks(run, printed, 2)
    assert "outputs/model.pt" in run.get_file_names()


def test_ranks_average_gradients_by_mpi(ws: Workspace) -> None:
    run, printed = example(ws, "mpi", 2)
    check_equal_ranks(run, printed, 2)
    assert "outputs/weights.npy" in run.get_file_names()


def test_tensorflows_workers_mirror_each_other(ws: Workspace) -> None:
    run, printed = example(ws, "tensorflow-multiworker", 2)
    check_equal_ranks(run, printed, 2, "worker")
    assert "outputs/model/saved_model.pb" in run.get_file_names()


@needs_python_37
def test_workers_of_tensorflow_1_train_on_a_server_that_never_ends(ws: Workspace) -> None:
    run, printed = example(ws, "tensorflow-1-parameter-server", 2)
    check_servers(run, printed, 2)


def check_servers(run: Run, printed: str, per_node: int) -> None:
    """Of workers that share a server: all have done their work, and it was ended with them."""
    workers = [f"worker_{number}" for number in range(2 * per_node)]
    assert logged_ranks(run) == ["ps_0", *workers]
    losses: Any = run.get_metrics()["loss"]
    # The one that logs may come late, when the others have learned most of it already.
    assert losses[-1] < losses[0]
    ends = [log_of(run, worker).splitlines()[-1] for worker in workers]
    assert all(end.startswith("trained 200 steps; with those of others ") for end in ends)
    assert max(int(end.split()[-1]) for end in ends) > 200, "they work on the same weights"
    assert any(re.match(r"outputs/model/weights-\d+\.index", n) for n in run.get_file_names())
    assert log_of(run, "ps_0").endswith("ps 0 of 1\n")
    assert "Streaming azureml-logs/70_driver_log_worker_0.txt" in printed
    assert run.get_status() == "Completed"


def test_worker_0_of_tensorflow_2_hands_out_work_to_the_others(ws: Workspace) -> None:
    run, _ = example(ws, "tensorflow-parameter-server", 2)
    assert logged_ranks(run) == ["ps_0", *(f"worker_{number}" for number in range(4))]
    assert falls(run)
    assert log_of(run, "worker_0").splitlines()[0] == "chief 0"
    assert log_of(run, "worker_1").splitlines()[-1] == "worker 0"
    assert "trained by 3 workers" in log_of(run, "worker_0")
    assert "outputs/weights.npy" in run.get_file_names()


@pytest.mark.parametrize("per_node", [1, 2])
def test_horovod_averages_gradients_of_keras(ws: Workspace, per_node: int) -> None:
    compiled = list(kept_environments().glob("wheels/*/horovod-0.28.1-cp311-*.whl"))
    if not compiled and not os.environ.get("RUNYARD_TEST_ALL_SPECS"):
        pytest.skip("Horovod was not compiled here yet, and RUNYARD_TEST_ALL_SPECS is not set")
    run, printed = example(ws, "horovod", per_node)
    check_equal_ranks(run, printed, per_node)
    for rank in range(2 * per_node):
        assert f"local {rank % per_node}" in log_of(run, rank)
    assert "outputs/model/saved_model.pb" in run.get_file_names()


def guide_blocks() -> dict[str, str]:
    """{kind: what its section of the guide submits}, with what all of them begin with."""
    fenced = r"^<!-- tested: (.+?) -->\n```python\n(.*?)^```$"
    found = re.findall(fenced, GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    blocks = dict(found)
    beginning = blocks.pop("the beginning")
    return {kind: beginning + block for kind, block in blocks.items()}


@pytest.mark.parametrize(
    "kind",
    [
        "pytorch-ddp",
        "mpi",
        "tensorflow-multiworker",
        pytest.param("tensorflow-1-parameter-server", marks=needs_python_37),
    ],
)
def test_the_guides_own_lines_train_on_two_nodes_with_a_process_each(
    ws: Workspace, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLES / kind, tmp_path / "src")
    shutil.copy(EXAMPLES / kind / "conda_dependencies.yml", tmp_path)
    page: dict[str, Any] = {}
    exec(guide_blocks()[kind], page)
    run = page["run"]
    run.wait_for_completion(show_output=True)
    printed = capsys.readouterr().out
    if kind == "tensorflow-1-parameter-server":
        check_servers(run, printed, 1)
    else:
        check_equal_ranks(run, printed, 1, "worker" if "tensorflow" in kind else "rank")


def test_an_estimator_trains_with_gloo_too(ws: Workspace) -> None:
    estimator = PyTorch(
        source_directory=str(EXAMPLES / "pytorch-ddp"),
        entry_script="train.py",
        script_params={
            "--dist-backend": "gloo",
            "--dist-url": "$AZ_BATCHAI_PYTORCH_INIT_METHOD",
            "--rank": "$AZ_BATCHAI_TASK_INDEX",
            "--world-size": 2,
        },
        compute_target="cpu-2",
        node_count=2,
        distributed_training=Gloo(),
        environment_definition=environment("pytorch-ddp"),
    )
    estimator.run_config.max_restarts = 1  # PyTorch's threads may outlive Python's end: SIGABRT
    run = Experiment(ws, "estimator").submit(estimator)
    run.wait_for_completion()
    assert logged_ranks(run) == ["0", "1"]
    assert falls(run)
    assert len(weights_of(run, ["0", "1"])) == 1


SEEN = """\
import json, os, sys, time
told = {name: value for name, value in os.environ.items()
        if name.startswith(("AZ_BATCH", "OMPI_COMM", "MASTER_", "TF_CONFIG"))
        or name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")}
print(json.dumps([sys.argv[1:], told]), flush=True)
# The run is over when its workers are, so they wait until the parameter server was heard.
kind = os.environ.get("AZ_BATCHAI_TASK_TYPE")
if kind == "ps":
    open("outputs/heard", "w").close()
while kind == "worker" and not os.path.exists("outputs/heard"):
    time.sleep(0.02)
"""


def seen(ws: Workspace, tmp_path: Path, config: Any, argument: str) -> dict[str, Any]:
    """{rank: (its arguments, its variables)} of a script on two nodes, by the ends of its logs."""
    (tmp_path / "seen.py").write_text(SEEN)
    mine = Environment("mine")
    mine.python.user_managed_dependencies = True
    mine.python.interpreter_path = sys.executable
    src = ScriptRunConfig(
        str(tmp_path),
        "seen.py",
        [argument],
        compute_target="cpu-2",
        environment=mine,
        distributed_job_config=config,
    )
    run = Experiment(ws, "seen").submit(src)
    run.wait_for_completion()
    return {rank: json.loads(log_of(run, rank)) for rank in logged_ranks(run)}


def test_a_script_sees_v1s_variables_and_its_own_number_in_its_arguments(
    ws: Workspace, tmp_path: Path
) -> None:
    torch = seen(ws, tmp_path, PyTorchConfiguration("Gloo", 4, 2), "$AZ_BATCHAI_TASK_INDEX")
    assert [torch[rank][0] for rank in "0123"] == [["0"], ["1"], ["2"], ["3"]]
    last = torch["3"][1]
    places = [last[name] for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")]
    assert places == ["3", "1", "1", "4"]
    assert last["AZ_BATCHAI_PYTORCH_INIT_METHOD"].startswith("file:///")

    tasks = TensorflowConfiguration(worker_count=2, parameter_server_count=1)
    tensorflow = seen(ws, tmp_path, tasks, "${AZ_BATCHAI_TASK_TYPE}-$AZ_BATCHAI_TASK_INDEX")
    assert {rank: told[0] for rank, told in tensorflow.items()} == {
        "worker_0": ["worker-0"],
        "worker_1": ["worker-1"],
        "ps_0": ["ps-0"],
    }
    config = json.loads(tensorflow["worker_1"][1]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["environment"] == "cloud"
    assert {kind: len(hosts) for kind, hosts in config["cluster"].items()} == {"worker": 2, "ps": 1}

    mpi = seen(ws, tmp_path, MpiConfiguration(2, 2), "$OMPI_COMM_WORLD_RANK")
    assert [mpi[rank][0] for rank in "0123"] == [["0"], ["1"], ["2"], ["3"]]
    assert mpi["3"][1]["OMPI_COMM_WORLD_LOCAL_RANK"] == "1"
    assert mpi["3"][1]["AZ_BATCH_MASTER_NODE"] == mpi["0"][1]["AZ_BATCH_MASTER_NODE"]
