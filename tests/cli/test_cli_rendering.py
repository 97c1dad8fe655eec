"""What the command line prints, as pure functions of what it knows."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from runyard.cli.compute import changes_by
from runyard.cli.console import (
    MAX_CELL,
    MAX_NAME,
    Cell,
    clip,
    fields,
    plain,
    render_table,
    text_width,
)
from runyard.cli.doctor import (
    Check,
    Verdict,
    check_clusters,
    check_database,
    check_home,
    check_python,
    check_space,
    check_sync,
    check_token,
)
from runyard.cli.render import (
    attempt_line,
    command_line,
    environment_line,
    error_text,
    last_values,
    nodes_line,
    remark,
    render_age,
    render_span,
    run_headers,
    run_row,
    size_text,
    target_line,
)
from runyard.cli.scope import is_called
from runyard.cli.submitting import experiment_name, place_script
from runyard.domain.compute import (
    ComputeRecord,
    EngineRef,
    NodeResources,
    NodeUse,
    VmSize,
)
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.metrics import MetricKind, Series
from runyard.domain.runs import Attempt, RunError, RunRecord, RunSpec, ScriptSpec
from runyard.domain.states import RunState

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
RUN = RunRecord(
    id="digits_1_ab12",
    uid="u",
    spec=RunSpec(
        workspace="w",
        experiment="digits",
        script=ScriptSpec(
            arguments=("train.py", "--name", "a b"),
            snapshot="s",
            environment=EnvironmentSpec(name="e", python="3.9", pip=("numpy",)),
        ),
    ),
    state=RunState.RUNNING,
    created=NOW - timedelta(hours=2),
    started=NOW - timedelta(seconds=95),
)
ERROR = RunError(code="UserError", message="boom\nmore", rank=1, exit_code=3, traceback="Trace\n")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (3.21, "3.2s"),
        (59.6, "1m 0s"),
        (250, "4m 10s"),
        (7500, "2h 5m"),
        (273_700, "3d 4h"),
    ],
)
def test_spans_have_at_most_two_units(seconds: float, expected: str) -> None:
    assert render_span(timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(-5, "0s"), (12, "12s"), (200, "3m")])
def test_ages_have_one_unit(seconds: int, expected: str) -> None:
    assert render_age(NOW - timedelta(seconds=seconds), NOW) == expected


def test_a_row_says_what_a_run_waits_for_or_its_first_error() -> None:
    texts = [cell.text for cell in run_row(RUN, NOW)]
    assert texts == ["digits_1_ab12", "digits", "Running", "2h", "1m 35s", ""]
    assert len(texts) == len(run_headers())
    assert remark(msgspec.structs.replace(RUN, waiting="a free slot")) == "a free slot"
    assert remark(msgspec.structs.replace(RUN, error=ERROR)) == "boom"


def test_a_child_is_marked_and_a_list_of_all_workspaces_names_them() -> None:
    child = msgspec.structs.replace(RUN, spec=msgspec.structs.replace(RUN.spec, parent="p"))
    texts = [cell.text for cell in run_row(child, NOW, everywhere=True)]
    assert texts[:3] == ["↳ digits_1_ab12", "w", "digits"]
    assert run_headers(everywhere=True)[:3] == ("RUN", "WORKSPACE", "EXPERIMENT")


def test_names_of_strangers_are_cut_and_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    fields({"n" * 10_000: "1", "a\nb": "2", "日本": "3"})
    long, odd, wide = capsys.readouterr().out.splitlines()
    assert long == "n" * (MAX_NAME - 1) + "…  1"
    assert odd == r"a\nb".ljust(MAX_NAME) + "  2"
    assert text_width(wide) == MAX_NAME + 3
    (_, row) = render_table(("A",), [[Cell("x" * 10_000)]], width=None)
    assert len(row) == MAX_CELL


def test_the_error_has_rank_exit_code_and_traceback() -> None:
    failed = msgspec.structs.replace(RUN, error=ERROR)
    assert error_text(failed) == "UserError (rank 1, exit code 3): boom\nmore\nTrace"


def test_a_run_that_is_tried_again_says_why() -> None:
    killed = RunError(code="UserError", message="Killed.", rank=3, node=1, exit_code=-9)
    failed = Attempt(
        attempt=1,
        started=NOW,
        ended=NOW + timedelta(seconds=3),
        error=killed,
        nodes=(NodeUse(id="gpu-1"), NodeUse(id="gpu-2")),
    )
    assert attempt_line(failed) == (
        "failed after 3.0s on gpu-1, gpu-2: UserError (rank 3, node 1, signal SIGKILL): Killed."
    )
    never = msgspec.structs.replace(failed, started=None, nodes=())
    assert attempt_line(never).startswith("failed before its script ran: UserError")
    assert RUN.spec.script is not None
    script = msgspec.structs.replace(RUN.spec.script, max_restarts=2)
    spec = msgspec.structs.replace(RUN.spec, script=script)
    again = msgspec.structs.replace(RUN, spec=spec, attempt=2, attempts=(failed,), waiting="")
    assert remark(again) == "attempt 2 of 3, after: Killed."
    waits = msgspec.structs.replace(again, waiting="waits for 2 nodes")
    assert remark(waits) == "waits for 2 nodes"


def test_the_command_can_be_typed_again() -> None:
    assert command_line(RUN) == "python train.py --name 'a b'"


def test_environments_in_words() -> None:
    assert environment_line(EnvironmentSpec(name="e", python="3.9", pip=("a",))) == (
        "e (Python 3.9, 1 package)"
    )
    managed = EnvironmentSpec(name="e", user_managed=True, interpreter="/x/python")
    assert environment_line(managed) == "e (the interpreter /x/python, as it is)"


def test_metrics_are_shown_by_their_last_values() -> None:
    def series(name: str, *values: object, kind: MetricKind = MetricKind.SCALAR) -> Series:
        many = len(values)
        return Series(
            name=name, kind=kind, values=list(values), steps=[None] * many, times=[0.0] * many
        )

    assert last_values(
        [
            series("loss", 0.5, 0.123456789),
            series("nan", {"f": "nan"}),
            series("word", "x" * 200),
            series("cpu", 1.0, kind=MetricKind.SYSTEM),
            series("mix", 1, 2),
            series("mix", [7], kind=MetricKind.LIST),
        ]
    ) == {
        "loss": "0.123457  (last of 2)",
        "nan": "nan",
        "word": "x" * 79 + "…",
        "mix": "2  (last of 3)",
    }


def test_sizes_in_words() -> None:
    assert [size_text(size) for size in (0, 999, 1500, 2_500_000, 10**13)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "10.0 TB",
    ]


def test_columns_are_aligned_also_for_wide_characters() -> None:
    rows = [[Cell("日本"), Cell("x")], [Cell("a"), Cell("y", "red")]]
    assert render_table(("A", "B"), rows, width=None) == ["A     B", "日本  x", "a     y"]
    assert render_table(("A", "B"), rows, width=None, coloured=True)[2].endswith("\x1b[31my\x1b[0m")


def test_a_table_gives_way_to_the_terminal() -> None:
    rows = [[Cell("run-1"), Cell("n" * 100)]]
    lines = render_table(("RUN", "NOTE"), rows, width=30, shrink=("NOTE",))
    assert max(map(text_width, lines)) == 30
    assert lines[1].startswith("run-1  nnn")
    assert lines[1].endswith("…")


def test_text_of_strangers_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[2Jb\rc\td\ne") == r"a\x1b[2Jb\rc d\ne"
    assert plain("a\nb", keep_lines=True) == "a\nb"
    assert clip("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits_1", True),
        ("digits_1_ab12", True),
        ("ab1", True),
        ("1_ab", False),
        ("", False),
        ("x", False),
    ],
)
def test_a_run_is_called_by_a_beginning(name: str, expected: bool) -> None:
    assert is_called("digits_1_ab12", name) is expected


def test_the_script_finds_its_place(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    (tmp_path / "elsewhere").mkdir()
    here, source = tmp_path / "elsewhere", tmp_path / "src"
    assert place_script("src/train.py", None, tmp_path) == (tmp_path, "src/train.py")
    assert place_script("../src/train.py", None, here) == (source, "train.py")
    assert place_script("train.py", source, tmp_path) == (source, "train.py")
    assert place_script("src/train.py", source, tmp_path) == (source, "train.py")


@pytest.mark.parametrize(
    ("script", "expected"), [("a/train model.py", "train-model"), ("ä.py", "script"), ("x", "x")]
)
def test_an_experiment_is_called_after_its_script(script: str, expected: str) -> None:
    assert experiment_name(script) == expected


def verdicts(*checks: Check) -> list[str]:
    return [str(check.verdict) for check in checks]


def test_the_doctor_judges(tmp_path: Path) -> None:
    assert verdicts(check_python((3, 11, 0)), check_python((3, 10, 9))) == ["ok", "fail"]
    assert verdicts(*map(check_space, (10**12, 10**9, 10**6))) == ["ok", "warn", "fail"]
    assert verdicts(check_sync(0.003), check_sync(0.2)) == ["ok", "warn"]
    assert verdicts(check_database("sqlite:///x"), check_database("mysql://u:secret@h/d")) == [
        "ok",
        "fail",
    ]
    assert "secret" not in check_database("mysql://u:secret@h/d").text
    (tmp_path / "file").touch()
    assert verdicts(check_home(tmp_path / "a" / "b"), check_home(tmp_path / "file")) == [
        "ok",
        "fail",
    ]


CLUSTER = ComputeRecord(
    id="c",
    workspace="w",
    name="big",
    created=NOW,
    modified=NOW,
    size=VmSize(name="", cores=0, memory_gb=0),
    max_nodes=None,
    node_cores=0,
    allocation_since=NOW,
    engine=EngineRef(kind="slurm", options={"partition": "gpu"}),
    attached=True,
)


def test_the_doctor_says_which_clusters_cannot_be_used() -> None:
    dead = msgspec.structs.replace(CLUSTER, name="dead", warnings=("Nobody answers.",))
    found = list(check_clusters([CLUSTER, dead]))
    assert [(one.name, one.verdict) for one in found] == [
        ("cluster big", Verdict.OK),
        ("cluster dead", Verdict.WARN),
    ]
    assert found[1].text == "Nobody answers."
    assert "runyard compute show dead" in found[1].fix


def test_attaching_again_says_what_it_changed() -> None:
    now = msgspec.structs.replace(
        CLUSTER,
        max_nodes=2,
        resources=NodeResources(cores=4),
        size=VmSize(name="", cores=4, memory_gb=0),
        engine=EngineRef(kind="slurm", options={"partition": "cpu", "qos": "high"}),
    )
    assert changes_by(CLUSTER, CLUSTER) == []
    assert changes_by(CLUSTER, now) == [
        "cluster slurm gpu → slurm cpu",
        "options none → qos=high",
        "size the cluster's → 4 cores, any memory",
        "nodes 0–any → 0–2",
    ]


def test_a_run_is_shown_with_its_place_on_a_cluster() -> None:
    nodes = (NodeUse(id="big-1", host="n17"), NodeUse(id="big-2", cores=4, gpus=("0",), host="n18"))
    run = msgspec.structs.replace(RUN, nodes=nodes, cluster_job="4711")
    assert nodes_line(run) == "big-1 on n17, big-2 on n18 (cores: 4, GPUs: 0)"
    assert target_line(run) == "local, job 4711"
    assert target_line(RUN) == "local"
    assert nodes_line(msgspec.structs.replace(RUN, nodes=(NodeUse(id="local-1"),))) == ""


def test_the_doctor_wants_the_token_closed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    assert check_token(token).verdict is Verdict.OK
    token.write_text("t")
    token.chmod(0o644)
    assert check_token(token).verdict is Verdict.WARN
    token.chmod(0o600)
    assert check_token(token).verdict is Verdict.OK
