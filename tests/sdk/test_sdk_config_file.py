"""config.json is found where v1 looked for it, and says what is wrong with it."""

import json
from pathlib import Path

import pytest

from runyard.sdk.config_file import (
    WorkspaceConfig,
    config_for,
    find_config,
    load_config,
    read_config,
    settings_for,
    write_config,
)
from runyard.sdk.exceptions import UserErrorException
from runyard.settings import Settings, default_home

AZURES = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}


def put(file: Path, data: object = AZURES) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["config.json"], "config.json"),
        (["config.json", ".azureml/config.json"], ".azureml/config.json"),
        (["aml_config/config.json", "config.json"], "aml_config/config.json"),
        (["aml_config/project.json"], "aml_config/project.json"),
        (["project.json", "config.json"], "config.json"),
        (["a/config.json", "a/b/.azureml/config.json"], "a/b/.azureml/config.json"),
    ],
)
def test_the_nearest_file_is_found(tmp_path: Path, files: list[str], found: str) -> None:
    for name in files:
        put(tmp_path / name)
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True, exist_ok=True)
    assert find_config(deep) == tmp_path / found


def test_a_path_of_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = put(tmp_path / "other.json")
    assert find_config(file) == file


def test_a_chosen_file_name_is_looked_for(tmp_path: Path) -> None:
    put(tmp_path / "config.json")
    file = put(tmp_path / ".azureml" / "dev.json")
    assert find_config(tmp_path, "dev.json") == file


def test_no_file_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserErrorException, match=r"runyard init") as caught:
        find_config(tmp_path, "surely-not-there.json")
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ("[]", "of type list"),
        ("{}", "no 'workspace_name'"),
        ('{"workspace_name": 3}', "workspace_name"),
        ('{"workspace_name": "w", "runyard": {"url": 3}}', "url"),
        ('{"workspace_name": "w", "runyard": 7}', "Expected `str`"),
    ],
)
def test_a_damaged_file_is_named_with_its_fault(tmp_path: Path, text: str, words: str) -> None:
    file = put(tmp_path / "config.json", text)
    with pytest.raises(UserErrorException, match=words) as caught:
        load_config(tmp_path, None)
    assert str(file) in caught.value.message


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    put(tmp_path / "config.json", "\ufeff" + json.dumps(AZURES))
    assert load_config(tmp_path, None).workspace_name == "w"


def test_the_legacy_scope_names_the_workspace(tmp_path: Path) -> None:
    scope = "/subscriptions/s/resourceGroups/g/providers/X/workspaces/w/projects/p"
    file = put(tmp_path / "project.json", {"Id": "1", "Scope": scope})
    assert read_config(file) == WorkspaceConfig(
        workspace_name="w", subscription_id="s", resource_group="g"
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = WorkspaceConfig(workspace_name="w", home="/somewhere", url="http://h:1")
    assert read_config(write_config(config, tmp_path / ".azureml" / "config.json")) == config


def test_the_token_is_never_written() -> None:
    settings = Settings(home=default_home(), url="http://h:1", token="secret")
    config = config_for("w", "s", "g", settings)
    assert "secret" not in repr(config)
    assert config.url == "http://h:1"


def test_the_default_home_is_not_written() -> None:
    assert config_for("w", "", "", Settings(home=default_home())).home == ""
    assert config_for("w", "", "", Settings(home=Path("/data/yard"))).home == "/data/yard"


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    config = WorkspaceConfig(workspace_name="w", home="/from/file", url="http://file:1")
    monkeypatch.delenv("RUNYARD_HOME", raising=False)
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    assert settings_for(config).home == Path("/from/file")
    assert settings_for(config).url == "http://file:1"
    monkeypatch.setenv("RUNYARD_HOME", "/from/variable")
    monkeypatch.setenv("RUNYARD_URL", "http://variable:1")
    assert settings_for(config).home == Path("/from/variable")
    assert settings_for(config).url == "http://variable:1"
