"""The command line as people and programs use it: real processes, a real server, real runs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runyard import __version__

GOOD = """
import os, sys
from azureml.core import Run
run = Run.get_context()
run.log("loss", 0.5); run.log("loss", float("nan"))
print("hello", *sys.argv[1:], os.environ["COLOUR"])
os.makedirs("outputs", exist_ok=True)
open("outputs/model.txt", "w").write("weights")
"""
BAD = "print('about to fail')\nraise ValueError('the learning rate is \\x1b[31mnegative')\n"
LONG = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"


class Yard:
    """A folder with a workspace, and the command line in it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"}
        self.environ.pop("RUNYARD_URL", None)

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "runyard", *arguments],
            cwd=self.folder,
            env={**self.environ, **options.pop("environ", {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **options,
        )

    def run(
        self, *arguments: str, code: int = 0, environ: dict[str, str] | None = None
    ) -> tuple[str, str]:
        with self.start(*arguments, environ=environ or {}) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        assert "Traceback (most recent" not in err.replace(out, "") or code == 0
        return out, err

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, code=code)[0])


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    base = tmp_path_factory.mktemp("cli")
    folder = base / "my project"
    folder.mkdir()
    made = Yard(folder, base / "home")
    made.run("init", "digits")
    for name, text in (("good.py", GOOD), ("bad.py", BAD), ("long.py", LONG)):
        (folder / name).write_text(text)
    yield made
    made.run("down")


@pytest.fixture(scope="module")
def good(yard: Yard) -> dict[str, Any]:
    """The record of a run that went well."""
    record = yard.json(
        *("submit", "--json", "--wait", "--experiment", "ok", "--name", "My run"),
        *("--env-var", "COLOUR=blue", "--tag", "stage=test", "--python", sys.executable),
        *("good.py", "--lr", "0.1", "--json", "--tag"),
    )
    assert isinstance(record, dict)
    return record


@pytest.fixture(scope="module")
def bad(yard: Yard) -> dict[str, Any]:
    """The record of a run that failed."""
    record = yard.json("submit", "--json", "--wait", "--python", sys.executable, "bad.py", code=1)
    assert isinstance(record, dict)
    return record


def test_submit_keeps_what_was_asked(good: dict[str, Any]) -> None:
    assert good["state"] == "Completed"
    assert good["display_name"] == "My run"
    assert good["tags"]["stage"] == "test"
    assert good["spec"]["experiment"] == "ok"
    # What follows the script is the script's, even if it looks like ours.
    assert good["spec"]["script"]["arguments"] == ["good.py", "--lr", "0.1", "--json", "--tag"]


def test_logs_show_what_the_run_printed(yard: Yard, good: dict[str, Any]) -> None:
    assert yard.run("logs", good["id"])[0] == "hello --lr 0.1 --json --tag blue\n"
    assert "hello --lr 0.1" in yard.run("logs", "-f", good["id"])[0]
    document = yard.json("logs", "-f", "--json", good["id"])
    assert (document["state"], document["text"].startswith("hello")) == ("Completed", True)
    listed = [entry["path"] for entry in yard.json("logs", good["id"], "--list", "--json")]
    assert "azureml-logs/70_driver_log.txt" in listed
    assert "70_driver_log.txt" in yard.run("logs", good["id"], "--list")[0]
    other = yard.run("logs", good["id"], "--log", "azureml-logs/55_azureml-execution.txt")[0]
    assert "started rank 0" in other
    assert "It has: azureml-logs/" in yard.run("logs", good["id"], "--log", "nope", code=1)[1]


def test_show_has_everything(yard: Yard, good: dict[str, Any]) -> None:
    out = yard.run("show", good["id"])[0]
    for expected in (
        "Completed",
        "My run",
        "python good.py --lr 0.1",
        "nan  (last of 2)",
        "outputs/model.txt",
        "stage",
        "http://127.0.0.1:",
        "Finalizing",
    ):
        assert expected in out
    document = yard.json("show", "--json", good["id"])
    assert set(document) == {"run", "metrics", "files", "models", "page"}
    assert document["metrics"]["loss"] == [0.5, {"f": "nan"}]


def test_a_failed_run_says_why_everywhere(yard: Yard, bad: dict[str, Any]) -> None:
    assert bad["state"] == "Failed"
    out = yard.run("show", bad["id"])[0]
    assert "ValueError: the learning rate" in out
    assert "exit code 1" in out
    assert "\x1b" not in out
    line = next(line for line in yard.run("ls")[0].splitlines() if line.startswith(bad["id"]))
    assert "ValueError" in line
    err = yard.run("logs", "-f", bad["id"])[1]
    assert "is Failed" in err


def test_ls_is_newest_first_and_narrowed(
    yard: Yard, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    times = [run["created"] for run in yard.json("ls", "--json")["runs"]]
    assert times == sorted(times, reverse=True)

    def ids(*options: str) -> set[str]:
        return {run["id"] for run in yard.json("ls", "--json", *options)["runs"]}

    assert ids("--experiment", "ok") == {good["id"]}
    assert bad["id"] in ids("--state", "failed")
    assert good["id"] not in ids("--state", "failed")
    assert ids("--tag", "stage=test") == {good["id"]}
    assert len(ids("--limit", "1")) == 1
    assert ids("--workspace", "elsewhere-1", "--all-workspaces") >= {good["id"], bad["id"]}
    assert "There are more" in yard.run("ls", "--limit", "1")[1]
    out, err = yard.run("ls", "--experiment", "nothing-here")
    assert (out, "No runs that fit" in err) == ("", True)


def test_children_are_listed_on_demand_and_never_the_latest(yard: Yard) -> None:
    (yard.folder / "parent.py").write_text(
        "from azureml.core import Run\nwith Run.get_context().child_run('a child'): pass\n"
    )
    options = ("--wait", "--experiment", "family", "--python", sys.executable)
    parent = yard.run("submit", *options, "parent.py")[0].strip()
    assert yard.json("show", "--json", "latest")["run"]["id"] == parent
    assert "↳" not in yard.run("ls", "--experiment", "family")[0]
    listed = yard.run("ls", "--experiment", "family", "--children")[0].splitlines()
    assert [line.startswith("↳ ") for line in listed] == [False, True, False]
    assert listed[2].startswith(parent)


def test_outside_a_workspace_the_list_names_them(yard: Yard, good: dict[str, Any]) -> None:
    outside = Yard(yard.folder.parent, Path(yard.environ["RUNYARD_HOME"]))
    head, *lines = outside.run("ls")[0].splitlines()
    assert head.split()[:2] == ["RUN", "WORKSPACE"]
    assert good["id"] in {line.split()[0] for line in lines}
    assert {line.split()[1] for line in lines} == {"digits"}


def test_a_run_is_found_by_a_part_of_its_name(
    yard: Yard, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert yard.json("show", "--json", good["id"][:-3])["run"]["id"] == good["id"]
    assert yard.json("show", "--json", good["id"].rpartition("_")[2])["run"]["id"] == good["id"]
    newest = yard.json("ls", "--json", "--limit", "1")["runs"][0]["id"]
    assert yard.json("show", "--json", "latest")["run"]["id"] == newest
    document = json.loads(yard.run("show", "--json", "nothing", code=1)[0])
    assert document["error"]["code"] == "not_found"
    assert "runyard ls" in document["error"]["fix"]
    assert set(document["error"]) == {"code", "what", "why", "fix"}


def test_an_ambiguous_name_lists_what_it_may_mean(yard: Yard) -> None:
    first, second = (
        yard.run("submit", "--experiment", "twin", "--python", sys.executable, "bad.py")[0].strip()
        for _ in range(2)
    )
    err = yard.run("cancel", "twin", code=1)[1]
    assert "may be any of 2 runs" in err
    assert first in err
    assert second in err


def test_a_long_run_is_followed_and_canceled(yard: Yard) -> None:
    run_id = yard.run("submit", "--python", sys.executable, "long.py")[0].strip()
    with yard.start("logs", "-f", run_id) as follower:
        assert follower.stdout is not None
        assert any(line == "waiting\n" for line in follower.stdout)
        assert yard.json("cancel", "--json", run_id)[0]["state"] in ("CancelRequested", "Canceled")
        _, err = follower.communicate(timeout=30)
    assert follower.returncode == 0
    assert f"Run {run_id} is Canceled" in err


def test_interrupting_a_follower_is_quiet_and_leaves_the_run(yard: Yard) -> None:
    with yard.start("submit", "-f", "--python", sys.executable, "long.py") as follower:
        assert follower.stdout is not None
        run_id = follower.stdout.readline().strip()
        assert any(line == "waiting\n" for line in follower.stdout)
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "The run goes on" in err
    assert "Traceback" not in err
    assert yard.json("show", "--json", run_id)["run"]["state"] == "Running"
    yard.run("cancel", run_id)


def test_a_reader_that_goes_away_is_no_error(yard: Yard, good: dict[str, Any]) -> None:
    with yard.start("show", "--json", good["id"]) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_open_gives_a_link_that_opens(yard: Yard, good: dict[str, Any]) -> None:
    from urllib.request import HTTPCookieProcessor, build_opener

    url = yard.run("open", good["id"])[0].strip()
    with build_opener(HTTPCookieProcessor()).open(url, timeout=10) as page:
        assert good["id"] in page.read().decode()


def test_open_without_a_run_gives_a_link_to_the_list(yard: Yard, good: dict[str, Any]) -> None:
    from urllib.request import HTTPCookieProcessor, build_opener

    url = yard.run("open")[0].strip()
    with build_opener(HTTPCookieProcessor()).open(url, timeout=10) as page:
        assert good["id"] in page.read().decode()


def test_init_is_idempotent_and_never_takes_anothers_folder(yard: Yard) -> None:
    before = (yard.folder / "config.json").read_text()
    assert yard.json("init", "--json")["workspace"] == "digits"
    assert "belongs to workspace 'digits'" in yard.run("init", "other", code=1)[1]
    assert (yard.folder / "config.json").read_text() == before
    other = Yard(yard.folder.parent / "Höhle 7", Path(yard.environ["RUNYARD_HOME"]))
    other.folder.mkdir()
    assert other.json("init", "--json")["workspace"] == "H-hle-7"
    assert other.json("init", "--force", "--json", "mine")["workspace"] == "mine"
    assert "is not a valid workspace name" in other.run("init", "--force", "a b", code=1)[1]


@pytest.mark.parametrize(
    ("text", "why"), [("{broken", "Expecting property"), ("{}", "no 'workspace_name'")]
)
def test_a_damaged_config_is_said_alike_everywhere_and_can_be_mended(
    yard: Yard, tmp_path: Path, text: str, why: str
) -> None:
    damaged = Yard(tmp_path, Path(yard.environ["RUNYARD_HOME"]))
    config = tmp_path / ".azureml" / "config.json"
    config.parent.mkdir()
    config.write_text(text)
    (tmp_path / "x.py").touch()
    for command in (["ls"], ["init"], ["submit", "x.py"]):
        told = json.loads(damaged.run(command[0], "--json", *command[1:], code=1)[0])["error"]
        assert told["what"] == f"The workspace configuration '{config}' cannot be used."
        assert why in told["why"]
        assert told["fix"].endswith("runyard init NAME")
    # What is about the server alone does not need it.
    assert damaged.json("status", "--json")["running"] is True
    assert "cannot be used" in damaged.run("status")[0]
    assert "already runs" in damaged.run("up", "--detach")[0]
    checks = {check["name"]: check for check in damaged.json("doctor", "--json", code=1)}
    assert checks["workspace"]["verdict"] == "fail"
    assert why in checks["workspace"]["text"]
    assert checks["workspace"]["fix"].startswith("Correct it, or")
    assert checks["server"]["verdict"] == "ok"
    assert "config.json.damaged now" in damaged.run("init", "mended")[1]
    assert (tmp_path / ".azureml" / "config.json.damaged").read_text() == text
    assert "mended" in damaged.run("status")[0]


def test_status_says_where_the_server_is(yard: Yard) -> None:
    document = yard.json("status", "--json")
    assert document["running"] is True
    assert document["version"] == __version__
    assert document["home"] == yard.environ["RUNYARD_HOME"]
    assert document["url"].startswith("http://127.0.0.1:")
    os.kill(document["pid"], 0)
    assert "workspace" in yard.run("status")[0]
    assert "already runs" in yard.run("up")[0]


def test_the_doctor_finds_this_machine_well(yard: Yard) -> None:
    checks = {check["name"]: check for check in yard.json("doctor", "--json")}
    assert checks["server"]["verdict"] == "ok"
    assert checks["token"]["verdict"] == "ok"
    assert "workspace" in yard.run("doctor")[0]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["nonsense"], 2, "No such command"),
        (["ls", "--state", "Sleeping"], 2, "Invalid value"),
        (["ls", "--limit", "0"], 2, "Invalid value"),
        (["cancel"], 2, "Missing argument"),
        (["submit", "--tag", "x", "bad.py"], 2, "KEY=VALUE"),
        (["submit", "missing.py"], 1, "missing.py"),
        (["submit", "--requirements", "config.json", "--python", "/x", "bad.py"], 2, "a version"),
        (["submit", "--experiment", "a b", "bad.py"], 1, "not a valid experiment name"),
    ],
)
def test_wrong_usage_is_said(yard: Yard, arguments: list[str], code: int, expected: str) -> None:
    out, err = yard.run(*arguments, code=code)
    assert (out, expected in err) == ("", True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RUNYARD_URL": "http://127.0.0.1:9"}, "RUNYARD_TOKEN is not"),
        ({"RUNYARD_URL": "nonsense", "RUNYARD_TOKEN": "t"}, "is not the address of a server"),
        ({"RUNYARD_PORT": "many"}, "The setting RUNYARD_PORT='many' makes no sense"),
        ({"RUNYARD_URL": "http://127.0.0.1:9", "RUNYARD_TOKEN": "t"}, "Check RUNYARD_URL"),
    ],
)
def test_a_wrong_setting_is_said(yard: Yard, environ: dict[str, str], expected: str) -> None:
    assert expected in yard.run("ls", code=1, environ=environ)[1]


def test_the_doctor_says_that_a_token_does_not_work(yard: Yard) -> None:
    remote = {"RUNYARD_URL": yard.json("status", "--json")["url"], "RUNYARD_TOKEN": "wrong"}
    checks = json.loads(yard.run("doctor", "--json", code=1, environ=remote)[0])
    assert next(check for check in checks if check["name"] == "token")["verdict"] == "fail"
    token = Path(yard.environ["RUNYARD_HOME"]) / "token"
    good = token.read_text()
    try:
        token.write_text("another" * 5)
        checks = yard.json("doctor", "--json", code=1)
        check = next(check for check in checks if check["name"] == "token")
        assert check["verdict"] == "fail"
        assert "runyard down && runyard up --detach" in check["fix"]
    finally:
        token.write_text(good)


def test_the_server_in_the_foreground_stops_with_ctrl_c(tmp_path: Path) -> None:
    yard = Yard(tmp_path, tmp_path / "home")
    assert yard.json("status", "--json", code=1)["running"] is False
    with yard.start("up") as process:
        assert process.stderr is not None
        assert any("Ctrl-C stops it" in line for line in process.stderr)
        pid = yard.json("status", "--json")["pid"]
        assert "already runs" in yard.run("up", "--detach")[0]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert yard.json("down", "--json") == {"stopped": False, "services": []}


def test_a_folder_without_a_workspace_is_told_to_make_one(tmp_path: Path) -> None:
    yard = Yard(tmp_path, tmp_path / "home")
    (tmp_path / "x.py").touch()
    assert "runyard init" in yard.run("submit", "x.py", code=1)[1]
    assert not (tmp_path / "home").exists()


def test_the_version_is_told_both_ways() -> None:
    for arguments in (["--version"], ["-V"]):
        done = subprocess.run(
            [sys.executable, "-m", "runyard", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"runyard {__version__}\n"
