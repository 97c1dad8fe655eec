"""Finding interpreters, and using one that the user looks after."""

import os
import stat
import sys
from pathlib import Path

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import EngineFailed
from runyard.environments import open_builders
from runyard.environments.base import builder_for
from runyard.environments.interpreters import (
    Probe,
    candidates,
    choose_interpreter,
    installed,
    is_pyenv_shim,
    locate,
)

OWN = ".".join(str(part) for part in sys.version_info[:3])


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake_python(path: Path, version: tuple[int, int, int], log: Path | None = None) -> Path:
    """A program that answers the question as an interpreter of that version would."""
    answer = f'runyard:[{list(version)}, "{path}", "cpython"]'
    note = f'echo asked >> "{log}"\n' if log else ""
    return script(path, f"#!/bin/sh\n{note}echo '{answer}'\n")


def use(tmp_path: Path, interpreter: str, environ: dict[str, str] | None = None) -> list[str]:
    """Build with that interpreter setting; the log's lines."""
    spec = EnvironmentSpec(name="mine", user_managed=True, interpreter=interpreter)
    builder = builder_for(spec, open_builders(tmp_path / "root", environ or dict(os.environ)))
    assert builder.ready(spec) is None
    lines: list[str] = []
    built = builder.build(spec, lines.append)
    assert builder.ready(spec) == built
    return [built.interpreter, built.python, *built.notes]


def test_a_path_is_used_as_it_is(tmp_path: Path) -> None:
    assert use(tmp_path, sys.executable) == [sys.executable, OWN]


def test_a_venv_folder_and_a_home_folder_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "my venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert use(tmp_path, str(tmp_path / "my venv"))[0] == str(python)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert use(tmp_path, "~/my venv/bin/python")[0] == str(python)


def test_a_name_is_looked_up_on_path(tmp_path: Path) -> None:
    found = fake_python(tmp_path / "bin" / "mypython", (3, 9, 2))
    assert use(tmp_path, "mypython", {"PATH": f"{tmp_path}/bin:/bin"}) == [str(found), "3.9.2"]


def test_without_a_python_on_path_another_one_is_taken_and_said(tmp_path: Path) -> None:
    interpreter, version, note = use(tmp_path, "python", {"PATH": str(tmp_path)})
    assert (interpreter, version) == (sys.executable, OWN)
    assert "no 'python' on PATH" in note


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "There is no file"),
        (lambda path: path.write_text("x"), "is not executable"),
        (lambda path: script(path, "#!/bin/sh\necho hello\n"), "did not answer"),
        (lambda path: script(path, "garbage"), "did not answer"),
        (lambda path: fake_python(path, (2, 7, 18)), "jobs need 3.6"),
        (lambda path: path.mkdir(), "holds no bin/python"),
    ],
)
def test_an_interpreter_that_does_not_work_is_said_to_be_so(
    tmp_path: Path, make: object, why: str
) -> None:
    path = tmp_path / "strange"
    make(path)  # type: ignore[operator]
    with pytest.raises(EngineFailed) as caught:
        use(tmp_path, str(path))
    assert str(path) in caught.value.what
    assert why in caught.value.why
    assert OWN in caught.value.fix, "it says what there is"


def test_a_name_that_is_nowhere_shows_the_path_that_was_searched(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as caught:
        use(tmp_path, "python9", {"PATH": "/nowhere/bin"})
    assert "/nowhere/bin" in caught.value.why


def test_an_interpreter_is_asked_once_until_its_file_changes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = str(fake_python(tmp_path / "python", (3, 8, 1), log))
    probe = Probe()
    assert probe.known(path) is None
    for _ in range(3):
        assert probe.ask(path, {"PATH": "/bin"})
    assert log.read_text() == "asked\n"
    fake_python(tmp_path / "python", (3, 8, 20), log)
    assert probe.known(path) is None
    again = probe.ask(path, {"PATH": "/bin"})
    assert again is not None
    assert again.version_text == "3.8.20"


def test_a_removed_interpreter_is_no_longer_ready(tmp_path: Path) -> None:
    path = fake_python(tmp_path / "python", (3, 8, 1))
    spec = EnvironmentSpec(name="mine", user_managed=True, interpreter=str(path))
    builder = builder_for(spec, open_builders(tmp_path))
    builder.build(spec, print)
    path.unlink()
    assert builder.ready(spec) is None


def test_a_pyenv_shim_leads_to_the_real_interpreter(tmp_path: Path) -> None:
    real = fake_python(tmp_path / "versions" / "3.8.1" / "bin" / "python", (3, 8, 1))
    shim = script(
        tmp_path / "shims" / "python", f'#!/bin/sh\n# runs "pyenv exec"\nexec "{real}" "$@"\n'
    )
    assert is_pyenv_shim(str(shim))
    assert not is_pyenv_shim(str(real))
    assert use(tmp_path, "python", {"PATH": f"{shim.parent}:/bin"})[:2] == [str(real), "3.8.1"]


def many(tmp_path: Path) -> dict[str, str]:
    """A home with interpreters of every kind, and a log of who was asked."""
    log = tmp_path / "asked"
    fake_python(tmp_path / "bin" / "python3.6", (3, 6, 9), log)
    fake_python(tmp_path / ".pyenv/versions/3.6.15/bin/python3", (3, 6, 15), log)
    fake_python(tmp_path / ".pyenv/versions/3.7.1/bin/python3", (3, 7, 1), log)
    fake_python(tmp_path / ".local/share/uv/python/cpython-3.9.5-linux/bin/python3", (3, 9, 5), log)
    fake_python(tmp_path / "miniconda3/envs/old/bin/python", (3, 8, 3), log)
    (tmp_path / "bin" / "python3-config").touch(mode=0o755)
    return {"PATH": f"{tmp_path}/bin:/bin-that-is-not-there", "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("asked", "chosen", "note"),
    [
        ("3.6.9", "3.6.9", ""),
        ("3.6.2", "3.6.15", "asked for Python 3.6.2, using 3.6.15"),
        ("3.6", "3.6.15", ""),
        ("3.8", "3.8.3", ""),
        ("3.9.1", "3.9.5", "asked for Python 3.9.1, using 3.9.5"),
        ("3.5.2", None, ""),
    ],
)
def test_interpreters_of_every_kind_are_found(
    tmp_path: Path, asked: str, chosen: str | None, note: str
) -> None:
    interpreter, said = choose_interpreter(asked, many(tmp_path), Probe())
    assert (interpreter.version_text if interpreter else None) == chosen
    assert said == note


def test_only_interpreters_that_may_fit_are_started(tmp_path: Path) -> None:
    choose_interpreter("3.7.1", many(tmp_path), Probe())
    assert (tmp_path / "asked").read_text().count("asked") == 2, "3.7 by name, conda's by asking"


def test_nothing_asked_means_the_platforms_own(tmp_path: Path) -> None:
    interpreter, note = choose_interpreter(None, {"PATH": "/nowhere"}, Probe())
    assert interpreter is not None
    assert (interpreter.path, note) == (sys.executable, "")


def test_all_that_is_installed_is_listed_newest_first(tmp_path: Path) -> None:
    versions = [one.version for one in installed(many(tmp_path), Probe())]
    assert versions == sorted(versions, reverse=True)
    assert {(3, 6, 15), (3, 7, 1), (3, 8, 3), (3, 9, 5)} <= set(versions)


def test_shims_and_other_programs_are_no_candidates(tmp_path: Path) -> None:
    environ = many(tmp_path)
    script(tmp_path / "shims" / "python3.6", "#!/bin/sh\npyenv\n")
    environ["PATH"] = f"{tmp_path}/shims:{environ['PATH']}"
    found = list(candidates(environ))
    assert not [path for path in found if "/shims/" in path or path.endswith("-config")]


def test_a_setting_of_blanks_finds_nothing(tmp_path: Path) -> None:
    assert locate("no-such-python", {"PATH": str(tmp_path)}) is None
