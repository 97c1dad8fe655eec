"""Whole roads through the SDK: a real server process, a real engine, real scripts."""

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from runyard import Environment, Experiment, Run, RunConfiguration, ScriptRun, ScriptRunConfig
from runyard.sdk import embedded
from runyard.sdk.authentication import InteractiveLoginAuthentication
from runyard.sdk.exceptions import (
    ActivityFailedException,
    AuthenticationException,
    ExperimentExecutionException,
    RunEnvironmentException,
    SnapshotException,
    UserErrorException,
    WorkspaceException,
)
from runyard.sdk.workspace import Workspace
from runyard.settings import load_settings

pytestmark = pytest.mark.story


def put(folder: Path, **scripts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in scripts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


TRAIN = """
    import argparse, os
    from azureml.core import Run

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    run = Run.get_context()
    for epoch in range(3):
        run.log("loss", 1 / (epoch + 1))
    run.log("lr", parser.parse_args().lr)
    os.makedirs("outputs/model/deep", exist_ok=True)
    for name in ("a.txt", "deep/b.txt", "-1.index"):
        with open("outputs/model/" + name, "w") as file:
            file.write(name)
    print("trained")
"""


@pytest.fixture
def source(project: Path) -> Path:
    return put(project / "src", train=TRAIN)


def test_a_v1_script_is_submitted_followed_and_kept(
    ws: Workspace,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src = ScriptRunConfig(source_directory="./src", script="train.py", arguments=["--lr", 0.01])
    run = Experiment(ws, "tf-mnist").submit(src, tags={"purpose": "story", "n": 3})
    assert isinstance(run, ScriptRun)
    details = run.wait_for_completion(show_output=True)

    out = capsys.readouterr().out
    url = next(line for line in out.splitlines() if line.startswith("Web View: "))
    assert out.startswith(f"RunId: {run.id}\n{url}\n\nStreaming azureml-logs/")
    assert "Streaming azureml-logs/70_driver_log.txt\n" + "=" * 40 + "\n\ntrained\n" in out
    assert f"\nExecution Summary\n{'=' * 17}\nRunId: {run.id}\n{url}\n" in out

    assert details["status"] == run.get_status() == "Completed"
    assert run.get_metrics() == {"loss": [1.0, 0.5, 1 / 3], "lr": 0.01}
    assert run.get_metrics("lr") == {"lr": 0.01}
    assert run.get_tags() == {"purpose": "story", "n": "3"}
    definition = details["runDefinition"]
    assert isinstance(definition, dict)
    assert definition["arguments"] == ["--lr", "0.01"]
    assert sys.executable in json.dumps(details["warnings"])

    run.download_files(prefix="outputs/model", output_directory="model", append_prefix=False)
    assert sorted(os.listdir("model")) == ["-1.index", "a.txt", "deep"]
    run.download_files(prefix="outputs/model/deep", output_directory="kept")
    assert Path("kept/outputs/model/deep/b.txt").read_text() == "deep/b.txt"
    run.download_file("outputs/model/a.txt")
    assert Path("a.txt").read_text() == "a.txt"
    run.download_file("outputs/model/deep/b.txt", output_file_path="kept")
    assert Path("kept/b.txt").read_text() == "deep/b.txt"
    with pytest.raises(UserErrorException, match=r"Did you mean 'outputs/model/a.txt'"):
        run.download_file("outputs/model/a.tx")

    logs = run.get_all_logs(destination="logs-here")
    assert "logs-here/azureml-logs/70_driver_log.txt" in logs
    with_logs = run.get_details_with_logs()["logFiles"]
    assert isinstance(with_logs, dict)
    assert with_logs["azureml-logs/70_driver_log.txt"] == "trained\n"
    monkeypatch.setattr("runyard.sdk.run_file_family.LOG_SHOWN_BYTES", 3)
    cut = run.get_details_with_logs()["logFiles"]
    assert isinstance(cut, dict)
    assert cut["azureml-logs/70_driver_log.txt"] == (
        "… the first 5 bytes are left out; see run.get_all_logs()\ned\n"
    )

    archive = run.restore_snapshot(path="restored")
    with zipfile.ZipFile(archive) as packed:
        assert packed.namelist() == ["train.py"]
        assert packed.read("train.py").decode() == (source / "train.py").read_text()
    assert run.get_environment().python.interpreter_path == sys.executable


def test_a_run_is_still_there_for_another_handle(ws: Workspace, source: Path) -> None:
    experiment = Experiment(ws, "again")
    run = experiment.submit(ScriptRunConfig("src", "train.py", ["--lr", 1]), tags={"k": "v"})
    run.wait_for_completion()
    for other in (Run(experiment, run.id), Run.get(ws, run.id), ws.get_run(run.id)):
        assert other == run
        assert other.status == "Completed"
        assert str(other) == (
            f"Run(Experiment: again,\nId: {run.id},\nType: azureml.scriptrun,\nStatus: Completed)"
        )
    second = experiment.submit(ScriptRunConfig("src", "train.py", ["--lr", 2]))
    assert second.get_snapshot_id() == run.get_snapshot_id()
    second.wait_for_completion()
    assert [one.id for one in experiment.get_runs()] == [second.id, run.id]
    assert [one.id for one in experiment.get_runs(tags={"k": "v"})] == [run.id]
    assert [one.id for one in Run.list(experiment, tags="k")] == [run.id]
    assert [one.number for one in experiment.get_runs()] == [2, 1]
    assert "again" in ws.experiments
    assert [one.name for one in Experiment.list(ws, "again")] == ["again"]
    with pytest.raises(UserErrorException, match="not in experiment"):
        Run(Experiment(ws, "other"), run.id)
    with pytest.raises(UserErrorException, match="nope"):
        ws.get_run("nope")


def test_a_failing_script_says_why(ws: Workspace, project: Path) -> None:
    put(project / "bad", fail="raise ValueError('no data')")
    run = Experiment(ws, "failing").submit(ScriptRunConfig("bad", "fail.py"))
    with pytest.raises(ActivityFailedException, match="ValueError: no data") as caught:
        run.wait_for_completion()
    assert run.id in caught.value.message
    details = run.wait_for_completion(raise_on_error=False)
    assert details["status"] == "Failed"
    assert "no data" in json.dumps(details["error"])


def test_a_command_runs_in_a_shell_with_the_environments_python(
    ws: Workspace, project: Path
) -> None:
    put(project / "cmd", one="import sys; print('got', sys.argv[1])")
    config = ScriptRunConfig("cmd", command=["python", "one.py", 7, "&&", "echo", "$GREETING"])
    config.run_config.environment_variables = {"GREETING": "hello there"}
    run = Experiment(ws, "commands").submit(config)
    run.wait_for_completion()
    logs = run.get_details_with_logs()["logFiles"]
    assert isinstance(logs, dict)
    assert logs["azureml-logs/70_driver_log.txt"] == "got 7\nhello there\n"


def test_a_run_can_be_canceled_and_that_is_no_error(ws: Workspace, project: Path) -> None:
    put(project / "long", wait="import time; print('up', flush=True); time.sleep(600)")
    run = Experiment(ws, "canceled").submit(ScriptRunConfig("long", "wait.py"))
    run.cancel()
    assert run.wait_for_completion()["status"] == "Canceled"


def test_control_c_ends_the_waiting_and_not_the_run(
    ws: Workspace, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(project / "long", wait="import time; print('up', flush=True); time.sleep(600)")
    run = Experiment(ws, "interrupted").submit(ScriptRunConfig("long", "wait.py"))

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            if "up" in text.splitlines():
                raise KeyboardInterrupt
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Interrupted())
    with pytest.raises(ExperimentExecutionException, match="goes on"):
        run.wait_for_completion(show_output=True)
    assert run.get_status() == "Running"
    run.cancel()
    run.wait_for_completion()


def test_following_goes_on_when_the_server_is_killed(
    ws: Workspace, project: Path, server_home: Path
) -> None:
    put(
        project / "long",
        wait="""
        import os, time
        for number in range(5):
            print("line", number, flush=True)
        while not os.path.exists({flag!r}):
            time.sleep(0.01)
        print("last line")
        """.format(flag=str(project / "flag")),
    )
    run = Experiment(ws, "killed").submit(ScriptRunConfig("long", "wait.py"))
    settings = load_settings({"RUNYARD_HOME": str(server_home)})

    class Killing(io.StringIO):
        def write(self, text: str) -> int:
            server = embedded.status(settings).server
            if "line 4" in text and server is not None and not (project / "flag").exists():
                os.kill(server.pid, signal.SIGKILL)
                (project / "flag").touch()
            return super().write(text)

    out = Killing()
    with contextlib.redirect_stdout(out):
        details = run.wait_for_completion(show_output=True)
    assert details["status"] == "Completed"
    printed = out.getvalue().splitlines()
    expected = [*(f"line {number}" for number in range(5)), "last line"]
    assert [line for line in printed if line in expected] == expected


def test_an_interactive_run_logs_uploads_and_completes(ws: Workspace, project: Path) -> None:
    (project / "made").mkdir()
    (project / "made" / "m.txt").write_text("model")
    with Experiment(ws, "notebook").start_logging(outputs="made", display_name="mine") as run:
        assert run.get_status() == "Running"
        run.log("alpha", 0.1)
        run.log("acc", 0.5)
        run.log("acc", math.nan)
        run.log("prec@1", "97.123")
        run.log_list("list", (one for one in (1, 2, 3)))
        run.log_row("row", x=1, y=2)
        run.log_row("row", x=3, y=4)
        run.log_table("table", {"a": [1, 2], "b": [3, math.inf]})
        document = {"schema_type": "residuals", "schema_version": "v1", "data": {}}
        run.log_residuals("residuals", document)
        (project / "plot.png").write_bytes(b"png")
        run.log_image("plot", path="plot.png")
        run.upload_file("x/stream.txt", io.BytesIO(b"streamed"))
        run.upload_files(["x/1", "x/2"], ["plot.png", "plot.png"])
    assert run.get_status() == "Completed"
    metrics = run.get_metrics()
    acc = metrics.pop("acc")
    assert isinstance(acc, list)
    assert acc[0] == 0.5
    assert math.isnan(acc[1])
    assert metrics == {
        "alpha": 0.1,
        "prec@1": "97.123",
        "list": [1, 2, 3],
        "row": {"x": [1, 3], "y": [2, 4]},
        "table": {"a": [1, 2], "b": [3, math.inf]},
        "residuals": document,
        "plot": "plot.png",
    }
    assert run.get_file_names() == ["made/m.txt", "plot.png", "x/1", "x/2", "x/stream.txt"]
    with pytest.raises(UserErrorException, match="already"):
        run.upload_file("x/1", "plot.png")
    with pytest.raises(UserErrorException, match="upload_folder"):
        run.upload_file("folder", "made")
    run.upload_folder("later", "made")
    assert "later/m.txt" in run.get_file_names()
    run.log_image("after", path="plot.png")  # v1 code does that on finished runs
    assert run.display_name == "mine"


def test_an_interactive_run_that_breaks_is_failed(ws: Workspace) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Experiment(ws, "notebook").start_logging() as run,
    ):
        1 / 0  # noqa: B018
    assert run.get_status() == "Failed"
    assert "ZeroDivisionError" in json.dumps(run.get_details()["error"])


def test_what_a_notebook_writes_to_outputs_is_kept_without_asking(ws: Workspace) -> None:
    Path("outputs").mkdir()
    Path("outputs/old.txt").write_text("of an earlier run")
    os.utime("outputs/old.txt", (0, 0))
    with Experiment(ws, "notebook").start_logging() as run:
        Path("outputs/model.pkl").write_text("weights")
    assert run.get_file_names() == ["outputs/model.pkl"]


def test_a_folder_made_for_outputs_that_never_came_goes_again(ws: Workspace) -> None:
    with Experiment(ws, "notebook").start_logging():
        assert Path("outputs").is_dir()
    assert not Path("outputs").exists()
    with Experiment(ws, "notebook").start_logging(outputs=False):
        assert not Path("outputs").exists()


def test_an_interactive_run_can_take_a_snapshot_of_a_file_or_a_folder(ws: Workspace) -> None:
    Path("notebook.ipynb").write_text("{}")
    run = Experiment(ws, "notebook").start_logging(outputs=False)
    snapshot = run.take_snapshot("notebook.ipynb")
    assert run.get_snapshot_id() == snapshot == run.take_snapshot("./")
    with zipfile.ZipFile(run.restore_snapshot(path="back")) as archive:
        assert archive.namelist() == ["notebook.ipynb"]
    run.complete()


def test_an_upload_tells_what_it_kept(ws: Workspace) -> None:
    Path("mine.txt").write_text("12345")
    run = Experiment(ws, "notebook").start_logging(outputs=False)
    kept = run.upload_file("folder/in the cloud.txt", "mine.txt")
    assert kept.artifacts["folder/in the cloud.txt"]["size"] == 5
    assert kept.serialize() == {"artifacts": kept.artifacts}
    run.complete()


def test_a_folder_can_be_kept_with_an_interactive_run(ws: Workspace, source: Path) -> None:
    run = Experiment(ws, "notebook").start_logging(snapshot_directory="src")
    with zipfile.ZipFile(run.restore_snapshot(path="back.zip")) as packed:
        assert packed.namelist() == ["train.py"]
    run.complete()


def test_children_and_labels(ws: Workspace, source: Path) -> None:
    experiment = Experiment(ws, "family")
    parent = experiment.start_logging()
    with parent.child_run("first") as first:
        first.log("x", 1)
    folds = parent.create_children(tag_key="fold", tag_values=[1, 2])
    grandchild = folds[0].child_run()
    submitted = parent.submit_child(ScriptRunConfig("src", "train.py", ["--lr", 3]))
    submitted.wait_for_completion()
    assert submitted.parent == parent
    assert [one.id for one in parent.get_children(tags={"fold": "1"})] == [folds[0].id]
    assert {one.id for one in parent.get_children(recursive=True)} == {
        first.id,
        *(one.id for one in folds),
        grandchild.id,
        submitted.id,
    }
    found = parent.get_metrics(recursive=True)
    assert found[first.id] == {"x": 1}
    assert [one.id for one in experiment.get_runs()] == [parent.id]
    assert len(list(experiment.get_runs(include_children=True))) == 6
    parent.tag("a")
    parent.set_tags({"b": 2})
    parent.remove_tags(["a"])
    assert parent.get_tags() == {"b": "2"}
    parent.add_properties({"p": 1})
    with pytest.raises(UserErrorException, match="never changed"):
        parent.add_properties({"p": 2})
    assert parent.get_properties()["p"] == "1"
    for run in (grandchild, *folds, parent):
        run.complete()


def test_many_runs_are_listed_page_by_page(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from runyard.sdk import run as run_module

    monkeypatch.setattr(run_module, "PAGE", 2)
    experiment = Experiment(ws, "pages")
    made = [experiment.start_logging() for _ in range(5)]
    assert [one.id for one in experiment.get_runs()] == [one.id for one in reversed(made)]
    for run in made:
        run.complete()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ScriptRunConfig("src", "trian.py"), UserErrorException, "train.py"),
        (lambda: ScriptRunConfig("scr", "train.py"), UserErrorException, "src"),
        (
            lambda: ScriptRunConfig("src", "train.py", compute_target="gpu-cluster"),
            UserErrorException,
            "gpu-cluster",
        ),
        (lambda: "train.py", UserErrorException, "ScriptRunConfig"),
    ],
)
def test_what_cannot_be_submitted_says_why(
    ws: Workspace, source: Path, make: object, error: type[Exception], words: str
) -> None:
    assert callable(make)
    with pytest.raises(error, match=words):
        Experiment(ws, "refused").submit(make())
    assert list(Experiment(ws, "refused").get_runs()) == []


def test_a_script_that_is_ignored_is_noticed_before_it_is_submitted(
    ws: Workspace, source: Path
) -> None:
    (source / ".amlignore").write_text("*.py\n")
    with pytest.raises(UserErrorException, match="left out"):
        Experiment(ws, "refused").submit(ScriptRunConfig("src", "train.py"))


def test_a_large_folder_is_refused_before_it_is_read(ws: Workspace, source: Path) -> None:
    with (source / "data.bin").open("wb") as file:
        file.truncate(400 * 1024 * 1024)
    with pytest.raises(SnapshotException, match=r"data.bin \(400.0 MB\)"):
        Experiment(ws, "refused").submit(ScriptRunConfig("src", "train.py"))


def test_a_secret_is_warned_of_once_and_not_repeated(ws: Workspace, source: Path) -> None:
    token = "ghp_" + os.urandom(18).hex()
    (source / "settings.py").write_text(f"TOKEN = '{token}'\n")
    config = ScriptRunConfig("src", "train.py", ["--lr", 1])
    with pytest.warns(UserWarning, match=r"settings.py.*GitHub token in line 1") as caught:
        run = Experiment(ws, "secrets").submit(config)
    assert not any(token in str(one.message) for one in caught)
    second = Experiment(ws, "secrets").submit(config)  # a warning would be an error here
    for one in (run, second):
        one.wait_for_completion()


def test_a_chosen_id_is_used_once(ws: Workspace, source: Path) -> None:
    experiment = Experiment(ws, "chosen")
    config = ScriptRunConfig("src", "train.py", ["--lr", 1])
    name = f"mine-{os.urandom(4).hex()}"
    run = experiment.submit(config, run_id=name)
    assert run.id == name
    with pytest.raises(UserErrorException, match=name):
        experiment.submit(config, run_id=name)
    run.wait_for_completion()


def test_a_user_managed_environment_and_a_run_configuration(ws: Workspace, source: Path) -> None:
    environment = Environment("mine")
    environment.python.user_managed_dependencies = True
    environment.python.interpreter_path = sys.executable
    run_config = RunConfiguration()
    run_config.environment = environment
    config = ScriptRunConfig("src", "train.py", ["--lr", 1], run_config=run_config)
    run = Experiment(ws, "environments").submit(config)
    details = run.wait_for_completion()
    assert "warnings" not in details
    assert run.get_environment().name == "mine"


def test_workspaces_are_made_found_listed_and_written(
    ws: Workspace, project: Path, server_home: Path
) -> None:
    name = f"w-{os.urandom(4).hex()}"
    with pytest.raises(WorkspaceException, match=name):
        Workspace.get(name)
    made = Workspace.create(name, subscription_id="s", resource_group="g", location="here")
    with pytest.raises(WorkspaceException, match="already"):
        Workspace.create(name)
    assert (made.name, made.subscription_id, made.resource_group) == (name, "s", "g")
    assert repr(made) == (
        f"Workspace.create(name='{name}', subscription_id='s', resource_group='g')"
    )
    assert Workspace.get(name).location == "here"
    assert name in Workspace.list("s")
    made.write_config()
    written = json.loads((project / ".azureml" / "config.json").read_text())
    assert written == {
        "subscription_id": "s",
        "resource_group": "g",
        "workspace_name": name,
        "runyard": {"home": str(server_home)},
    }
    (project / "deep").mkdir()
    assert Workspace.from_config("deep").name == name
    assert made.get_details()["name"] == name
    header = InteractiveLoginAuthentication().get_authentication_header()
    assert header["Authorization"].startswith("Bearer ")
    made.delete()
    with pytest.raises(WorkspaceException):
        Workspace.get(name)
    with pytest.raises(UserErrorException, match="does not exist"):
        made.get_default_datastore()


def test_a_genuine_azure_configuration_works_as_it_is(ws: Workspace, project: Path) -> None:
    name = f"azure-{os.urandom(4).hex()}"
    azures = {"subscription_id": "1-2", "resource_group": "rg", "workspace_name": name}
    (project / "config.json").write_text(json.dumps(azures))
    code = "from azureml.core import Workspace; print(Workspace.from_config().name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"{name}\n", done.stderr


def test_a_wrong_token_is_an_authentication_error(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNYARD_URL", ws._session.client.url)
    with pytest.raises(AuthenticationException, match="RUNYARD_TOKEN"):
        Workspace.get("stories")
    monkeypatch.setenv("RUNYARD_TOKEN", "wrong")
    with pytest.raises(AuthenticationException):
        Workspace.get("stories")


def test_a_setting_that_makes_no_sense_is_named(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNYARD_PORT", "eighty")
    with pytest.raises(UserErrorException, match="eighty"):
        Workspace.get("stories")


def test_outside_a_job_the_context_is_a_stand_in(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.get_context()
    run.log("x", 1)
    assert "x" in capsys.readouterr().out
    assert run.id.startswith("OfflineRun_")
    with pytest.raises(RunEnvironmentException):
        Run.get_context(allow_offline=False)


def test_the_page_of_a_run_opens_from_its_portal_url(ws: Workspace) -> None:
    import urllib3

    run = Experiment(ws, "notebook").start_logging()
    with urllib3.PoolManager() as pool:
        page = pool.request("GET", run.get_portal_url(), redirect=False)
    assert page.status in (200, 302, 303, 307)
    html = run._repr_html_()
    assert run.id in html
    assert "Details Page" in html
    run.complete()
