"""No password of a URL is shown, however it is written."""

import time
from datetime import UTC, datetime

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.runs import RunRecord, RunSpec, ScriptSpec
from runyard.domain.secrets import redact, redact_all

PIP = "--extra-index-url https://me:hu@s/h@host/simple"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://user:pass@host/simple", "https://***@host/simple"),
        ("https://user:p@ss@host/simple", "https://***@host/simple"),
        ("https://user:p/ss@host/simple", "https://***@host/simple"),
        ("https://user:p@s/s@host:8080/simple", "https://***@host:8080/simple"),
        ("https://user:p@s?s#x@host/simple", "https://***@host/simple"),
        ("https://:token@host", "https://***@host"),
        ("http://u:p@[::1]:80/simple", "http://***@[::1]:80/simple"),
        ("git+https://token@host/x.git@main", "git+https://***@host/x.git@main"),
        ("git+https://u:p@s/s@host/o/x@main", "git+https://***@host/o/x@main"),
        ("name @ https://u:p@host/x.whl", "name @ https://***@host/x.whl"),
        ("two http://a:b@h and http://c:d@h", "two http://***@h and http://***@h"),
        ("two http://a:b@h/,http://c:d@h/", "two http://***@h/,http://***@h/"),
        ("--index-url='https://u:p@h/s'", "--index-url='https://***@h/s'"),
        ("(see https://u:p@host.)", "(see https://***@host.)"),
        ("https://host/t/to-ken/channel::name", "https://host/t/***/channel::name"),
        ("https://u:p@host/t/to-ken/channel", "https://***@host/t/***/channel"),
    ],
)
def test_credentials_do_not_stay_in_texts(text: str, clean: str) -> None:
    assert redact(text) == clean
    assert redact(text, hidden="") == clean.replace("***@", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "numpy==1.18",
        "git@host:a/b.git",
        "https://host/a@b",
        "https://host:8080/a@b",
        "http://[::1]:80/a@b",
        "git+https://host/org/repo@feature/x",
        "file:///a/b@c",
        "mail me@host, see https://host",
    ],
)
def test_what_holds_no_credentials_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_hostile_text_takes_no_time() -> None:
    started = time.monotonic()
    for text in ("https://" + "a" * 10**6 + "@", "a" * 10**6 + "://@", "a://" + "@a" * 10**6):
        redact(text)
    assert time.monotonic() - started < 5


def test_a_records_texts_are_redacted_however_deep() -> None:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot="0" * 64,
        environment=EnvironmentSpec(name="tf", pip=("numpy", PIP)),
    )
    definition: dict[str, object] = {"dependencies": [{"pip": [PIP]}, 1, None]}
    spec = RunSpec(workspace="w", experiment="e", script=script, definition=definition)
    run = RunRecord(id="r", uid="u", spec=spec, created=datetime.now(UTC))
    shown = redact_all(run)
    clean = "--extra-index-url https://***@host/simple"
    assert shown.spec.script is not None
    assert shown.spec.script.environment.pip == ("numpy", clean)
    assert shown.spec.definition == {"dependencies": [{"pip": [clean]}, 1, None]}
    assert shown.created is run.created
    assert redact_all(shown) == shown
    assert PIP in script.environment.pip, "what is stored stays whole"
