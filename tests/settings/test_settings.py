"""Settings come from the environment, and nonsense is refused in words."""

from pathlib import Path

import pytest

from runyard.domain.errors import Invalid
from runyard.settings import load_settings, to_environ


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({})
    assert settings.home == Path.home() / ".runyard"
    assert settings.database_url == f"sqlite:///{settings.home}/runyard.db"
    assert settings.slots >= 1


def test_a_server_started_from_here_has_the_same_settings() -> None:
    settings = load_settings(
        {
            "RUNYARD_HOME": "/x y",
            "RUNYARD_PORT": "81",
            "RUNYARD_GRACE_SECONDS": "0",
            "RUNYARD_GROUP_SECONDS": "30",
            "RUNYARD_SERVICE_START_SECONDS": "31",
            "RUNYARD_MIRRORS": '{"http://a/": "https://b/"}',
            "RUNYARD_ALLOW_PRIVATE_ADDRESSES": "no",
            "RUNYARD_CACHE_GB": "0.5",
        }
    )
    assert load_settings(to_environ(settings, {})) == settings
    assert settings.grace_seconds == 0
    assert settings.service_start_seconds == 31


@pytest.mark.parametrize("value", ["many", "-1", "nan", "inf", "1,5"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(Invalid, match="RUNYARD_LOCAL_SLOTS"):
        load_settings({"RUNYARD_LOCAL_SLOTS": value})


def test_a_port_that_no_machine_has_is_refused() -> None:
    assert load_settings({"RUNYARD_PORT": "65535"}).port == 65535
    with pytest.raises(Invalid, match="RUNYARD_PORT='99999'"):
        load_settings({"RUNYARD_PORT": "99999"})


def test_private_addresses_are_for_ones_own_machine_unless_it_is_said() -> None:
    assert load_settings({}).allows_private
    assert not load_settings({"RUNYARD_HOST": "0.0.0.0"}).allows_private
    shared = {"RUNYARD_HOST": "0.0.0.0", "RUNYARD_ALLOW_PRIVATE_ADDRESSES": "1"}
    assert load_settings(shared).allows_private


@pytest.mark.parametrize("value", ["[]", "{", '{"a": 1}', '{"ftp://a": "http://b"}'])
def test_a_mirror_map_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(Invalid, match="RUNYARD_MIRRORS"):
        load_settings({"RUNYARD_MIRRORS": value})


def test_containers_may_be_left_to_the_machine_required_or_refused() -> None:
    assert load_settings({}).containers == "auto"
    assert load_settings({"RUNYARD_CONTAINERS": " Require "}).containers == "require"
    with pytest.raises(Invalid, match="RUNYARD_CONTAINERS"):
        load_settings({"RUNYARD_CONTAINERS": "sometimes"})


@pytest.mark.parametrize(
    ("value", "engine"),
    [
        ("", None),
        ("local", None),
        ("slurm", ("slurm", {})),
        ("slurm:gpu", ("slurm", {"partition": "gpu"})),
        ("ray:http://head:8265", ("ray", {"address": "http://head:8265"})),
    ],
)
def test_clusters_come_from_where_the_setting_says(
    value: str, engine: tuple[str, dict[str, str]] | None
) -> None:
    assert load_settings({"RUNYARD_COMPUTE": value}).compute_engine == engine


def test_its_options_are_written_as_in_a_shell_and_reach_the_server() -> None:
    given = "account=team-a shared=false 'arguments=--constraint=a100 --exclusive'"
    told = {"RUNYARD_COMPUTE": "slurm:gpu", "RUNYARD_COMPUTE_OPTIONS": given}
    settings = load_settings(told)
    assert settings.compute_engine == (
        "slurm",
        {
            "account": "team-a",
            "shared": "false",
            "arguments": "--constraint=a100 --exclusive",
            "partition": "gpu",
        },
    )
    assert load_settings(to_environ(settings, {})) == settings


@pytest.mark.parametrize("value", ["account", "=x", "account='team", "a=1 b"])
def test_options_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(Invalid, match="RUNYARD_COMPUTE_OPTIONS"):
        load_settings({"RUNYARD_COMPUTE_OPTIONS": value})


@pytest.mark.parametrize("value", ["ray", "ray:", "slurm:", "pbs", "local:8"])
def test_an_engine_that_there_is_not_is_refused(value: str) -> None:
    with pytest.raises(Invalid, match="RUNYARD_COMPUTE"):
        load_settings({"RUNYARD_COMPUTE": value})
