"""The pure parts of a run's handle: printing, details, downloads, errors."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runyard.domain.errors import BY_CODE, RunyardError
from runyard.domain.logs import LogText
from runyard.domain.runs import RunError, RunRecord, RunSpec
from runyard.domain.states import RunState
from runyard.sdk import exceptions
from runyard.sdk.exceptions import UserErrorException, as_v1
from runyard.sdk.run_details import error_words, label_queries, render_details
from runyard.sdk.run_files import folder_prefix, inside, plan_downloads
from runyard.sdk.run_following import Printer

NOW = datetime(2026, 11, 15, 10, 30, 1, 250, tzinfo=UTC)
RUN = RunRecord(
    id="exp_1_ab",
    uid="u",
    spec=RunSpec(workspace="w", experiment="exp", warnings=("chosen for you",)),
    created=NOW,
)
FAILED = msgspec.structs.replace(
    RUN,
    state=RunState.FAILED,
    error=RunError(
        code="UserError", message="ValueError: no", rank=0, exit_code=1, traceback="Trace\n"
    ),
)


def printed(record: RunRecord, *pieces: LogText, raising: bool = False) -> str:
    out: list[str] = []
    printer = Printer(out.append, record.id, "http://x/runs/1")
    printer.begins()
    for piece in pieces:
        printer.prints(piece)
    printer.ends(record, raising=raising)
    return "".join(out)


def test_the_output_has_exactly_v1s_markers() -> None:
    text = printed(
        msgspec.structs.replace(RUN, spec=msgspec.structs.replace(RUN.spec, warnings=())),
        LogText(name="azureml-logs/55_a.txt", offset=0, text="one\n"),
        LogText(name="azureml-logs/70_driver_log.txt", offset=0, text="two\nthr"),
        LogText(name="azureml-logs/70_driver_log.txt", offset=7, text="ee"),
    )
    assert text == (
        "RunId: exp_1_ab\n"
        "Web View: http://x/runs/1\n"
        "\n"
        "Streaming azureml-logs/55_a.txt\n"
        "===============================\n"
        "\n"
        "one\n"
        "\n"
        "Streaming azureml-logs/70_driver_log.txt\n"
        "========================================\n"
        "\n"
        "two\n"
        "three\n"
        "\n"
        "Execution Summary\n"
        "=================\n"
        "RunId: exp_1_ab\n"
        "Web View: http://x/runs/1\n"
        "\n"
    )


def test_warnings_and_the_error_are_in_the_summary_unless_it_is_raised() -> None:
    text = printed(FAILED)
    assert "Warnings:\nchosen for you\n" in text
    error = json.loads(text.partition("Error:\n")[2])
    assert error["error"]["message"] == "ValueError: no"
    assert "Error:" not in printed(FAILED, raising=True)


def test_details_have_v1s_keys() -> None:
    wanted = (
        "runId target status services warnings properties inputDatasets outputDatasets "
        "runDefinition logFiles submittedBy"
    )
    assert " ".join(render_details(RUN, {})) == wanted
    over = msgspec.structs.replace(FAILED, started=NOW, ended=NOW)
    details = render_details(over, {"azureml-logs/a.txt": "http://x"})
    assert details["startTimeUtc"] == "2026-11-15T10:30:01.000250Z"
    assert details["endTimeUtc"] == details["startTimeUtc"]
    assert details["target"] == "sdk"
    assert details["logFiles"] == {"azureml-logs/a.txt": "http://x"}


def test_why_a_run_was_canceled_is_printed_though_it_is_not_raised() -> None:
    late = RunError(code="MaxRunDurationExceeded", message="It took longer than 5 seconds.")
    canceled = msgspec.structs.replace(RUN, state=RunState.CANCELED, error=late)
    for raising in (True, False):
        assert "\nError:\n" in printed(canceled, raising=raising)
        assert "longer than 5 seconds" in printed(canceled, raising=raising)
    by_hand = msgspec.structs.replace(canceled, error=None)
    assert "Error:" not in printed(by_hand)


def test_a_failure_is_told_in_words() -> None:
    text = error_words(FAILED)
    for words in ("exp_1_ab", "ValueError: no", "exit code 1", "rank 0", "Trace", "runyard logs"):
        assert words in text


@pytest.mark.parametrize(
    ("given", "query"),
    [
        (None, []),
        ("a", ["a"]),
        ({"a": "1", "b": None}, ["a=1", "b"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_filters_as_v1_wrote_them(given: object, query: list[str]) -> None:
    assert label_queries(given) == query  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prefix", "folder"),
    [(None, ""), ("outputs", "outputs/"), ("outputs/", "outputs/"), ("./outputs/m", "outputs/m/")],
)
def test_a_prefix_is_a_folder(prefix: str | None, folder: str) -> None:
    assert folder_prefix(prefix) == folder


@pytest.mark.parametrize(
    ("append_prefix", "folder_given", "target"),
    [
        (True, True, "out/outputs/model/a/b.txt"),
        (False, True, "out/a/b.txt"),
        (False, False, "out/outputs/model/a/b.txt"),
    ],
)
def test_the_prefix_is_cut_once_where_a_folder_is_given(
    tmp_path: Path, append_prefix: bool, folder_given: bool, target: str
) -> None:
    name = "outputs/model/a/b.txt"
    plan = plan_downloads(
        [name],
        "outputs/model",
        tmp_path / "out",
        None,
        append_prefix=append_prefix,
        folder_given=folder_given,
    )
    assert plan == {name: tmp_path / target}


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "..", "a\\..\\..\\x", "a\0b", "", ".", "link/x"]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(UserErrorException, match="leads out"):
        inside(folder, name)


@pytest.mark.parametrize("name", ["a", "-rf", "a b/c", "ü", "..a/b..", "outputs/-1.index"])
def test_other_names_stay_as_they_are(tmp_path: Path, name: str) -> None:
    assert inside(tmp_path, name) == tmp_path / name


EXPECTED = {
    "not_found": "UserErrorException",
    "no_model_files": "UserErrorException",
    "invalid": "UserErrorException",
    "conflict": "UserErrorException",
    "unsupported": "UserErrorException",
    "too_large": "UserErrorException",
    "denied": "AuthenticationException",
    "stale": "ServiceException",
    "blobs_missing": "ServiceException",
    "wrong_verb": "ServiceException",
    "engine_failed": "ServiceException",
    "unavailable": "ServiceException",
    "timed_out": "ServiceException",
}


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=lambda cls: cls.code)
def test_every_error_has_its_v1_class_and_its_whole_text(cls: type[RunyardError]) -> None:
    sent = cls("what", why="why", fix="fix")
    got = as_v1(sent)
    assert type(got) is getattr(exceptions, EXPECTED[cls.code])
    assert got.message == str(got) == "what\n  why: why\n  fix: fix"
    assert got.inner_exception is sent
