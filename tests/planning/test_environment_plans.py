"""What an environment spec means: tables."""

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Invalid, RunyardError, Unsupported
from runyard.planning.environments import (
    IndexOptions,
    explain_failure,
    lock_with_hashes,
    pick_version,
    plan_key,
    plan_venv,
)
from runyard.planning.requirements import normalise_requirement


def spec(**fields: object) -> EnvironmentSpec:
    return EnvironmentSpec(name="mnist", **fields)  # type: ignore[arg-type]


def key(**fields: object) -> str:
    return plan_key(plan_venv(spec(**fields)), own_python="3.11", platform="linux", builder="b")


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("Six", "six"),
        ("scikit_learn == 0.22.1", "scikit-learn==0.22.1"),
        ("numpy>=1.16, <1.19", "numpy<1.19,>=1.16"),
        ("requests[Socks , security]>2", "requests[security,socks]>2"),
        ('pkg==1; python_version  < "3.8"', "pkg==1 ; python_version < '3.8'"),
        ("pkg @ https://host/pkg-1.whl", "pkg @ https://host/pkg-1.whl"),
        ("git+https://host/x.git@main", "git+https://host/x.git@main"),
        ("/wheels/x-1-py3-none-any.whl", "/wheels/x-1-py3-none-any.whl"),
        ("six==1.16 --hash=sha256:ab", "six==1.16 --hash=sha256:ab"),
        ("torch==1.6.0+cpu", "torch==1.6.0+cpu"),
    ],
)
def test_requirement_lines_have_one_spelling(line: str, normal: str) -> None:
    assert normalise_requirement(line) == normal
    assert normalise_requirement(normal) == normal


def test_specs_that_build_the_same_have_the_same_key() -> None:
    first = key(pip=("Six == 1.16", "azureml-defaults", "numpy"), python="3.6.2")
    assert first == key(pip=("numpy", "six==1.16", "# a comment"), python="=3.6.2")
    assert key() == key(python="3.11")


@pytest.mark.parametrize(
    "other",
    [
        {"pip": ("six==1.17",)},
        {"pip": ("six==1.16",), "python": "3.7"},
        {"pip": ("six==1.16", "--index-url https://host/simple")},
        {"pip": ("six==1.16",), "conda": ("numpy",)},
    ],
)
def test_specs_that_build_something_else_have_another_key(other: dict[str, object]) -> None:
    assert key(pip=("six==1.16",)) != key(**other)


@pytest.mark.parametrize(
    "line", ["azureml-defaults", "azureml-core==1.13.0", "azureml-sdk[notebooks]", "AzureML_Core"]
)
def test_azureml_packages_are_never_downloaded(line: str) -> None:
    plan = plan_venv(spec(pip=(line, "inference-schema", "azure-storage-blob")))
    assert plan.requirements == ("azure-storage-blob", "inference-schema")
    assert "provided by Runyard's runtime" in plan.notes[0]


def test_packages_that_v1_s_own_brought_along_are_installed() -> None:
    plan = plan_venv(spec(pip=("azureml-dataprep[pandas,fuse]>=1.1.14", "pandas==1.1.5")))
    assert plan.requirements == ("pandas", "pandas==1.1.5")
    assert "azureml-dataprep[pandas]: pandas is installed" in plan.notes
    assert plan_venv(spec(pip=("azureml-dataprep[parquet]",))).requirements == ("pyarrow",)


@pytest.mark.parametrize(
    ("package", "requirement"),
    [
        ("numpy", "numpy"),
        ("numpy=1.18", "numpy==1.18.*"),
        ("numpy=1.18.*", "numpy==1.18.*"),
        ("numpy==1.18.1", "numpy==1.18.1"),
        ("numpy=1.18.1=py37h_0", "numpy==1.18.1.*"),
        ("numpy 1.18.1 py37h_0", "numpy==1.18.1"),
        ("numpy>=1.16,<1.19", "numpy<1.19,>=1.16"),
        ("conda-forge::scikit-learn=0.22", "scikit-learn==0.22.*"),
        ("pytorch=1.6.0", "torch==1.6.0.*"),
    ],
)
def test_well_known_conda_packages_come_from_pip(package: str, requirement: str) -> None:
    plan = plan_venv(spec(conda=(package,)))
    assert plan.requirements == (requirement,)
    assert package in plan.notes[0]


def test_python_and_pip_are_not_packages_and_cuda_comes_in_wheels() -> None:
    plan = plan_venv(spec(conda=("python=3.6", "pip=20.2", "cudatoolkit=10.1")))
    assert plan.requirements == ()
    assert plan.notes == ("cudatoolkit=10.1: left out, wheels bring their own CUDA libraries",)


def test_conda_packages_that_pip_lacks_are_named_all_at_once() -> None:
    with pytest.raises(Unsupported) as caught:
        plan_venv(spec(conda=("libfoo=1", "numpy", "r-base")))
    assert "libfoo=1, r-base" in caught.value.what
    assert "pip:" in caught.value.fix


def test_index_options_of_the_lines_are_honoured() -> None:
    plan = plan_venv(
        spec(
            pip=(
                "--index-url=https://a/simple",
                "-i https://b/simple",
                "--extra-index-url https://c/simple",
                "-f /wheels",
                "--find-links='/more wheels'",
                "--pre",
                "--no-cache-dir",
            )
        )
    )
    assert plan.requirements == ()
    assert plan.options == IndexOptions(
        index_url="https://b/simple",
        extra_index_urls=("https://c/simple",),
        find_links=("/wheels", "/more wheels"),
        prerelease=True,
    )


@pytest.mark.parametrize("line", ["-e .", "-r other.txt", "--install-option=x", "./folder", "-c x"])
def test_lines_that_cannot_be_served_are_refused_in_words(line: str) -> None:
    with pytest.raises(RunyardError) as caught:
        plan_venv(spec(pip=(line,)))
    assert line in caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_a_version_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(RunyardError, match="not a Python version"):
        pick_version("3." + "9" * 5000, FOUND)


FOUND = [(3, 6, 15), (3, 8, 1), (3, 8, 18), (3, 11, 7)]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("3.6.15", (3, 6, 15)),
        ("3.6.2", (3, 6, 15)),  # another patch will do
        ("3.6", (3, 6, 15)),
        ("3.8", (3, 8, 18)),
        ("3.8.1", (3, 8, 1)),
        ("3.8.*", (3, 8, 18)),
        ("3", (3, 11, 7)),
        (">=3.6,<3.11", (3, 8, 18)),
        ("~=3.8.1", (3, 8, 18)),
        ("!=3.11,<4", (3, 8, 18)),
        ("3.7", None),  # another minor never does
        ("3.7.4", None),
        ("3.1", None),
        (">=3.12", None),
        ("2.7", None),
    ],
)
def test_the_interpreter_is_chosen_by_version(asked: str, chosen: tuple[int, ...] | None) -> None:
    assert pick_version(asked, FOUND) == chosen


@pytest.mark.parametrize("python", ["banana", "3.x", "3.6; rm", ">="])
def test_a_python_version_that_is_none_is_refused(python: str) -> None:
    with pytest.raises(Invalid):
        plan_venv(spec(python=python))


def test_hashes_that_the_user_demanded_reach_the_lock() -> None:
    lock = lock_with_hashes(
        ["numpy==1.18", "six==1.16.0"], ["numpy", "six==1.16.0 --hash=sha256:aa --hash=sha256:bb"]
    )
    assert lock == ("numpy==1.18", "six==1.16.0 --hash=sha256:aa --hash=sha256:bb")


def test_the_resolvers_words_are_kept_in_the_forms_of_old_and_new_uv() -> None:
    new = [
        "Resolving",
        "error: No solution found when",
        "  cause: Because you require a==1 and a==2",
    ]
    old = ["  × No solution found when", "  ╰─▶ Because you require a==1 and a==2"]
    for lines in (new, old):
        why, fix = explain_failure(lines)
        assert why == "No solution found when\nBecause you require a==1 and a==2"
        assert "pins" in fix


def test_a_silent_failure_still_says_something() -> None:
    why, fix = explain_failure([])
    assert why
    assert fix
