"""A fresh home for every test, and the user's own commands in it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
