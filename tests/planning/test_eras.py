"""Old pins get the company of their time; names that went away get their successors: tables."""

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.planning.environments import plan_key, plan_venv
from runyard.planning.eras import ERAS, replace_retired
from runyard.planning.requirements import (
    normalise_requirement,
    pinned_version,
    requirement_name,
    stays_below,
)


def spec(*pip: str, conda: tuple[str, ...] = ()) -> EnvironmentSpec:
    return EnvironmentSpec(name="old", pip=pip, conda=conda, python="3.6")


@pytest.mark.parametrize(
    ("line", "below"),
    [
        ("tensorflow==2.2.0", True),
        ("tensorflow==2.4.4", True),
        ("tensorflow==2.5.0", False),
        ("tensorflow===2.2", True),
        ("tensorflow==2.2.*", True),
        ("tensorflow==2.5.*", False),
        ("tensorflow==2.*", False),
        ("tensorflow<2.5", True),
        ("tensorflow<2.5.1", False),
        ("tensorflow<=2.4", True),
        ("tensorflow<=2.5", False),
        ("tensorflow<2.3,>=1.13", True),
        ("tensorflow~=2.2", False),
        ("tensorflow~=2.2.0", True),
        ("tensorflow>=2.2", False),
        ("tensorflow!=2.2", False),
        ("tensorflow", False),
        ("tensorflow==2.2.0+local ; python_version < '3.7'", True),
        ("tensorflow @ https://host/tensorflow-2.2.0.whl", False),
    ],
)
def test_only_a_line_that_keeps_below_the_limit_is_of_that_time(line: str, below: bool) -> None:
    assert stays_below(normalise_requirement(line), (2, 5)) is below


def test_a_pin_is_one_version() -> None:
    assert pinned_version("horovod==0.19.5") == (0, 19, 5)
    assert pinned_version("horovod[tensorflow]==0.19.5") == (0, 19, 5)
    assert pinned_version("horovod==0.19.*") == ()
    assert pinned_version("horovod>=0.19") == ()


def test_chainer_is_kept_from_packages_that_it_cannot_be_imported_with() -> None:
    plan = plan_venv(spec("chainer==7.0.0", "mpi4py==4.1.2"))
    assert plan.constraints == ("numpy<1.20", "protobuf<3.21", "setuptools<60")
    own = plan_venv(spec("chainer==7.0.0", "numpy==1.21.0"))
    assert "numpy<1.20" not in own.constraints


def test_the_tightest_row_counts_and_is_said_once() -> None:
    plan = plan_venv(spec("tensorflow-gpu==2.2.0"))
    assert "numpy<1.20" in plan.constraints
    assert "protobuf<3.21" in plan.constraints
    assert [one for one in plan.constraints if one.startswith("numpy")] == ["numpy<1.20"]
    (note,) = plan.notes
    assert note.startswith("tensorflow-gpu==2.2.0: with versions of its time, ")
    assert "protobuf<3.21" in note


def test_a_version_that_the_user_wrote_is_never_overruled() -> None:
    plan = plan_venv(spec("tensorflow==2.2.0", "numpy==1.21.6", "h5py"))
    assert not [one for one in plan.constraints if one.startswith("numpy")]
    assert "h5py<3" in plan.constraints, "named without a version, it is still of its time"


def test_new_packages_are_left_alone() -> None:
    for line in ("tensorflow==2.21.0", "tensorflow", "torch==2.13.0", "scikit-learn==1.9.1"):
        plan = plan_venv(spec(line))
        assert plan.constraints == ()
        assert plan.notes == ()


def test_conda_lines_have_their_time_too() -> None:
    plan = plan_venv(spec(conda=("scikit-learn=0.20.3",)))
    assert plan.constraints == ("numpy<1.20", "scipy<1.6")


def test_constraints_are_part_of_the_key() -> None:
    def key(*pip: str) -> str:
        return plan_key(plan_venv(spec(*pip)), own_python="3.11", platform="linux", builder="b")

    assert key("tensorflow==2.2.0") != key("tensorflow==2.2.0", "numpy")
    assert key("tensorflow==2.2.0") == key("TensorFlow == 2.2.0")


def test_every_row_is_written_as_the_resolver_reads_it() -> None:
    limits: dict[str, tuple[int, ...]] = {}
    for row in ERAS:
        assert row.why
        for line in row.constraints:
            assert line == normalise_requirement(line)
            assert stays_below(line, (10_000,))
        for package in row.packages:
            assert package == requirement_name(package)
            assert limits.get(package, ()) < row.below, "the lowest limit comes first"
            limits[package] = row.below


@pytest.mark.parametrize(
    ("line", "successor"),
    [
        ("tensorflow-gpu==2.2.0", "tensorflow-gpu==2.2.0"),
        ("tensorflow-gpu==2.1.0", "tensorflow-gpu==2.1.0"),
        ("tensorflow-gpu==2.0.0", "tensorflow==2.0.0"),
        ("tensorflow-gpu==1.13.1", "tensorflow==1.13.1"),
        ("tensorflow-gpu==2.11.0", "tensorflow-gpu==2.11.0"),
        ("tensorflow-gpu==2.12.0", "tensorflow==2.12.0"),
        ("tensorflow-gpu", "tensorflow"),
        ("tensorflow-gpu>=2.0", "tensorflow>=2.0"),
        ("tensorflow-gpu<2.3,>=1.15", "tensorflow-gpu<2.3,>=1.15"),
        ("sklearn", "scikit-learn"),
        ("sklearn==0.0", "scikit-learn"),
        ("sklearn==0.24.2", "scikit-learn==0.24.2"),
        ("pytorch==1.6.0", "torch==1.6.0"),
        ("pil", "pillow"),
        ("numpy==1.18", "numpy==1.18"),
    ],
)
def test_retired_names_lead_to_their_successors(line: str, successor: str) -> None:
    notes: list[str] = []
    assert replace_retired(line, notes) == successor
    assert len(notes) == (line != successor)
    assert all(line in note and successor in note for note in notes)
