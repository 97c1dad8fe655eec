"""Estimators end to end: a real server, v1's page of 2019, and scripts that really run."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runyard.sdk import embedded
from runyard.sdk.dataset import Dataset
from runyard.sdk.estimators import Estimator
from runyard.sdk.estimators_distribution import Mpi
from runyard.sdk.estimators_frameworks import SKLearn
from runyard.sdk.exceptions import UserErrorException
from runyard.sdk.experiment import Experiment
from runyard.sdk.session import open_session
from runyard.sdk.workspace import Workspace
from runyard.settings import load_settings

pytestmark = pytest.mark.story


@pytest.fixture(scope="module")
def offline_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a server that finds no packages: environments fail in words, at once."""
    home = tmp_path_factory.mktemp("offline-home")
    (home / "pip.conf").write_text("[global]\nno-index = true\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", str(home / "pip.conf"))
        patch.setenv("UV_CACHE_DIR", str(home / "cache"))
        patch.setenv("UV_PYTHON_DOWNLOADS", "never")
        settings = load_settings({"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"})
        open_session(settings).client.close()  # it is started here, with these variables
        yield home
    open_session(settings).client.close()
    embedded.stop(settings)


def lead_to(home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RUNYARD_HOME", str(home))
    monkeypatch.setenv("RUNYARD_SAMPLE_SECONDS", "0")
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return folder


# The page's own lines, block by block. Left out: the download of MNIST, whose address is dead, and
# what follows a run that has trained.
BLOCKS = (
    """
    import os
    import urllib
    import shutil
    import azureml

    from azureml.core import Experiment
    from azureml.core import Workspace, Run

    from azureml.core.compute import ComputeTarget, AmlCompute
    from azureml.core.compute_target import ComputeTargetException
    """,
    """
    ws = Workspace.from_config()
    """,
    """
    script_folder = './tf-mnist'
    os.makedirs(script_folder, exist_ok=True)

    exp = Experiment(workspace=ws, name='tf-mnist')
    """,
    """
    ds = ws.get_default_datastore()
    ds.upload(src_dir='./data/mnist', target_path='mnist', overwrite=True, show_progress=True)
    """,
    """
    shutil.copy('./tf_mnist.py', script_folder)
    shutil.copy('./utils.py', script_folder)
    """,
    """
    cluster_name = "gpucluster"

    try:
        compute_target = ComputeTarget(workspace=ws, name=cluster_name)
        print('Found existing compute target')
    except ComputeTargetException:
        print('Creating a new compute target...')
        compute_config = AmlCompute.provisioning_configuration(vm_size='STANDARD_NC6',
                                                               max_nodes=4)

        compute_target = ComputeTarget.create(ws, cluster_name, compute_config)

        compute_target.wait_for_completion(
            show_output=True, min_node_count=None, timeout_in_minutes=20)
    """,
    """
    script_params = {
        '--data-folder': ws.get_default_datastore().as_mount(),
        '--batch-size': 50,
        '--first-layer-neurons': 300,
        '--second-layer-neurons': 100,
        '--learning-rate': 0.01
    }

    est = TensorFlow(source_directory=script_folder,
                     entry_script='tf_mnist.py',
                     script_params=script_params,
                     compute_target=compute_target,
                     use_gpu=True)
    """,
    """
    run = exp.submit(est)
    """,
)

HOROVOD = """
    from azureml.train.dnn import TensorFlow

    # Tensorflow constructor
    estimator= TensorFlow(source_directory=project_folder,
                          compute_target=compute_target,
                          script_params=script_params,
                          entry_script='script.py',
                          node_count=2,
                          process_count_per_node=1,
                          distributed_training=MpiConfiguration(),
                          framework_version='1.13',
                          use_gpu=True)
"""

PARAMETER_SERVER = """
    from azureml.train.dnn import TensorFlow

    distributed_training = TensorflowConfiguration()
    distributed_training.worker_count = 2

    # Tensorflow constructor
    estimator= TensorFlow(source_directory=project_folder,
                          compute_target=compute_target,
                          script_params=script_params,
                          entry_script='script.py',
                          node_count=2,
                          process_count_per_node=1,
                          distributed_training=distributed_training,
                          use_gpu=True)
"""

# The page's names that it never defines.
MISSING = """
    from azureml.core.runconfig import MpiConfiguration, TensorflowConfiguration
    from azureml.train.dnn import TensorFlow
    project_folder = './tf-mnist'
"""


# Its cluster is larger than this machine, and creating it says so.
@pytest.mark.filterwarnings("ignore:.*share this machine:UserWarning")
def test_the_page_of_2019_is_submitted_as_it_is_written(
    offline_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lead_to(offline_home, tmp_path / "page", monkeypatch)
    Workspace.create("page", exist_ok=True).write_config()
    (folder / "data" / "mnist").mkdir(parents=True)
    (folder / "data" / "mnist" / "train-images.gz").write_bytes(b"images")
    for name in ("tf_mnist.py", "utils.py"):
        (folder / name).write_text("")
    (folder / "tf-mnist").mkdir()
    (folder / "tf-mnist" / "script.py").write_text("")
    page: dict[str, Any] = {}
    for block in (MISSING, *BLOCKS):
        exec(textwrap.dedent(block), page)

    run = page["run"]
    definition = run.get_details()["runDefinition"]
    assert (definition["script"], definition["target"]) == ("tf_mnist.py", "gpucluster")
    assert definition["arguments"][:4] == [
        "--data-folder",
        "$AZUREML_DATAREFERENCE_workspaceblobstore",
        "--batch-size",
        "50",
    ]
    assert definition["dataReferences"]["workspaceblobstore"]["mode"] == "Mount"
    packages = definition["environment"]["python"]["condaDependencies"]["dependencies"]
    assert packages[0] == "python=3.6.2"
    assert "tensorflow-gpu==1.13.1" in packages[-1]["pip"]
    run.wait_for_completion(raise_on_error=False)
    error = run.get_details()["error"]["error"]["message"]
    assert "Environment 'tensorflow-1.13-gpu' could not be built" in error

    for block, communicator in ((HOROVOD, "IntelMpi"), (PARAMETER_SERVER, "ParameterServer")):
        exec(textwrap.dedent(block), page)
        submitted = page["exp"].submit(page["estimator"], tags={"kind": communicator})
        definition = submitted.get_details()["runDefinition"]
        assert (definition["communicator"], definition["nodeCount"]) == (communicator, 2)
        assert submitted.get_tags() == {"kind": communicator}
        packages = definition["environment"]["python"]["condaDependencies"]["dependencies"]
        assert ("horovod==0.16.1" in packages[-1]["pip"]) is (communicator == "IntelMpi")
        submitted.wait_for_completion(raise_on_error=False)
        assert submitted.status == "Failed"
    assert definition["tensorflow"] == {"workerCount": 2, "parameterServerCount": 1}


TRAIN = """
    import argparse, os
    from azureml.core import Run

    parser = argparse.ArgumentParser()
    parser.add_argument("--data-folder")
    parser.add_argument("--regularization", type=float)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    run = Run.get_context()
    run.log("lambda", given.regularization)
    run.log("verbose", given.verbose)
    with open(os.path.join(given.data_folder, "digits", "seven.txt")) as file:
        run.log("digit", int(file.read()))
    run.log("named", os.listdir(run.input_datasets["digits"])[0])
    run.log("level", os.environ["LEVEL"])
"""


def test_an_estimators_script_gets_its_words_data_and_variables(
    ws: Workspace, project: Path
) -> None:
    (project / "src").mkdir()
    (project / "src" / "train.py").write_text(textwrap.dedent(TRAIN))
    (project / "digits").mkdir()
    (project / "digits" / "seven.txt").write_text("7")
    store = ws.get_default_datastore()
    store.upload("digits", "digits", show_progress=False)
    dataset = Dataset.File.from_files((store, "digits/**"))
    estimator = SKLearn(
        source_directory="src",
        entry_script="train.py",
        script_params={
            "--data-folder": store.as_mount(),
            "--regularization": 0.8,
            "--verbose": "",
        },
        compute_target="local",
        inputs=[dataset.as_named_input("digits").as_download()],
        environment_variables={"LEVEL": 3},
        user_managed=True,
        max_run_duration_seconds=600,
    )
    run = Experiment(ws, "sklearn").submit(estimator, tags={"by": "estimator"})
    run.wait_for_completion()
    assert run.get_metrics() == {
        "lambda": 0.8,
        "verbose": True,
        "digit": 7,
        "named": "seven.txt",
        "level": "3",
    }
    assert run.get_tags() == {"by": "estimator"}
    definition: Any = run.get_details()["runDefinition"]
    assert definition["maxRunDurationSeconds"] == 600


def test_mpi_starts_the_processes_of_an_estimator(ws: Workspace, project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "rank.py").write_text(
        "import os\n"
        "from azureml.core import Run\n"
        "Run.get_context().log('ranks', os.environ['OMPI_COMM_WORLD_RANK'])\n"
    )
    estimator = Estimator(
        "src",
        entry_script="rank.py",
        process_count_per_node=2,
        distributed_training=Mpi(),
        user_managed=True,
    )
    run = Experiment(ws, "mpi").submit(estimator)
    run.wait_for_completion()
    ranks: Any = run.get_metrics()["ranks"]
    assert sorted(ranks) == ["0", "1"]


def test_an_estimator_without_a_script_is_refused_at_submit(ws: Workspace, project: Path) -> None:
    with pytest.raises(UserErrorException, match="has no script"):
        Experiment(ws, "none").submit(Estimator("."))
    with pytest.raises(UserErrorException, match=r"takes: ScriptRunConfig, Estimator\."):
        Experiment(ws, "none").submit(object())
