"""The environments of v1's own pages, as written there: built, and trained in, through the v1 API.

One of them always; all of them if RUNYARD_TEST_ALL_SPECS is set: 10 GB, and Horovod is compiled.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.environments.interpreters import Probe, choose_interpreter
from runyard.sdk import embedded
from runyard.sdk.environment import Environment
from runyard.sdk.estimators_frameworks import TensorFlow
from runyard.sdk.experiment import Experiment
from runyard.sdk.script_run_config import ScriptRunConfig
from runyard.sdk.session import open_session
from runyard.sdk.workspace import Workspace
from runyard.settings import load_settings

CONDA = """\
channels:
- conda-forge
dependencies:
- python=3.6.2
- pip:
  - azureml-defaults
"""
TENSORFLOW = ("tensorflow-gpu==2.2.0",)
TORCH = ("torch==1.6.0", "torchvision==0.7.0", "future==0.17.1", "pillow")
HOROVOD = ("horovod==0.19.5",)

TRAIN_TENSORFLOW = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import sys
import numpy as np
import tensorflow as tf
from azureml.core import Run

tf.random.set_seed(0)
optimizer = tf.keras.optimizers.SGD(0.01)
if "horovod" in sys.argv:
    import horovod.tensorflow.keras as hvd
    hvd.init()
    assert hvd.size() == 1
    optimizer = hvd.DistributedOptimizer(optimizer)
y = np.arange(256) % 10
x = np.zeros((256, 28, 28), "float32")
x[np.arange(256), y] = 1  # each digit has its own bright row
model = tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=(28, 28)),
                             tf.keras.layers.Dense(10, activation="softmax")])
model.compile(optimizer, "sparse_categorical_crossentropy")
losses = model.fit(x, y, epochs=3, verbose=2).history["loss"]
assert losses[-1] < losses[0], losses
model.save("outputs/model")
Run.get_context().log("loss", losses[-1])
"""

TRAIN_TORCH = """
import sys
import torch
import torchvision
from azureml.core import Run

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "horovod" in sys.argv:
    import horovod.torch as hvd
    hvd.init()
    assert hvd.size() == 1
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
y = torch.arange(256) % 10
x = torch.zeros(256, 28, 28)
x[torch.arange(256), y] = 1  # each digit has its own bright row
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
torch.save(model, "outputs/model.pt")
Run.get_context().log("loss", losses[-1])
"""

pytestmark = [pytest.mark.heavy, pytest.mark.story]

everything = pytest.mark.skipif(
    not os.environ.get("RUNYARD_TEST_ALL_SPECS"), reason="RUNYARD_TEST_ALL_SPECS is not set"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if choose_interpreter("3.6.2", os.environ, Probe())[0] is None:
        pytest.skip("no Python 3.6 on this machine")
    home = tmp_path_factory.mktemp("home")
    settings = load_settings({"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"})
    yield home
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def ws(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_HOME", str(home))
    monkeypatch.setenv("RUNYARD_SAMPLE_SECONDS", "0")
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return Workspace.create("pages", exist_ok=True)


def train(ws: Workspace, environment: Environment, script: str, *arguments: str) -> list[str]:
    """Train in the environment; the notes on how it was made."""
    Path("src").mkdir()
    Path("src/train.py").write_text(script)
    config = ScriptRunConfig("src", "train.py", [*arguments], environment=environment)
    run = Experiment(ws, "pages").submit(config)
    run.wait_for_completion(show_output=True)
    assert "loss" in run.get_metrics()
    assert any(name.startswith("outputs/model") for name in run.get_file_names())
    image = environment.get_image_details(ws).image
    assert image is not None
    assert image["python"].startswith("3.6.")
    notes: list[str] = image["notes"]
    return notes


@pytest.mark.parametrize(
    ("packages", "script"),
    [
        pytest.param(TENSORFLOW, TRAIN_TENSORFLOW, id="tensorflow"),
        pytest.param((*TENSORFLOW, *HOROVOD), TRAIN_TENSORFLOW, id="tf-hvd", marks=everything),
        pytest.param(TORCH, TRAIN_TORCH, id="pytorch", marks=everything),
        pytest.param((*TORCH, *HOROVOD), TRAIN_TORCH, id="pytorch-hvd", marks=everything),
    ],
)
def test_a_conda_file_of_the_pages_works_as_written(
    ws: Workspace, packages: tuple[str, ...], script: str
) -> None:
    file = Path("conda_dependencies.yml")
    file.write_text(CONDA + "".join(f"  - {line}\n" for line in packages))
    environment = Environment.from_conda_specification("pages", file)
    notes = train(ws, environment, script, *(["horovod"] if HOROVOD[0] in packages else []))
    assert notes[0].startswith("asked for Python 3.6.2, using 3.6.")
    assert any("with versions of its time" in note for note in notes)
    if packages == TENSORFLOW:
        train_by_estimator(ws, environment)


def train_by_estimator(ws: Workspace, environment: Environment) -> None:
    """v1's older way to the same training: it takes place in the environment that is there."""
    estimator = TensorFlow("src", entry_script="train.py", framework_version="2.2", use_gpu=True)
    own = estimator.run_config.environment.get_image_details(ws).image
    there = environment.get_image_details(ws).image
    assert own is not None
    assert there is not None
    assert own["name"] == there["name"]
    run = Experiment(ws, "pages").submit(estimator)
    run.wait_for_completion(show_output=True)
    assert "loss" in run.get_metrics()


@everything
@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("AzureML-TensorFlow-2.2-GPU", TRAIN_TENSORFLOW),
        ("AzureML-PyTorch-1.6-GPU", TRAIN_TORCH),
    ],
)
def test_a_curated_environment_of_the_pages_works_under_its_name(
    ws: Workspace, name: str, script: str
) -> None:
    environment = Environment.get(workspace=ws, name=name)
    environment.save_to_directory(path=name)
    train(ws, environment, script, "horovod")
