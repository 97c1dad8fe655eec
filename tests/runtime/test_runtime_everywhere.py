"""The runtime on every Python that this machine has, from 3.6 on.

What is tested stands in `inside/`: unittest modules of the standard library, because the old
interpreters have nothing else. Each interpreter runs them as a job would: the bundle alone on
PYTHONPATH, and warnings are errors.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard_runtime import bundle

INSIDE = Path(__file__).parent / "inside"
MINORS = range(6, 15)
PLATFORM = "the platform's own"  # its environment has the client's azureml too


def installed() -> Iterator[tuple[str, Path]]:
    """Interpreters of pyenv and uv by the version in their folder's name, then those on PATH."""
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions"
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python"))
    for minor in MINORS:
        version = f"3.{minor}"
        for folder in (*pyenv.glob(f"{version}.*"), *managed.glob(f"cpython-{version}.*")):
            yield version, folder / "bin" / f"python{version}"
        if found := shutil.which(f"python{version}"):
            yield version, Path(found)


def interpreters() -> dict[str, Path]:
    """One interpreter that starts for each version, and the one of this environment."""
    found: dict[str, Path] = {}
    for version, path in installed():
        if version not in found and path.exists() and starts(path, version):
            found[version] = path
    return {**found, PLATFORM: Path(sys.executable)}


def starts(path: Path, version: str) -> bool:
    # pyenv puts a shim for every version on PATH; one that is not selected does not start.
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    ended = subprocess.run([path, "-Sc", code], capture_output=True, text=True, check=False)
    return ended.stdout.strip() == version


INTERPRETERS = interpreters()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that jobs get on PYTHONPATH."""
    return Path(bundle.materialize(str(tmp_path_factory.mktemp("bundle") / "runtime")))


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": str(folder)}


@pytest.mark.parametrize("version", INTERPRETERS)
def test_the_runtime_works_on(version: str, folder: Path) -> None:
    options = ["-W", "error", "-m", "unittest", "discover", "-s", str(INSIDE), "-p", "case_*.py"]
    ended = subprocess.run(
        [str(INTERPRETERS[version]), *options],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ran = int(ended.stderr.rpartition("Ran ")[2].split()[0])
    assert ran > 50  # discovery that finds nothing is a success to unittest
    assert "Warning" not in ended.stderr


def test_which_interpreters_were_found(capsys: pytest.CaptureFixture[str]) -> None:
    tested = ", ".join(version for version in INTERPRETERS if version != PLATFORM)
    absent = ", ".join(f"3.{n}" for n in MINORS if f"3.{n}" not in INTERPRETERS) or "none"
    with capsys.disabled():
        print(f"\nThe runtime was tested on Python {tested}; not on this machine: {absent}.")
    if "3.6" not in INTERPRETERS:
        pytest.skip(f"Python 3.6, the oldest we promise, is not on this machine; tested: {tested}")
    assert len(INTERPRETERS) > 2
