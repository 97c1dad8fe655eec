"""The folder that jobs get on PYTHONPATH, and the shape of what is in it."""

import ast
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runyard_runtime import bundle, exceptions

PACKAGE = Path(bundle.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_runtime_is_old_and_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
    beyond = imports(tree) - set(sys.stdlib_module_names) - {"runyard_runtime"}
    assert not beyond, "what travels into jobs carries nothing"


def test_the_folder_has_two_packages_and_is_compiled(tmp_path: Path) -> None:
    target = Path(bundle.materialize(str(tmp_path / "deep" / "runtime")))
    assert sorted(os.listdir(target)) == ["azureml", "runyard_runtime"]
    assert os.listdir(target.parent) == ["runtime"]
    assert not (target / "runyard_runtime" / "shims").exists()
    for source in target.rglob("*.py"):
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")), source


def test_the_digest_names_the_content_not_the_place(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "runyard_runtime"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from runyard_runtime import bundle; print(bundle.bundle_digest())"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == bundle.bundle_digest()
    (copy / "wire.py").write_text("changed = True\n")
    (copy / "shims" / "azureml" / "telemetry.py").unlink()
    changed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert changed.stdout.strip() != bundle.bundle_digest()


def test_the_shims_also_work_out_of_a_checkout() -> None:
    paths = [str(PACKAGE.parent), str(PACKAGE / "shims")]
    code = "from azureml.core import Run; import azureml; print(azureml.__path__[0])"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == str(PACKAGE / "shims" / "azureml")


def test_many_who_lay_it_out_at_once_get_one_whole_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(bundle.materialize, [str(tmp_path / "runtime")] * 4))
    assert found == {str(tmp_path / "runtime")}
    assert os.listdir(tmp_path) == ["runtime"]


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    target = Path(bundle.materialize(str(tmp_path / "runtime")))
    (target / "mark").touch()
    bundle.materialize(str(target))
    assert (target / "mark").exists()


def test_every_exception_of_v1_is_named() -> None:
    classes = {
        name
        for name, value in vars(exceptions).items()
        if isinstance(value, type) and issubclass(value, exceptions.AzureMLException)
    }
    assert classes == set(exceptions.__all__)
