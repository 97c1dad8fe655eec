"""Conda environments, really solved and linked, from a channel in a folder.

The channel is made here: a Python repacked from the running one, and tiny packages.
"""

import asyncio
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.environments import open_builders
from runyard.environments.base import builder_for
from runyard.environments.conda import CondaBuilder
from runyard.environments.interpreters import Probe
from runyard.environments.venv import VenvBuilder

rattler = pytest.importorskip("rattler", reason="py-rattler is not installed")

PYTHON = ".".join(str(part) for part in sys.version_info[:3])
MINOR = ".".join(str(part) for part in sys.version_info[:2])
OLD_PREFIX = "/built/here/by/the/channel"
# Not needed to run a test, and most of the files.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "pydoc_data"),
    *("ensurepip", "site-packages", "__pycache__"),
}

pytestmark = pytest.mark.skipif(
    "dist-packages" in sysconfig.get_path("purelib", sysconfig.get_preferred_scheme("prefix")),
    reason="a channel cannot be made from Debian's own Python, which keeps packages elsewhere",
)


def make_channel(folder: Path) -> Path:
    """The channel: python, `native` with its prefix written into it, and noarch packages."""
    pack(folder, "python", PYTHON, _python_files())
    pack(
        folder,
        "native",
        "2.0",
        {"bin/native": f"#!/bin/sh\necho {OLD_PREFIX}\n"},
        prefix_in=("bin/native",),
    )
    pack_module(folder, "condalib", "1.0")
    pack_module(folder, "condalib", "2.0")
    pack_module(folder, "needsold", "1.0", ["condalib <2"])
    pack_module(folder, "numpy", "1.0")  # a name that PyPI has too
    index(folder)
    return folder


def index(folder: Path) -> None:
    """Write the channel's repodata."""
    asyncio.run(rattler.index.index_fs(folder))


def pack_module(folder: Path, name: str, version: str, depends: Sequence[str] = ()) -> None:
    """A noarch package with one module, whose `version` is the package's."""
    info = f"site-packages/{name}-{version}.dist-info"
    files: dict[str, str | Path] = {
        f"site-packages/{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/INSTALLER": "conda\n",
        f"{info}/RECORD": f"{name}.py,,\n",
    }
    pack(folder, name, version, files, ["python", *depends], noarch=True)


def pack(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str | Path],
    depends: Sequence[str] = (),
    *,
    noarch: bool = False,
    prefix_in: Sequence[str] = (),
) -> None:
    """One package of these files: texts, or files to copy."""
    subdir = "noarch" if noarch else str(rattler.Subdir.current())
    (folder / subdir).mkdir(parents=True, exist_ok=True)
    about = {"name": name, "version": version, "build": "test_0", "build_number": 0}
    about |= {"depends": list(depends), "subdir": subdir}
    about |= {"noarch": "python"} if noarch else {}
    paths = []
    target = folder / subdir / f"{name}-{version}-test_0.tar.bz2"
    with tarfile.open(target, "w:bz2", compresslevel=1) as archive:
        for path, content in files.items():
            data = content.read_bytes() if isinstance(content, Path) else content.encode()
            _add(archive, path, data, 0o755 if path.startswith("bin/") else 0o644)
            entry = {"_path": path, "path_type": "hardlink", "size_in_bytes": len(data)}
            entry["sha256"] = hashlib.sha256(data).hexdigest()
            if path in prefix_in:
                entry |= {"prefix_placeholder": OLD_PREFIX, "file_mode": "text"}
            paths.append(entry)
        _add(archive, "info/index.json", json.dumps(about).encode())
        listing = {"paths": paths, "paths_version": 1}
        _add(archive, "info/paths.json", json.dumps(listing).encode())
        if noarch:
            link = {"noarch": {"type": "python"}, "package_metadata_version": 1}
            _add(archive, "info/link.json", json.dumps(link).encode())


def _add(archive: tarfile.TarFile, path: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))


def _python_files() -> dict[str, str | Path]:
    """The interpreter and most of its standard library; its shared library stays where it is."""
    base = Path(sys.base_prefix)
    program = base / "bin" / f"python{MINOR}"
    files: dict[str, str | Path] = {f"bin/{name}": program for name in ("python", program.name)}
    for parent, folders, names in os.walk(base / "lib" / f"python{MINOR}"):
        folders[:] = [
            name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")
        ]
        files |= {
            str((Path(parent) / name).relative_to(base)): Path(parent) / name for name in names
        }
    return files


@pytest.fixture(scope="session")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_channel(tmp_path_factory.mktemp("conda") / "a channel")


@pytest.fixture(scope="session")
def package_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rattler")


@pytest.fixture
def environ(offline: dict[str, str], tmp_path: Path, package_cache: Path) -> dict[str, str]:
    return {
        **offline,
        "RATTLER_CACHE_DIR": str(package_cache),
        "CONDARC": str(tmp_path / "condarc"),
    }


@pytest.fixture
def builder(tmp_path: Path, environ: dict[str, str]) -> CondaBuilder:
    return make_builder(tmp_path / "environments", environ)


def make_builder(root: Path, environ: dict[str, str]) -> CondaBuilder:
    probe = Probe()
    return CondaBuilder(root, environ, probe, VenvBuilder(root, environ, probe))


def spec(
    channel: Path | str, *conda: str, pip: tuple[str, ...] = (), python: str | None = MINOR
) -> EnvironmentSpec:
    url = channel if isinstance(channel, str) else channel.as_uri()
    return EnvironmentSpec(name="test", channels=(url,), conda=conda, pip=pip, python=python)


def say(use: EnvironmentUse, code: str) -> str:
    command = [use.interpreter, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_packages_come_from_the_channel_and_python_too(
    builder: CondaBuilder, channel: Path
) -> None:
    lines: list[str] = []
    use = builder.build(spec(channel, "condalib", "native"), lines.append)

    assert say(use, "import condalib; print(condalib.version)") == "2.0"
    prefix = Path(use.interpreter).parents[1]
    assert say(use, "import sys; print(sys.prefix)") == str(prefix)
    assert use.python == PYTHON
    assert use.lock == (
        "condalib==2.0=test_0",
        "native==2.0=test_0",
        f"python=={PYTHON}=test_0",
    )
    assert (prefix / "requirements.lock").read_text().splitlines() == list(use.lock)
    assert any("condalib==2.0" in line for line in lines)


def test_the_place_that_packages_remember_is_their_final_one(
    builder: CondaBuilder, channel: Path
) -> None:
    use = builder.build(spec(channel, "native"), print)
    prefix = Path(use.interpreter).parents[1]
    told = subprocess.run([prefix / "bin" / "native"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(prefix)
    assert OLD_PREFIX not in (prefix / "bin" / "native").read_text()


def test_the_pip_part_goes_on_top_and_into_the_lock(builder: CondaBuilder, channel: Path) -> None:
    use = builder.build(spec(channel, "condalib=1", pip=("user", "azureml-defaults")), print)
    code = "import user, tiny, condalib; print(user.version, tiny.version, condalib.version)"
    assert say(use, code) == "1.0 1.0 1.0"
    assert use.lock[-2:] == ("tiny==1.0", "user==1.0")
    assert "azureml-defaults: provided by Runyard's runtime" in use.notes


def test_what_conda_installed_satisfies_pip(builder: CondaBuilder, channel: Path) -> None:
    use = builder.build(spec(channel, "condalib=1", pip=("condalib",)), print)
    assert say(use, "import condalib; print(condalib.version)") == "1.0", "no wheel has it"


def test_modules_are_compiled_once_for_all_jobs(builder: CondaBuilder, channel: Path) -> None:
    use = builder.build(spec(channel, "condalib"), print)
    packages = Path(use.interpreter).parents[1] / "lib" / f"python{MINOR}" / "site-packages"
    assert list(packages.glob("__pycache__/condalib.*.pyc"))


def test_the_solver_finds_the_version_that_the_others_need(
    builder: CondaBuilder, channel: Path
) -> None:
    use = builder.build(spec(channel, "condalib", "needsold", python=None), print)
    assert "condalib==1.0=test_0" in use.lock
    assert f"python=={PYTHON}=test_0" in use.lock


def test_a_built_environment_is_ready_also_for_the_next_server(
    builder: CondaBuilder, channel: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    wanted = spec(channel, "condalib")
    assert builder.ready(wanted) is None
    use = builder.build(wanted, print)
    assert make_builder(tmp_path / "environments", environ).ready(wanted) == use
    assert builder.key(wanted) == use.key
    assert builder.key(spec(channel, "condalib=1")) != use.key
    assert builder.key(spec(channel, "condalib", pip=("tiny",))) != use.key


@pytest.mark.parametrize(
    ("packages", "words", "fix"),
    [
        (("nosuchpackage",), "nosuchpackage", "Check the name"),
        (("condalib=9",), "condalib", "Check the name"),
        (("condalib=2", "needsold"), "condalib", "contradict"),
    ],
)
def test_what_cannot_be_solved_fails_in_the_solvers_words(
    builder: CondaBuilder, channel: Path, packages: tuple[str, ...], words: str, fix: str
) -> None:
    with pytest.raises(EngineFailed) as failure:
        builder.build(spec(channel, *packages), print)
    assert words in failure.value.why
    assert fix in failure.value.fix
    assert builder.ready(spec(channel, *packages)) is None


def test_a_channel_that_is_not_there_fails_and_says_which(builder: CondaBuilder) -> None:
    with pytest.raises(EngineFailed) as failure:
        builder.build(spec("file:///no/such/channel", "condalib"), print)
    assert "/no/such/channel" in failure.value.why
    assert "channel" in failure.value.fix


def test_passwords_of_channels_stay_out_of_log_and_failure(builder: CondaBuilder) -> None:
    lines: list[str] = []
    with pytest.raises(EngineFailed) as failure:
        builder.build(spec("http://user:secret@127.0.0.1:9/c", "condalib"), lines.append)
    assert "secret" not in "\n".join([*lines, str(failure.value)])


def test_without_a_channel_well_known_packages_come_with_pip(
    builder: CondaBuilder, make_wheel: Callable[..., Path], wheels: Path
) -> None:
    make_wheel(wheels, "numpy", "3.0")
    wanted = spec("http://127.0.0.1:9/channel", "numpy")
    lines: list[str] = []
    use = builder.build(wanted, lines.append)
    assert say(use, "import numpy; print(numpy.version)") == "3.0"
    assert any("cannot be reached" in line for line in lines)
    assert any("with pip instead" in line for line in lines)
    assert builder.ready(wanted) == use, "a second run does not ask the channel again"


def test_the_channel_is_preferred_where_it_answers(builder: CondaBuilder, channel: Path) -> None:
    use = builder.build(spec(channel, "numpy"), print)
    assert use.lock == ("numpy==1.0=test_0", f"python=={PYTHON}=test_0")


def test_a_mirror_in_condarc_stands_for_channel_names(
    builder: CondaBuilder, channel: Path, environ: dict[str, str]
) -> None:
    Path(environ["CONDARC"]).write_text(f"channel_alias: {channel.parent.as_uri()}\n")
    wanted = EnvironmentSpec(name="test", channels=("a channel",), conda=("condalib",))
    assert "condalib==2.0=test_0" in builder.build(wanted, print).lock


def test_a_later_channel_helps_out_where_the_first_has_no_solution(
    builder: CondaBuilder, channel: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    pack_module(first, "condalib", "3.0")
    index(first)
    wanted = EnvironmentSpec(
        name="test", channels=(first.as_uri(), channel.as_uri()), conda=("needsold", "condalib")
    )
    assert "condalib==1.0=test_0" in builder.build(wanted, print).lock


def test_many_at_once_build_once(builder: CondaBuilder, channel: Path) -> None:
    logs: list[list[str]] = [[] for _ in range(5)]
    uses: list[EnvironmentUse] = []

    def build(log: list[str]) -> None:
        uses.append(builder.build(spec(channel, "condalib"), log.append))

    threads = [threading.Thread(target=build, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(uses) == 5
    assert len(set(use.key for use in uses)) == 1
    assert sum(any("linking" in line for line in log) for log in logs) == 1


def test_a_builder_that_was_killed_leaves_nothing_that_counts(
    builder: CondaBuilder, channel: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    # It dies as soon as the packages are linked, which is before pip's part and the marker.
    script = textwrap.dedent(
        """
        import json, os, signal, sys
        from pathlib import Path
        import msgspec
        from runyard.domain.environments import EnvironmentSpec
        from runyard.environments.conda import CondaBuilder
        from runyard.environments.interpreters import Probe

        def log(line):
            if line.startswith("using Python"):
                os.kill(os.getpid(), signal.SIGKILL)

        root, environ, spec = json.loads(sys.argv[1])
        builder = CondaBuilder(Path(root), environ, Probe(), None)
        builder.build(msgspec.convert(spec, EnvironmentSpec), log)
        """
    )
    wanted = spec(channel, "condalib", pip=("tiny",))
    root = tmp_path / "environments"
    told = [str(root), environ, {"name": "test", "channels": list(wanted.channels)}]
    told[2] |= {"conda": ["condalib"], "pip": ["tiny"], "python": MINOR}  # type: ignore[operator]
    died = subprocess.run([sys.executable, "-c", script, json.dumps(told)], env=dict(os.environ))
    assert died.returncode == -signal.SIGKILL
    left = root / builder.key(wanted)
    assert (left / "bin" / "python").exists(), "it was half made, in its place"
    (left / "half-made").touch()

    assert builder.ready(wanted) is None
    use = builder.build(wanted, print)
    assert say(use, "import tiny, condalib; print(condalib.version)") == "2.0"
    assert not (left / "half-made").exists()


def test_only_specs_with_conda_packages_come_here(tmp_path: Path, environ: dict[str, str]) -> None:
    builders = open_builders(tmp_path, environ)

    def kind(**fields: object) -> str:
        return type(builder_for(EnvironmentSpec(name="x", **fields), builders)).__name__  # type: ignore[arg-type]

    assert kind(conda=("libfoo",)) == "CondaBuilder"
    assert kind(conda=("python=3.8", "pip")) == "VenvBuilder"
    assert kind(conda=("azureml-defaults",)) == "VenvBuilder"
    assert kind(conda=("libfoo",), user_managed=True) == "UserManagedBuilder"
