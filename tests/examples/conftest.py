"""A fresh home for every test, and the user's own commands in it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from azureml.core import Experiment, Workspace

ROOT = Path(__file__).parents[2]


class Shell:
    """Runs what a user would type, in one folder, with one home."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNYARD_", "PYTHON"))}
        self.environ = kept | {"RUNYARD_HOME": str(home)}

    def runyard(self, *arguments: str) -> str:
        """What the command prints; the test fails if the command does."""
        return self._run([str(Path(sys.executable).parent / "runyard"), *arguments])

    def python(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """What the program prints; the test fails if it ends with another code."""
        return self._run([sys.executable, *arguments], codes)

    def _run(self, command: list[str], codes: tuple[int, ...] = (0,)) -> str:
        result = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True
        )
        assert result.returncode in codes, result.stdout + result.stderr
        return result.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "project"
    folder.mkdir()
    one = Shell(folder, tmp_path / "home")
    yield one
    one.runyard("down")


@pytest.fixture(
    params=[
        ("pytorch-ddp", ("0", "1")),
        ("mpi", ("0", "1")),
        ("tensorflow-multiworker", ("worker_0", "worker_1")),
    ],
    ids=lambda param: param[0],
)
def two_node_example(request: pytest.FixtureRequest) -> Callable[[Workspace], None]:
    """Runs a distributed example on whatever a workspace has; both nodes must learn the same."""
    kind, names = request.param

    def check(ws: Workspace) -> None:
        submit = ROOT / "examples" / "distributed" / "submit.py"
        words = (str(submit), kind, "--processes-per-node", "1")
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        run = next(iter(Experiment(ws, kind).get_runs()))
        assert run.get_status() == "Completed"
        digests = set()
        for name in names:
            run.download_file(f"azureml-logs/70_driver_log_{name}.txt", f"{name}.txt")
            log = Path(f"{name}.txt").read_text()
            digests.add(re.findall(r"^weights (\w{16})$", log, re.MULTILINE)[0])
        assert len(digests) == 1
        losses: Any = run.get_metrics()["loss"]
        assert losses[-1] < losses[0] / 1.5

    return check
