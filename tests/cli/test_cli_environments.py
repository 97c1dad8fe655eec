"""`runyard env …` as people and programs use it: real processes, a real server, real builds."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.story


class Yard:
    """A folder with a workspace, and the command line in it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self.environ = {**os.environ, "RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"}
        self.environ.pop("RUNYARD_URL", None)

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "runyard", *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, code=code)[0])


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    base = tmp_path_factory.mktemp("cli-env")
    (base / "project").mkdir()
    made = Yard(base / "project", base / "home")
    made.run("init", "yard")
    yield made
    made.run("down")


def test_build_show_lock_and_build_again_from_the_lock(yard: Yard) -> None:
    (yard.folder / "requirements.txt").write_text("azureml-defaults\n")
    out, err = yard.run("env", "build", "first", "--requirements", "requirements.txt")
    key = out.strip()
    assert "provided by Runyard's runtime" in err
    assert "is ready" in err
    (one,) = [one for one in yard.json("env", "ls", "--json") if one["key"] == key]
    assert one["name"] == "first"
    table, _ = yard.run("env", "ls")
    assert key[:12] in table

    shown, _ = yard.run("env", "show", key[:8])
    assert key in shown
    lock, _ = yard.run("env", "show", key, "--lock")
    assert lock.startswith("# lock of 'first'")
    (yard.folder / "my.lock").write_text(lock)
    again = yard.json("env", "build", "--lock", "my.lock", "--json")
    assert again["python"] == one["python"]
    assert again["lock"] == one["lock"]


def test_names_are_those_of_the_registry(yard: Yard) -> None:
    names = {one["spec"]["name"] for one in yard.json("env", "ls", "--names", "--json")}
    assert "AzureML-TensorFlow-2.2-GPU" in names
    shown, err = yard.run("env", "show", "AzureML-TensorFlow-2.2-GPU")
    assert "tensorflow-gpu==2.2.0" in shown
    assert "not built" in err
    _, err = yard.run("env", "show", "AzureML-TensorFlow-2.2-GPU", "--lock", code=1)
    assert "runyard env build AzureML-TensorFlow-2.2-GPU" in err
    error = yard.json("env", "show", "no-such-thing", "--json", code=1)["error"]
    assert error["code"] == "not_found"


def test_a_failed_build_says_why_and_fails(yard: Yard) -> None:
    (yard.folder / "bad.txt").write_text("/no/such/wheel-1.0-py3-none-any.whl\n")
    _, err = yard.run("env", "build", "--requirements", "bad.txt", code=1)
    assert "could not be built" in err
    yard.run("env", "build", code=2)
    yard.run("env", "build", "--lock", "a", "--requirements", "b", code=2)


def test_gc_removes_what_is_old_and_spares_what_is_new(yard: Yard) -> None:
    (yard.folder / "empty.txt").write_text("azureml-core\n")
    key = yard.run("env", "build", "--requirements", "empty.txt")[0].strip()
    assert yard.json("env", "gc", "--keep-days", "0", "--json") == [], "all was just used"
    mark = yard.home / "environments" / key / "last-used"
    os.utime(mark, (1, 1))
    assert key[:12] in yard.run("env", "gc", "--keep-days", "30", "--dry-run")[0]
    assert mark.exists()
    assert yard.json("env", "gc", "--keep-days", "30", "--json")[0]["key"] == key
    assert not mark.exists()
    _, err = yard.run("env", "gc", code=1)
    assert "keep_days" in err
