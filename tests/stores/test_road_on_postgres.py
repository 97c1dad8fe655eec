"""The whole road of a run with a real server on PostgreSQL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
from azureml.core import Run
run = Run.get_context()
for step in range(1000):
    run.log("loss", step)
run.tag("team", "vision")
open("outputs/model.txt", "w").write("weights")
"""

CLIENT = """
from azureml.core import Experiment, ScriptRunConfig, Workspace
experiment = Experiment(Workspace.create("on-postgres", exist_ok=True), "road")
runs = [experiment.submit(ScriptRunConfig("src", "train.py")) for _ in range(4)]
for run in runs:
    run.wait_for_completion()
    assert run.get_metrics()["loss"] == list(range(1000))
    assert "outputs/model.txt" in run.get_file_names()
    assert run.get_tags() == {"team": "vision"}
assert {run.id for run in experiment.get_runs()} == {run.id for run in runs}
"""


@pytest.mark.story
def test_runs_are_submitted_followed_and_kept(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(JOB)
    home = str(tmp_path / "home")
    environ = {**os.environ, "RUNYARD_HOME": home, "RUNYARD_DATABASE": postgres_url}

    def python(*arguments: str) -> str:
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        python("-c", CLIENT)
        assert json.loads(python("-m", "runyard", "status", "--json"))["database"] == "postgresql"
    finally:
        python("-m", "runyard", "down")
