"""A folder of tiny wheels, so that real environments are built without a network."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


def _make_wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    """A wheel with one module, whose `version` is the package's."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


MakeWheel = Callable[[Path, str, str], Path]


@pytest.fixture
def make_wheel() -> MakeWheel:
    return _make_wheel


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "the wheels"
    _make_wheel(folder, "tiny", "1.0")
    _make_wheel(folder, "tiny", "2.0")
    _make_wheel(folder, "user", "1.0", "tiny<2")
    return folder


@pytest.fixture
def offline(wheels: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a machine that knows no packages but those wheels."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    configuration = tmp_path / "pip.conf"
    configuration.write_text(f"[global]\nno-index = true\nfind-links = {wheels.as_uri()}\n")
    return {
        **kept,
        "PIP_CONFIG_FILE": str(configuration),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_PYTHON_DOWNLOADS": "never",
    }
