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
        {"RUNYARD_HOME": "/x y", "RUNYARD_PORT": "81", "RUNYARD_GRACE_SECONDS": "0"}
    )
    assert load_settings(to_environ(settings, {})) == settings
    assert settings.grace_seconds == 0


@pytest.mark.parametrize("value", ["many", "-1", "nan", "inf", "1,5"])
def test_a_number_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(Invalid, match="RUNYARD_LOCAL_SLOTS"):
        load_settings({"RUNYARD_LOCAL_SLOTS": value})
