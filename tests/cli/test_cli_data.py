"""`runyard data …` on a real server, as somebody types it."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runyard.cli.progress import CountedFile, Progress, render_progress

Type = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is a workspace, with a server of its own."""
    folder = tmp_path_factory.mktemp("workspace")
    type_in(folder, "init", "yard")
    yield folder
    type_in(folder, "down")


def type_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUNYARD_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-m", "runyard", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(folder: Path, *words: str) -> object:
    done = type_in(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.story
def test_a_folder_goes_up_becomes_a_dataset_and_comes_back(place: Path) -> None:
    source = place / "some digits"
    (source / "deep").mkdir(parents=True)
    (source / "one.bin").write_bytes(os.urandom(3_000_000))
    (source / "deep" / "zwei ü.txt").write_text("2")
    done = type_in(place, "data", "upload", "some digits", "--register", "digits")
    assert done.stdout == "2 files to workspaceblobstore:some digits\ndigits:1\n", done.stderr
    again = answer(place, "data", "upload", "some digits")
    assert isinstance(again, dict)
    assert (again["uploaded"], again["there_already"]) == (0, 2)
    shown = answer(place, "data", "show", "digits:1")
    assert isinstance(shown, dict)
    assert [file[0] for file in shown["files"]] == ["deep/zwei ü.txt", "one.bin"]
    assert "digits  1 " in type_in(place, "data", "ls").stdout
    assert type_in(place, "data", "download", "digits", "back").returncode == 0
    for file in ("one.bin", "deep/zwei ü.txt"):
        assert (place / "back" / file).read_bytes() == (source / file).read_bytes()
    refused = type_in(place, "data", "download", "digits", "back")
    assert refused.returncode == 1
    assert "--overwrite" in refused.stderr
    assert type_in(place, "data", "download", "digits", "back", "--overwrite").returncode == 0


@pytest.mark.story
def test_a_folder_becomes_a_datastore_and_patterns_choose(place: Path) -> None:
    pool = place / "pool"
    pool.mkdir()
    for name in ("a.csv", "b.csv", "c.txt"):
        (pool / name).write_text("x\n1\n")
    stores = type_in(place, "data", "stores", "--add", "pool=pool", "--default", "pool")
    assert re.search(r"pool \(default\) +remote", stores.stdout), stores.stderr
    done = type_in(
        place, "data", "register", "tables", "pool:*.csv", "--reader", "delimited", "--tag", "a=b"
    )
    assert done.stdout == "tables:1\n", done.stderr
    assert "2, 8 B" in type_in(place, "data", "show", "tables").stdout
    files = answer(place, "data", "ls", "pool:a")
    assert isinstance(files, list)
    assert [file["path"] for file in files] == ["a.csv"]


@pytest.mark.story
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("show", "nobody"), "There is no dataset 'nobody'"),
        (("download", "nobody:3", "x"), "There is no dataset 'nobody'"),
        (("register", "x", "workspaceblobstore:none/*"), "matches nothing"),
        (("register", "x", "./local"), "neither a web address nor a place"),
        (("register", "../x", "workspaceblobstore:a", "--no-check"), "not a valid dataset name"),
        (("ls", "nonsense"), "Type STORE:PATH"),
        (("stores", "--add", "x"), "Type --add NAME=URL"),
        (("stores", "--add", "x=/no/such/folder"), "is not there"),
    ],
)
def test_mistakes_are_answered_in_words(place: Path, words: tuple[str, ...], expected: str) -> None:
    done = type_in(place, "data", *words)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("done", "total", "seconds", "line"),
    [
        (0, 100, 0.0, "Up ░░░░░░░░░░░░░░░░░░░░░░░░   0%  0 B of 100 B  0 B/s"),
        (
            1_000_000,
            4_000_000,
            2.0,
            "Up ██████░░░░░░░░░░░░░░░░░░  25%  1.0 MB of 4.0 MB  500.0 kB/s  6.0s left",
        ),
        (100, 100, 1.0, "Up ████████████████████████ 100%  100 B of 100 B  100 B/s"),
        (500, 0, 1.0, "Up 500 B  500 B/s"),
    ],
)
def test_a_bar_says_bytes_rate_and_the_time_that_is_left(
    done: int, total: int, seconds: float, line: str
) -> None:
    assert render_progress("Up", done, total, seconds) == line


def test_what_is_sent_again_counts_once() -> None:
    progress = Progress("Up", 10, shown=False)
    with CountedFile(io.BytesIO(b"0123456789"), progress) as file:
        file.read(6)
        file.seek(0)
        while file.read(4):
            pass
    assert progress.done == 10
