"""Environments of a workspace: registered, got back, listed, labelled, built."""

import uuid
from pathlib import Path

import pytest

from runyard.sdk.conda_dependencies import CondaDependencies
from runyard.sdk.environment import Environment
from runyard.sdk.exceptions import UserErrorException
from runyard.sdk.workspace import Workspace

pytestmark = pytest.mark.story


@pytest.fixture
def name() -> str:
    return f"env-{uuid.uuid4().hex[:8]}"


def test_an_environment_comes_back_as_it_was_registered(ws: Workspace, name: str) -> None:
    env = Environment(name)
    env.python.conda_dependencies = CondaDependencies.create(
        python_version="3.8", pip_packages=["six==1.16"], conda_packages=["numpy"]
    )
    env.environment_variables = {"COLOUR": "red"}
    env.docker.base_image = "library/debian:12"
    registered = env.register(workspace=ws)
    assert (registered.name, registered.version) == (name, "1")
    assert env.version is None, "v1 leaves the object itself alone"

    back = Environment.get(ws, name)
    assert back.version == "1"
    assert back.environment_variables == {"COLOUR": "red"}
    assert back.docker.base_image == "library/debian:12"
    assert back.python.conda_dependencies == env.python.conda_dependencies
    assert back.register(ws).version == "1", "got and registered again, it is the same"
    assert Environment.list(ws)[name].version == "1"
    assert ws.environments[name].version == "1"


def test_a_python_version_that_nobody_asked_for_is_not_asked_for_later(
    ws: Workspace, name: str
) -> None:
    env = Environment(name)
    env.python.conda_dependencies.add_pip_package("six==1.16")
    back = env.register(ws)
    assert back.to_spec().python is None
    assert back.register(ws).version == "1"
    back.python.conda_dependencies.set_python_version("3.8")
    assert back.register(ws).to_spec().python == "3.8"


def test_versions_and_labels(ws: Workspace, name: str) -> None:
    env = Environment(name)
    env.register(ws)
    env.environment_variables = {"A": "2"}
    assert env.register(ws).version == "2"
    assert Environment.get(ws, name, version="1").environment_variables != {"A": "2"}
    Environment.label(ws, name, "1", ["stable"])
    assert Environment.get(ws, name, label="stable").version == "1"
    assert Environment.get(ws, name, label="latest").version == "2"


def test_reserved_names_are_for_curated_environments(ws: Workspace, name: str) -> None:
    curated = Environment.get(workspace=ws, name="AzureML-Minimal")
    with pytest.raises(Exception, match="reserved"):
        curated.register(ws)
    assert curated.clone(name).register(ws).version == "1"


@pytest.mark.parametrize(
    "missing", [{"name": "no-such"}, {"name": "AzureML-Minimal", "version": "7"}]
)
def test_what_is_not_there_has_the_http_code_in_its_text(
    ws: Workspace, missing: dict[str, str]
) -> None:
    with pytest.raises(Exception, match="Code: 404"):
        Environment.get(ws, **missing)


def test_the_pages_own_road_with_a_curated_environment(ws: Workspace) -> None:
    curated_env_name = "AzureML-TensorFlow-2.2-GPU"
    tf_env = Environment.get(workspace=ws, name=curated_env_name)
    tf_env.save_to_directory(path=curated_env_name)
    text = Path(curated_env_name, "conda_dependencies.yml").read_text()
    assert "python=3.6.2" in text
    assert "tensorflow-gpu==2.2.0" in text
    with pytest.raises(FileExistsError):
        tf_env.save_to_directory(path=curated_env_name)
    assert Environment.load_from_directory(curated_env_name).to_spec() == tf_env.to_spec()


def test_a_build_ahead_of_the_first_run(
    ws: Workspace, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = Environment(name)  # the defaults: an interpreter, and nothing to install
    env.python.conda_dependencies.add_pip_package("azureml-" + name)
    details = env.build(ws)
    details.wait_for_completion(show_output=True)
    assert details.status == "Succeeded"
    assert "status: Succeeded" in capsys.readouterr().out
    image = env.get_image_details(ws)
    assert image["imageExistsInRegistry"] is True
    assert image.image is not None
    assert Path(image.image["interpreter"]).exists()
    assert env.build_local(ws).status == "Succeeded"


def test_a_build_that_cannot_be_says_why(ws: Workspace, name: str) -> None:
    env = Environment(name)
    env.python.conda_dependencies.add_pip_package("./local")
    details = env.build(ws)
    with pytest.raises(UserErrorException, match="relative path"):
        details.wait_for_completion(show_output=False)
    assert details.status == "Failed"
    assert env.get_image_details(ws).image is None
