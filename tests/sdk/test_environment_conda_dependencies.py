"""CondaDependencies: building up packages as v1 code does."""

import sys
from pathlib import Path

import pytest
import yaml

from runyard.sdk.conda_dependencies import SDK_VERSION, CondaDependencies
from runyard.sdk.exceptions import UserErrorException

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_without_a_pip_list_there_is_azureml_defaults() -> None:
    made = CondaDependencies.create()
    assert list(made.pip_packages) == [f"azureml-defaults~={SDK_VERSION}"]
    assert made.get_python_version() == OWN


def test_create_takes_every_list_and_pins_our_own_names() -> None:
    made = CondaDependencies.create(
        pip_indexurl="https://host/simple",
        pip_packages=["azureml-sdk", "azureml-core==1.1", "scikit-learn==0.22"],
        conda_packages=["numpy"],
        python_version="3.6.2",
    )
    assert list(made.conda_packages) == ["python=3.6.2", "numpy"]
    assert list(made.pip_options) == ["--index-url https://host/simple"]
    assert list(made.pip_packages) == [
        f"azureml-sdk~={SDK_VERSION}",
        "azureml-core==1.1",
        "scikit-learn==0.22",
    ]
    unpinned = CondaDependencies.create(pip_packages=["azureml-sdk"], pin_sdk_version=False)
    assert list(unpinned.pip_packages) == ["azureml-sdk"]
    assert list(CondaDependencies.create(pip_packages=[]).pip_packages) == []


def test_adding_a_package_again_replaces_it() -> None:
    made = CondaDependencies()
    made.add_pip_package("Scikit_learn==0.20")
    made.add_pip_package("scikit-learn==0.22")
    made.add_pip_package("git+https://host/a.git")
    made.add_pip_package("git+https://host/b.git")
    made.add_conda_package("numpy")
    made.add_conda_package("numpy=1.18")
    made.set_python_version("3.7")
    assert list(made.pip_packages)[1:] == [
        "scikit-learn==0.22",
        "git+https://host/a.git",
        "git+https://host/b.git",
    ]
    assert list(made.conda_packages) == ["python=3.7", "numpy=1.18"]


def test_packages_options_and_channels_can_be_removed() -> None:
    made = CondaDependencies()
    made.add_conda_package("numpy")
    made.remove_conda_package("numpy")
    made.remove_pip_package("azureml-defaults")
    made.remove_pip_package("never-there")
    made.set_pip_option("--pre")
    made.set_pip_index_url("--index-url https://a/simple")
    made.set_pip_index_url("https://b/simple")
    made.remove_pip_option("--pre")
    made.add_channel("pytorch")
    made.add_channel("pytorch")
    made.remove_channel("anaconda")
    assert list(made.conda_channels) == ["conda-forge", "pytorch"]
    assert made.as_dict()["dependencies"] == [
        f"python={OWN}",
        {"pip": ["--index-url https://b/simple"]},
    ]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("python=3.6.2", "3.6.2"),
        ("python==3.6.2", "3.6.2"),
        ("python=3.6.2=h1_0", "3.6.2"),
        ("python 3.6.2", "3.6.2"),
        ("python >=3.6,<3.9", ">=3.6,<3.9"),
        ("conda-forge::python=3.7", "3.7"),
        ("python", None),
        ("python-dateutil", None),
    ],
)
def test_the_python_version_is_read_from_every_spelling(line: str, version: str | None) -> None:
    made = CondaDependencies(_underlying_structure={"dependencies": [line]})
    assert made.get_python_version() == version


def test_the_file_can_be_written_and_read_again(tmp_path: Path) -> None:
    made = CondaDependencies.create(conda_packages=["numpy"], pip_packages=["six"])
    assert made.save_to_file(tmp_path, "sub/my.yml") == "sub/my.yml"
    assert CondaDependencies(tmp_path / "sub" / "my.yml") == made
    assert made.save_to_file(tmp_path) == "conda_dependencies.yml"
    text = made.serialize_to_string()
    assert text.startswith("#")
    assert yaml.safe_load(text)["dependencies"][-1] == {"pip": ["six"]}


def test_what_is_handed_out_is_a_copy() -> None:
    made = CondaDependencies()
    made.as_dict()["dependencies"].clear()
    assert made.get_python_version() == OWN


@pytest.mark.parametrize("wrong", ["numpy", ["", "six"], [7], ["a\nb"]])
def test_lists_of_something_else_are_refused(wrong: object) -> None:
    with pytest.raises(UserErrorException):
        CondaDependencies.create(pip_packages=wrong)  # type: ignore[arg-type]


def test_tensorflow_shortcuts_and_merging() -> None:
    made = CondaDependencies.create(pip_packages=[])
    made.add_tensorflow_pip_package("gpu", "2.2.0")
    assert list(made.pip_packages) == ["tensorflow-gpu==2.2.0"]
    made.remove_tensorflow_pip_package()
    assert list(made.pip_packages) == []
    assert CondaDependencies.merge_requirements(["a>=1", "b", "a<2"]) == ["a>=1,<2", "b"]
