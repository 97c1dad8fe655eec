"""What v1 code says besides the documented names: old spellings, private ones, refusals."""

from pathlib import Path

import pytest

from runyard import Dataset, Datastore, Experiment, Run
from runyard.sdk.authentication import ServicePrincipalAuthentication, TokenAuthentication
from runyard.sdk.conda_dependencies import CondaDependencies
from runyard.sdk.environment import Environment
from runyard.sdk.estimators import Estimator
from runyard.sdk.exceptions import UserErrorException
from runyard.sdk.run_configuration import RunConfiguration
from runyard.sdk.workspace import Workspace


def test_a_python_that_nobody_chose_is_none_after_a_round_through_a_file(tmp_path: Path) -> None:
    packages = CondaDependencies.create(conda_packages=["numpy==1.19.5", "scikit-learn==0.22.1"])
    file = tmp_path / "myenv.yml"
    file.write_text(packages.serialize_to_string())
    read = Environment.from_conda_specification("old", file)
    assert read.python.conda_dependencies == packages
    assert read.to_spec().python is None  # so that the packages can choose
    packages.set_python_version("3.7")
    file.write_text(packages.serialize_to_string())
    assert Environment.from_conda_specification("old", file).to_spec().python == "3.7"


def test_a_python_that_a_file_names_is_a_wish(tmp_path: Path) -> None:
    file = tmp_path / "env.yml"
    file.write_text("dependencies:\n- python=3.11\n- numpy\n")
    assert Environment.from_conda_specification("mine", file).to_spec().python == "3.11"


def test_the_first_name_of_auto_prepare_environment_is_another_for_it() -> None:
    config = RunConfiguration()
    config.prepare_environment = False
    assert config.auto_prepare_environment is False


def test_the_configuration_of_an_estimator_is_found_under_its_private_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    estimator = Estimator(tmp_path, compute_target="local", entry_script="train.py")
    estimator._estimator_config.environment.python.interpreter_path = "/opt/env/bin/python"
    assert estimator.run_config.environment.python.interpreter_path == "/opt/env/bin/python"


def test_outside_a_job_the_first_name_of_get_context_gives_the_stand_in() -> None:
    assert Run.get_submitted_run().id.startswith("OfflineRun")


@pytest.mark.story
def test_a_workspace_is_found_by_v1s_first_spelling_and_has_v1s_details(ws: Workspace) -> None:
    ws.write_config()
    found = Workspace.setup()
    assert found.name == ws.name
    details = found.get_details()
    for key in ("storageAccount", "keyVault", "applicationInsights", "containerRegistry"):
        assert details[key] == ""
    assert details["discoveryUrl"] == found.discovery_url


@pytest.mark.story
def test_every_way_to_sign_in_gives_the_servers_token(ws: Workspace) -> None:
    for way in (
        ServicePrincipalAuthentication("tenant", "id", "secret"),
        TokenAuthentication(lambda audience: "theirs"),
    ):
        header = way.get_authentication_header()["Authorization"]
        assert header == f"Bearer {ws._session.client.token}" == f"Bearer {way.get_token().token}"


@pytest.mark.story
def test_what_data_does_not_have_says_so_in_words(ws: Workspace, project: Path) -> None:
    (project / "a.csv").write_text("n\n1\n")
    store = ws.get_default_datastore()
    store.upload_files(["a.csv"], target_path="spellings", show_progress=False)
    table = Dataset.Tabular.from_delimited_files((store, "spellings/a.csv"))
    for owner, name, words in (
        (table, "to_spark_dataframe", "Spark; use to_pandas_dataframe"),
        (table, "add_tags", "register a new version"),
        (store, "account_key", "stay on the server"),
        (ws, "sync_keys", "keys of Azure's resources"),
    ):
        with pytest.raises(AttributeError, match=words):
            getattr(owner, name)
    for owner in (table, store, ws):
        with pytest.raises(AttributeError, match=f"'{type(owner).__name__}' object has no"):
            owner.nonsense  # noqa: B018
    with pytest.raises(UserErrorException, match="databases as datastores"):
        Datastore.register_azure_sql_database(ws, "sql", server_name="s")
    with pytest.raises(UserErrorException, match="tags of experiments"):
        Experiment(ws, "spellings").remove_tags(["a"])
