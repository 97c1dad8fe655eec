"""Real virtual environments, built by uv out of a folder of tiny wheels."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.environments import open_builders
from runyard.environments.base import Builder, builder_for
from runyard.environments.interpreters import Probe, choose_interpreter, other_series

MakeWheel = Callable[[Path, str, str], Path]

NO_DEPS = EnvironmentSpec(name="empty")


def spec(*pip: str, **fields: object) -> EnvironmentSpec:
    return EnvironmentSpec(name="small", pip=pip, **fields)  # type: ignore[arg-type]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "odd ‘root’"


@pytest.fixture
def builder(root: Path, offline: dict[str, str]) -> Builder:
    return builder_for(NO_DEPS, open_builders(root, offline))


def output(use: EnvironmentUse, code: str) -> str:
    done = subprocess.run([use.interpreter, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def leftovers(root: Path) -> list[str]:
    return [path.name for path in root.glob("*.building-*")]


def test_packages_are_resolved_locked_installed_and_compiled(builder: Builder, root: Path) -> None:
    wanted = spec("azureml-defaults", "user")
    assert builder.ready(wanted) is None
    lines: list[str] = []
    use = builder.build(wanted, lines.append)
    assert use == builder.ready(wanted)
    assert use.lock == ("tiny==1.0", "user==1.0")
    assert use.notes == ("azureml-defaults: provided by Runyard's runtime",)
    assert output(use, "import tiny, user; print(tiny.version)") == "1.0"
    assert use.python == output(use, "import platform; print(platform.python_version())")
    assert any("user==1.0" in line for line in lines), "uv's own lines are in the log"
    (said,) = [at for at, line in enumerate(lines) if line.startswith("compiling bytecode of ")]
    (done,) = [at for at, line in enumerate(lines) if line.startswith("Bytecode compiled ")]
    assert said < done

    folder = root / use.key
    assert list(folder.glob("lib/python*/site-packages/__pycache__/tiny.*.pyc"))
    assert (folder / "requirements.lock").read_text() == "tiny==1.0\nuser==1.0\n"
    assert json.loads((folder / "runyard.json").read_text())["size_bytes"] > 0
    assert not (folder / "options.txt").exists()
    assert leftovers(root) == []


def test_an_environment_without_packages_is_just_an_interpreter(builder: Builder) -> None:
    use = builder.build(NO_DEPS, print)
    assert use.lock == ()
    assert output(use, "print('works')") == "works"


def test_ready_is_instant_and_marks_the_use(builder: Builder, root: Path) -> None:
    use = builder.build(spec("tiny"), print)
    used = root / use.key / "last-used"
    os.utime(used, (0, 0))
    started = time.perf_counter()
    assert builder.ready(spec("tiny")) == use
    assert time.perf_counter() - started < 0.05
    assert used.stat().st_mtime > 0


def test_a_removed_or_damaged_environment_is_built_again(builder: Builder, root: Path) -> None:
    use = builder.build(spec("tiny"), print)
    for damage in ("runyard.json", "bin/python"):
        (root / use.key / damage).unlink()
        assert builder.ready(spec("tiny")) is None
        assert builder.build(spec("tiny"), print) == use
        assert output(use, "import tiny; print(tiny.version)") == "2.0"
    (root / use.key / "runyard.json").write_text("{")
    assert builder.ready(spec("tiny")) is None


def test_twenty_threads_build_it_once(root: Path, offline: dict[str, str]) -> None:
    logs: list[list[str]] = [[] for _ in range(20)]
    begin = threading.Barrier(20)

    def one(log: list[str]) -> EnvironmentUse:
        builder = builder_for(NO_DEPS, open_builders(root, offline))  # as if each were a server
        begin.wait()
        return builder.build(spec("user"), log.append)

    with ThreadPoolExecutor(20) as pool:
        uses = list(pool.map(one, logs))
    assert len(set(map(repr, uses))) == 1
    built = [log for log in logs if any("is ready after" in line for line in log)]
    waited = [log for log in logs if "waiting for another run that builds this environment" in log]
    assert len(built) == 1
    assert len(waited) >= 1
    assert leftovers(root) == []


PROCESS = """
import json, os, sys
from pathlib import Path
from runyard.domain.environments import EnvironmentSpec
from runyard.environments import open_builders
from runyard.environments.base import builder_for
spec = EnvironmentSpec(name="small", pip=tuple(sys.argv[2:]))
builder = builder_for(spec, open_builders(Path(sys.argv[1]), json.loads(os.environ["OFFLINE"])))
builder.build(spec, lambda line: print(line, flush=True))
"""


def start(root: Path, offline: dict[str, str], *pip: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(root), *pip],
        env={**os.environ, "OFFLINE": json.dumps(offline)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_build_it_once(root: Path, offline: dict[str, str]) -> None:
    with start(root, offline, "user") as first, start(root, offline, "user") as second:
        texts = [first.communicate(timeout=60)[0], second.communicate(timeout=60)[0]]
    assert (first.returncode, second.returncode) == (0, 0)
    assert sum("is ready after" in text for text in texts) == 1


SLOW_BUILD = """
import pathlib, shutil, time

def build_wheel(folder, *_, **__):
    here = pathlib.Path({folder!r})
    (here / "started").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
    shutil.copy(here / "slow-1.0-py3-none-any.whl", folder)
    return "slow-1.0-py3-none-any.whl"
"""


def test_kill_9_in_the_middle_leaves_a_system_that_works(
    root: Path,
    offline: dict[str, str],
    builder: Builder,
    tmp_path: Path,
    make_wheel: MakeWheel,
) -> None:
    # A source package whose build waits for a file: the middle of a build, for as long as we like.
    make_wheel(tmp_path, "slow", "1.0")
    source = tmp_path / "slow-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow_build"\nbackend-path = ["."]\n'
    )
    (source / "slow_build.py").write_text(SLOW_BUILD.format(folder=str(tmp_path)))
    wanted = ("tiny", f"slow @ {source.as_uri()}")

    with start(root, offline, *wanted) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert leftovers(root), "the crash left something"
    assert builder.ready(spec(*wanted)) is None

    # uv outlived its parent and still writes: whoever comes next waits for it, then starts anew.
    lines: list[str] = []
    waiting = threading.Event()

    def note(line: str) -> None:
        lines.append(line)
        waiting.set()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(builder.build, spec(*wanted), note)
        assert waiting.wait(30)
        assert "waiting for another run" in lines[0]
        (tmp_path / "go").touch()
        use = result.result(60)
    assert output(use, "import slow, tiny; print(slow.version)") == "1.0"
    assert leftovers(root) == []


def test_contradictory_pins_are_told_in_the_resolvers_words(builder: Builder, root: Path) -> None:
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("user", "tiny==2.0"), print)
    assert "'small'" in caught.value.what
    assert "tiny" in caught.value.why
    assert "user" in caught.value.why
    assert "pins" in caught.value.fix
    assert leftovers(root) == []


def test_a_package_that_does_not_exist_is_named(builder: Builder) -> None:
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tinny"), print)
    assert "tinny was not found" in caught.value.why
    assert "spelling" in caught.value.fix


def test_a_version_that_does_not_exist_is_named(builder: Builder) -> None:
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tiny==7"), print)
    assert "tiny==7" in caught.value.why
    assert caught.value.fix


def test_those_who_waited_for_a_failing_build_get_its_failure(
    root: Path, offline: dict[str, str]
) -> None:
    begin = threading.Barrier(6)
    logs: list[list[str]] = [[] for _ in range(6)]

    def one(log: list[str]) -> str:
        builder = builder_for(NO_DEPS, open_builders(root, offline))
        begin.wait()
        with pytest.raises(EngineFailed) as caught:
            builder.build(spec("tinny"), log.append)
        return str(caught.value)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(one, logs))) == 1
    tried = [log for log in logs if any("using Python" in line for line in log)]
    waited = [log for log in logs if any("waiting" in line for line in log)]
    assert len(tried) + len(waited) >= 6
    assert len(tried) < 6


def test_a_failure_is_not_remembered(builder: Builder, wheels: Path, make_wheel: MakeWheel) -> None:
    wanted = spec("late")
    with pytest.raises(EngineFailed):
        builder.build(wanted, print)
    make_wheel(wheels, "late", "1.0")
    assert builder.build(wanted, print).lock == ("late==1.0",)


@pytest.mark.parametrize(
    "bad", [spec("-e ."), spec(conda=("libfoo",)), spec(python="banana"), spec("tiny=2.0")]
)
def test_a_spec_that_cannot_be_built_says_so_only_when_it_is_built(
    builder: Builder, bad: EnvironmentSpec
) -> None:
    assert builder.ready(bad) is None
    assert builder.key(bad) != builder.key(NO_DEPS)
    with pytest.raises(EngineFailed) as caught:
        builder.build(bad, print)
    assert caught.value.why
    assert caught.value.fix


def test_an_interpreter_nobody_has_lists_what_there_is(builder: Builder) -> None:
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tiny", python="3.99"), print)
    assert "3.99" in caught.value.what
    assert f"{sys.version_info.major}.{sys.version_info.minor}." in caught.value.why
    assert "uv python install 3.99" in caught.value.fix


def test_a_root_that_cannot_be_written_is_said(offline: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    builder = builder_for(NO_DEPS, open_builders(tmp_path / "file" / "root", offline))
    with pytest.raises(EngineFailed) as caught:
        builder.build(NO_DEPS, print)
    assert "file" in caught.value.why


def test_a_wrong_hash_is_refused(builder: Builder) -> None:
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tiny==2.0 --hash=sha256:" + "0" * 64), print)
    assert "Hash mismatch" in caught.value.why


def test_passwords_of_indexes_stay_out_of_log_error_and_folder(
    root: Path, offline: dict[str, str]
) -> None:
    lines: list[str] = []
    wanted = spec("--extra-index-url http://user:secret@127.0.0.1:9/simple", "tiny")
    environ = {**offline, "PIP_CONFIG_FILE": "/dev/null", "UV_HTTP_RETRIES": "0"}
    builder = builder_for(wanted, open_builders(root, {**environ, "UV_OFFLINE": "1"}))
    with pytest.raises(EngineFailed) as caught:
        builder.build(wanted, lines.append)
    assert "secret" not in str(caught.value) + "".join(lines)
    assert not [path for path in root.rglob("*") if path.is_file() and "secret" in path.read_text()]


@pytest.mark.parametrize("asked", ["3.6.2", "3.7.0"])
def test_old_pythons_work(
    builder: Builder, offline: dict[str, str], root: Path, asked: str
) -> None:
    found, _ = choose_interpreter(asked, offline, Probe())
    if found is None:
        pytest.skip(f"no Python {asked[:3]} on this machine")
    use = builder.build(spec("user", python=asked), print)
    assert use.python == found.version_text
    assert use.notes == (f"asked for Python {asked}, using {found.version_text}",)
    assert output(use, "import sys, user; print('%d.%d' % sys.version_info[:2])") == asked[:3]
    assert list((root / use.key).glob("lib/python*/site-packages/__pycache__/user.*.pyc"))


def test_old_pins_without_a_python_version_get_a_python_that_has_them(
    builder: Builder, offline: dict[str, str], wheels: Path, make_wheel: MakeWheel
) -> None:
    others = other_series(sys.version_info[:3], offline, Probe())
    if len(others) < 2:
        pytest.skip("fewer than two other Pythons on this machine")
    older = others[1]
    tag = f"cp{older.version[0]}{older.version[1]}"
    wheel = make_wheel(wheels, "old", "1.0")
    wheel.rename(wheels / f"old-1.0-{tag}-none-any.whl")

    lines: list[str] = []
    use = builder.build(spec("old==1.0", "tiny"), lines.append)
    assert use.python == older.version_text
    assert use.lock == ("old==1.0", "tiny==2.0")
    assert "no version was asked for" in use.notes[0]
    assert use.notes[0] in lines
    assert builder.ready(spec("old==1.0", "tiny")) == use

    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    wish = spec("old==1.0", "tiny", python=own)
    assert builder.ready(wish) is None
    with pytest.raises(EngineFailed) as caught:
        builder.build(wish, print)
    assert "old==1.0" in caught.value.why


def test_what_no_python_has_fails_in_the_words_for_the_platform_s_own(builder: Builder) -> None:
    lines: list[str] = []
    with pytest.raises(EngineFailed) as caught:
        builder.build(spec("tiny==7"), lines.append)
    assert "tiny==7" in caught.value.why
    assert any("with wheels only" in line for line in lines)
    lines.clear()
    with pytest.raises(EngineFailed):
        builder.build(spec("tinny"), lines.append)
    assert not any("with wheels only" in line for line in lines), "another Python is no help here"
