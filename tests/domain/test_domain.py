"""Tables over the pure nouns."""

import msgspec
import pytest

from runyard.domain import errors
from runyard.domain.errors import BY_CODE, BlobsMissing, Invalid, NotFound, RunyardError
from runyard.domain.files import FileEntry, decode_manifest, encode_manifest, manifest_digest
from runyard.domain.logs import find_log, log_to_follow, rank_log
from runyard.domain.runs import LauncherSpec, RunError, error_place, exit_words, launcher_words
from runyard.domain.states import (
    ACTIVE,
    TERMINAL,
    TRANSITIONS,
    IllegalTransition,
    RunState,
    advance,
)
from runyard.domain.tokens import Grant, Role, mint, verify
from runyard.domain.workspaces import check_experiment_name, check_run_id, check_workspace_name


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert {state.value for state in TERMINAL} == {"Completed", "Failed", "Canceled"}
    assert not ACTIVE & TERMINAL


def test_every_state_leads_to_an_end() -> None:
    for state in ACTIVE:
        reached, edge = {state}, {state}
        while edge:
            edge = {after for one in edge for after in TRANSITIONS[one]} - reached
            reached |= edge
        assert reached & TERMINAL


def test_an_illegal_step_says_what_is_allowed() -> None:
    with pytest.raises(IllegalTransition, match="it is final"):
        advance(RunState.COMPLETED, RunState.RUNNING)
    with pytest.raises(IllegalTransition, match=r"allowed: .*Queued"):
        advance(RunState.PREPARING, RunState.COMPLETED)


@pytest.mark.parametrize("cls", BY_CODE.values(), ids=lambda cls: cls.code)
def test_every_error_survives_the_wire(cls: type[RunyardError]) -> None:
    sent = cls("what", why="why", fix="fix")
    data = msgspec.json.encode(errors.to_wire(sent))
    got = errors.from_wire(msgspec.json.decode(data, type=errors.ErrorBody))
    assert type(got) is cls
    assert str(got) == str(sent) == "what\n  why: why\n  fix: fix"


def test_missing_blobs_survive_the_wire() -> None:
    got = errors.from_wire(errors.to_wire(BlobsMissing("what", digests=("a", "b"))))
    assert isinstance(got, BlobsMissing)
    assert got.digests == ("a", "b")


@pytest.mark.parametrize("why", ["", "first\n  second"])
@pytest.mark.parametrize("fix", ["", "do: this"])
def test_an_error_can_be_had_back_from_its_text(why: str, fix: str) -> None:
    got = errors.from_text(str(Invalid("what\nand more", why=why, fix=fix)))
    assert (got.what, got.why, got.fix) == ("what\nand more", why, fix)


def test_every_error_class_is_in_the_table() -> None:
    import runyard.server.app  # noqa: F401 - what is defined there counts, whoever came first

    assert set(BY_CODE.values()) == set(RunyardError.__subclasses__())
    assert len({cls.status for cls in BY_CODE.values()} - {400}) >= 9


def test_a_tree_has_one_id_in_whatever_order_it_was_walked() -> None:
    one = FileEntry("a.py", "0" * 64, 1)
    two = FileEntry("b/ü .py", "1" * 64, 2, 0o755)
    assert manifest_digest((one, two)) == manifest_digest((two, one))
    assert decode_manifest(encode_manifest((two, one))) == (one, two)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        (["outputs/model.pt", "logs/x.txt"], None),
        (["azureml-logs/20_image_build_log.txt"], "azureml-logs/20_image_build_log.txt"),
        (
            ["azureml-logs/55_azureml-execution.txt", "azureml-logs/70_driver_log.txt"],
            "azureml-logs/70_driver_log.txt",
        ),
        (
            ["azureml-logs/70_driver_log_1.txt", "azureml-logs/70_driver_log_0.txt"],
            "azureml-logs/70_driver_log_0.txt",
        ),
        (
            ["azureml-logs/70_driver_log_10.txt", "azureml-logs/70_driver_log_0.txt"],
            "azureml-logs/70_driver_log_0.txt",
        ),
        (
            ["azureml-logs/70_driver_log_ps_0.txt", "azureml-logs/70_driver_log_worker_0.txt"],
            "azureml-logs/70_driver_log_worker_0.txt",
        ),
    ],
)
def test_the_log_to_follow(names: list[str], expected: str | None) -> None:
    assert log_to_follow(names) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["55_azureml-execution.txt", "70_driver_log_1.txt"], "55_azureml-execution.txt"),
        (["55_azureml-execution.txt", "70_driver_log_ps_0.txt"], "55_azureml-execution.txt"),
        (["70_driver_log_1.txt"], None),
        (["70_driver_log_0.txt", "70_driver_log_1.txt"], "70_driver_log_0.txt"),
        (["70_driver_log_ps_0.txt", "70_driver_log_worker_0.txt"], "70_driver_log_worker_0.txt"),
    ],
)
def test_while_a_run_goes_on_the_log_of_its_first_rank_is_waited_for(
    names: list[str], expected: str | None
) -> None:
    found = log_to_follow([f"azureml-logs/{name}" for name in names], is_over=False)
    assert found == (expected and f"azureml-logs/{expected}")


@pytest.mark.parametrize(
    ("launcher", "rank", "expected"),
    [
        (LauncherSpec(), "0", ""),
        (LauncherSpec(nodes=4), "0", ""),
        (LauncherSpec(kind="mpi", nodes=2, processes_per_node=2), "3", "_3"),
        (LauncherSpec(kind="mpi"), "0", ""),
        (LauncherSpec(kind="pytorch", nodes=2), "0", "_0"),
        (LauncherSpec(kind="tensorflow", workers=2, parameter_servers=1), "1", "_worker_1"),
        (LauncherSpec(kind="tensorflow", workers=2, parameter_servers=1), "2", "_ps_0"),
        (LauncherSpec(kind="tensorflow", workers=2, parameter_servers=1), "ps_0", "_ps_0"),
        (LauncherSpec(kind="tensorflow", workers=1), "0", ""),
    ],
)
def test_the_log_of_a_rank(launcher: LauncherSpec, rank: str, expected: str) -> None:
    assert rank_log(launcher, rank) == f"azureml-logs/70_driver_log{expected}.txt"


@pytest.mark.parametrize(
    ("launcher", "rank", "words"),
    [
        (LauncherSpec(), "1", "It has one process"),
        (LauncherSpec(kind="mpi", nodes=2), "2", "It has 2: 0 to 1"),
        (LauncherSpec(kind="mpi", nodes=2), "-1", "0 to 1"),
        (LauncherSpec(kind="tensorflow", workers=2), "ps_0", "worker_0 to worker_1"),
    ],
)
def test_a_rank_that_is_not_there_is_refused(launcher: LauncherSpec, rank: str, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        rank_log(launcher, rank)


def test_an_error_says_where_it_happened() -> None:
    error = RunError(code="UserError", message="m", rank=3, node=1, exit_code=-9)
    assert error_place(error) == ["rank 3", "node 1", "signal SIGKILL"]
    assert [exit_words(code) for code in (2, -200)] == ["exit code 2", "signal 200"]
    assert error_place(RunError(code="NodeLost", message="m")) == []


@pytest.mark.parametrize(
    ("message", "code", "expected"),
    [
        ("Rank 3 (node 1): ValueError: no", 1, ["exit code 1"]),
        ("worker_3 (gpu-2) ended by signal SIGKILL: it was killed.", -9, []),
        ("Rank 3 ended with exit code 13.", 1, ["exit code 1"]),
        ("Ranking failed", 1, ["rank 3", "node 1", "exit code 1"]),
    ],
)
def test_what_an_errors_words_say_is_not_said_again(
    message: str, code: int, expected: list[str]
) -> None:
    error = RunError(code="UserError", message=message, rank=3, node=1, exit_code=code)
    assert error_place(error) == expected


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        (LauncherSpec(), ""),
        (LauncherSpec(kind="mpi", nodes=2, processes_per_node=2), "MPI, 2 nodes × 2 processes"),
        (LauncherSpec(kind="pytorch", backend="gloo"), "PyTorch (gloo), 1 node × 1 process"),
        (LauncherSpec(kind="tensorflow", nodes=2, workers=2), "TensorFlow, 2 workers on 2 nodes"),
        (
            LauncherSpec(kind="tensorflow", parameter_servers=1),
            "TensorFlow, 1 worker and 1 parameter server on 1 node",
        ),
    ],
)
def test_a_layout_in_words(launcher: LauncherSpec, words: str) -> None:
    assert launcher_words(launcher) == words


def test_a_log_may_be_called_by_its_base_name_if_only_one_has_it() -> None:
    names = ["azureml-logs/60_mpirun_log.txt", "logs/a/x.txt", "logs/b/x.txt", "x.log"]
    assert find_log(names, "60_mpirun_log.txt") == names[0]
    assert find_log(names, "logs/a/x.txt") == "logs/a/x.txt"
    assert find_log(names, "x.txt") is None
    assert find_log(names, "nothing.txt") is None


def test_a_token_grants_what_it_was_made_for() -> None:
    token = mint(b"secret", Role.RUN, "exp_1_ab.c", 100)
    assert verify(b"secret", token, 99) == Grant(role=Role.RUN, subject="exp_1_ab.c")
    assert verify(b"secret", token, 101) is None
    assert verify(b"other", token, 99) is None


@pytest.mark.parametrize("token", ["", ".", "...", "owner..1.x", "run.abc", "ü.ü.ü.ü", "a" * 9999])
def test_a_forged_token_grants_nothing(token: str) -> None:
    assert verify(b"secret", token, 0) is None


def test_a_token_cannot_be_given_another_role() -> None:
    token = mint(b"secret", Role.VIEWER, "run", 100)
    assert verify(b"secret", token.replace("viewer", "owner"), 0) is None


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "x" * 256, "../up"])
def test_bad_names_are_refused(name: str) -> None:
    for check in (check_experiment_name, check_workspace_name):
        with pytest.raises(Invalid):
            check(name)
    with pytest.raises(Invalid):
        check_run_id(name + "/" if len(name) == 256 else name)


def test_good_names_pass() -> None:
    assert check_experiment_name("Tutorial-pytorch-birds") == "Tutorial-pytorch-birds"
    assert check_run_id("tf-mnist_1605_0a1b2c3d") == "tf-mnist_1605_0a1b2c3d"
