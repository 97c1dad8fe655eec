"""The Environment class: v1's data, files and refusals."""

import json
import sys
import warnings
from pathlib import Path

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.sdk.environment import (
    DEFAULT_CPU_IMAGE,
    CondaDependencies,
    Environment,
    RSection,
    SparkPackage,
)
from runyard.sdk.exceptions import UserErrorException
from runyard.sdk.workspace import Workspace

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"

PAGES_FILE = """\
channels:
- conda-forge
dependencies:
- python=3.6.2
- pip:
  - azureml-defaults
  - tensorflow-gpu==2.2.0
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_new_environment_has_v1s_defaults() -> None:
    env = Environment("mine")
    assert env.version is None
    assert env.python.interpreter_path == "python"
    assert env.python.user_managed_dependencies is False
    assert env.docker.enabled is False
    assert env.docker.base_image == DEFAULT_CPU_IMAGE
    assert env.environment_variables == {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"}
    assert list(env.python.conda_dependencies.pip_packages) == ["azureml-defaults"]


def test_the_name_is_a_text() -> None:
    with pytest.raises(TypeError):
        Environment(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "section", ["", "python", "docker", "spark", "databricks", "docker.platform"]
)
def test_unknown_attributes_are_refused_everywhere(section: str) -> None:
    target: object = Environment("mine")
    for name in section.split(".") if section else []:
        target = getattr(target, name)
    with pytest.raises(AttributeError, match="no_such_thing"):
        target.no_such_thing = 1  # type: ignore[attr-defined]


def test_the_pages_own_conda_file_becomes_a_spec(tmp_path: Path) -> None:
    env = Environment.from_conda_specification("tf", written(tmp_path / "c.yml", PAGES_FILE))
    assert env.to_spec() == EnvironmentSpec(
        name="tf",
        python="3.6.2",
        channels=("conda-forge",),
        pip=("azureml-defaults", "tensorflow-gpu==2.2.0"),
        variables={"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"},
    )


def test_a_file_without_python_gets_one_with_a_warning(tmp_path: Path) -> None:
    file = written(tmp_path / "c.yml", "dependencies:\n- numpy\n")
    with pytest.warns(UserWarning, match="names no Python"):
        env = Environment.from_conda_specification("e", file)
    assert env.python.conda_dependencies.get_python_version() == OWN
    assert env.to_spec().python is None, "shown as v1 shows one, but nobody asked for it"
    assert env.to_spec().conda == ("numpy",)


def test_a_python_version_is_a_wish_only_if_the_user_says_it() -> None:
    env = Environment("e")
    env.python.conda_dependencies.add_pip_package("six")
    assert env.to_spec().python is None
    assert env.clone("f").to_spec().python is None
    env.python.conda_dependencies.set_python_version(OWN)
    assert env.to_spec().python == OWN
    env.python.conda_dependencies = CondaDependencies.create(python_version="3.8")
    assert env.to_spec().python == "3.8"


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dependancies:\n- numpy\n", "Did you mean 'dependencies'"),
        ("- numpy\n", "no keys"),
        ("", "no keys"),
        ("dependencies: numpy\n", "must be a list"),
        ("dependencies:\n- conda:\n  - x\n", "neither a package"),
        ("dependencies:\n- pip: six\n", "list of requirement lines"),
        ("dependencies:\n- 3.6\n", "neither a package"),
        ("dependencies:\n- pip:\n  - 3.6\n", "list of requirement lines"),
        ("channels: {a: b}\n", "list of names"),
        ("variables: [a]\n", "names with values"),
        ("dependencies: [\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        (BOMB, "too many YAML aliases"),
        ("[" * 2000, "nested too deeply"),
        ("# x\n" * 100_000, "too large"),
    ],
)
def test_a_conda_file_that_makes_no_sense_is_refused_in_words(
    tmp_path: Path, text: str, word: str
) -> None:
    with pytest.raises(UserErrorException, match=word):
        Environment.from_conda_specification("e", written(tmp_path / "c.yml", text))


def test_a_missing_or_binary_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserErrorException, match=r"nothere\.yml"):
        Environment.from_conda_specification("e", tmp_path / "nothere.yml")
    (tmp_path / "b.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserErrorException, match="UTF-8"):
        Environment.from_conda_specification("e", tmp_path / "b.yml")


def test_variables_of_a_conda_file_reach_the_run(tmp_path: Path) -> None:
    text = "dependencies: [python=3.8]\nvariables: {A: 1, B: two}\n"
    env = Environment.from_conda_specification("e", written(tmp_path / "c.yml", text))
    env.environment_variables = {"B": "mine"}
    assert env.to_spec().variables == {"A": "1", "B": "mine"}


def test_requirements_with_includes_comments_and_continuations(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    written(tmp_path / "more" / "base.txt", "six  # old\n")
    file = written(
        tmp_path / "r.txt",
        "# head\n-r more/base.txt\n--extra-index-url https://host/simple#egg\n"
        "numpy \\\n  >=1.16\n\n",
    )
    spec = Environment.from_pip_requirements("e", file, pip_version="20.2").to_spec()
    assert spec.python is None
    assert spec.conda == ()
    assert [" ".join(line.split()) for line in spec.pip] == [
        "--extra-index-url https://host/simple#egg",
        "six",
        "numpy >=1.16",
    ]


@pytest.mark.parametrize("line", ["-r r.txt", "-c pins.txt", "-e .", "./local", "-r nothere.txt"])
def test_requirements_that_cannot_travel_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserErrorException):
        Environment.from_pip_requirements("e", written(tmp_path / "r.txt", line + "\n"))


def test_a_user_managed_environment_asks_for_nothing_else() -> None:
    env = Environment("mine")
    env.python.user_managed_dependencies = True
    env.python.interpreter_path = "/opt/python"
    spec = env.to_spec()
    assert (spec.user_managed, spec.interpreter) == (True, "/opt/python")
    assert (spec.python, spec.pip, spec.channels) == (None, (), ())


def test_docker_images_and_dockerfiles(tmp_path: Path) -> None:
    image = Environment.from_docker_image("e", "host/image:1")
    assert image.python.user_managed_dependencies is True
    assert image.to_spec().base_image == "host/image:1"
    text = Environment.from_dockerfile("e", "FROM ubuntu\nRUN x\n")
    assert text.to_spec().base_dockerfile == "FROM ubuntu\nRUN x\n"
    conda = written(tmp_path / "c.yml", PAGES_FILE)
    file = Environment.from_dockerfile("e", written(tmp_path / "D", "FROM a"), conda)
    assert file.docker.base_dockerfile == "FROM a"
    assert file.python.user_managed_dependencies is False
    with pytest.raises(UserErrorException):
        Environment.from_dockerfile("e", tmp_path / "nothere")
    with pytest.raises(UserErrorException):
        Environment.from_docker_image("e", "i", conda_specification=conda, pip_requirements=conda)


def test_an_image_and_a_dockerfile_exclude_each_other() -> None:
    env = Environment("mine")
    env.docker.base_dockerfile = "FROM ubuntu"
    with pytest.raises(UserErrorException, match=r"env\.docker\.base_image = None"):
        env.to_spec()
    env.docker.base_image = None
    assert env.to_spec().base_dockerfile == "FROM ubuntu"


def rich() -> Environment:
    env = Environment("rich")
    env.version = "3"
    env.environment_variables = {"A": "ü"}
    env.python.conda_dependencies = CondaDependencies.create(
        conda_packages=["numpy=1.18"], pip_packages=["six"], python_version="3.8"
    )
    env.docker.enabled = True
    env.docker.base_image = "host/image"
    env.docker.base_image_registry.address = "host"
    env.docker.base_image_registry.password = "secret"
    env.spark.packages = [SparkPackage("g", "a", "1")]
    env.r = RSection()
    env.r.r_version = "4"
    return env


def test_json_and_back_keeps_everything_but_the_password() -> None:
    env = rich()
    again = Environment.deserialize_from_dict(env.serialize_to_dict())
    assert again.serialize_to_dict() == env.serialize_to_dict()
    assert again.to_spec() == env.to_spec()
    assert again.spark.packages[0].artifact == "a"
    assert "secret" not in repr(env)
    shown = json.loads(repr(env))
    assert shown["python"]["condaDependencies"]["dependencies"][0] == "python=3.8"
    assert shown["docker"]["baseImageRegistry"]["address"] == "host"


def test_a_spec_and_back_asks_for_the_same() -> None:
    for env in (rich(), Environment("plain"), Environment.from_dockerfile("d", "FROM x\n")):
        assert Environment.from_spec(env.to_spec()).to_spec() == env.to_spec()


def test_a_copy_is_deep_and_without_version() -> None:
    env = rich()
    copied = env.clone("other")
    copied.python.conda_dependencies.add_pip_package("extra")
    copied.docker.enabled = False
    assert (copied.name, copied.version) == ("other", None)
    assert list(env.python.conda_dependencies.pip_packages) == ["six"]
    assert env.docker.enabled is True
    with pytest.raises(UserErrorException):
        env.clone("")


def test_saved_folders_have_v1s_files_and_load_again(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    env = Environment.from_dockerfile("e", "FROM x\n")
    env.save_to_directory(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"azureml_environment.json", "conda_dependencies.yml", "BaseDockerfile"}
    assert Environment.load_from_directory(folder).to_spec() == env.to_spec()
    with pytest.raises(FileExistsError):
        env.save_to_directory(folder)
    rich().save_to_directory(folder, overwrite=True)
    assert Environment.load_from_directory(folder).to_spec() == rich().to_spec()
    with pytest.raises(FileNotFoundError):
        Environment.load_from_directory(tmp_path / "nothere")


def test_a_conda_file_named_in_the_section_is_read_when_needed(tmp_path: Path) -> None:
    env = Environment("e")
    env.python.conda_dependencies_file = str(written(tmp_path / "c.yml", PAGES_FILE))
    assert env.to_spec().python == "3.6.2"


LOCK = """\
# lock of 'tf', made by Runyard
# python 3.6.15
# asked for Python 3.6.2, using 3.6.15
numpy==1.19.5
torch==1.6.0+cpu
mine @ https://host/mine-1.whl
"""


def test_a_lock_is_an_environment_again(tmp_path: Path) -> None:
    env = Environment.from_lock("again", written(tmp_path / "tf.lock", LOCK))
    spec = env.to_spec()
    assert spec.python == "3.6.15"
    assert spec.pip == ("numpy==1.19.5", "torch==1.6.0+cpu", "mine @ https://host/mine-1.whl")


def test_a_lock_with_conda_packages_is_one_too(tmp_path: Path) -> None:
    text = "# python 3.8.20\nlibfoo==1.2=h12_0\npython==3.8.20=h4a_0\nsix==1.16.0\n"
    spec = Environment.from_lock("again", written(tmp_path / "c.lock", text)).to_spec()
    assert (spec.python, spec.conda, spec.pip) == (
        "3.8.20",
        ("libfoo==1.2=h12_0",),
        ("six==1.16.0",),
    )


def test_what_leaves_versions_open_is_no_lock(tmp_path: Path) -> None:
    with pytest.raises(UserErrorException, match="numpy"):
        Environment.from_lock("again", written(tmp_path / "loose.lock", "numpy>=1.19\n"))
    with pytest.raises(UserErrorException, match="cannot be read"):
        Environment.from_lock("again", tmp_path / "nothere.lock")


def test_a_version_and_a_label_are_one_too_many(ws: Workspace) -> None:
    with pytest.raises(UserErrorException, match="not both"):
        Environment.get(ws, "x", version="1", label="y")


def test_private_wheels_come_later(ws: Workspace) -> None:
    with pytest.raises(UserErrorException, match="not in this release"):
        Environment.add_private_pip_wheel(ws, "x.whl")


def test_without_conda_an_existing_environment_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserErrorException, match="no conda on PATH"):
        Environment.from_existing_conda_environment("e", "base")
    fake = written(
        tmp_path / "conda", f"#!/bin/sh\n/bin/cat <<'EOF'\n{PAGES_FILE}prefix: /x\nEOF\n"
    )
    fake.chmod(0o755)
    env = Environment.from_existing_conda_environment("e", "base")
    assert env.to_spec().python == "3.6.2"


def test_nothing_warns_on_the_common_road(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = Environment.from_conda_specification("tf", written(tmp_path / "c.yml", PAGES_FILE))
        env.to_spec()
        repr(env)
