"""What of a source folder is taken along."""

import importlib
import os
import socket
import time
from pathlib import Path

import pytest

from runyard.sdk import hash_cache, snapshot_limits
from runyard.sdk.exceptions import SnapshotException
from runyard.sdk.hash_cache import digests
from runyard.sdk.snapshot import take_snapshot
from runyard.sdk.source_tree import SourceFile, check_limits, walk_source


def paths(folder: Path) -> list[str]:
    return sorted(file.path for file in walk_source(folder).files)


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return folder


@pytest.mark.parametrize(
    ("ignore_files", "kept"),
    [
        ({}, ["a.py", "data/big.bin", "data/keep.txt", "sub/a.log"]),
        ({".gitignore": "*.log\n"}, [".gitignore", "a.py", "data/big.bin", "data/keep.txt"]),
        ({".amlignore": "data/\n"}, [".amlignore", "a.py", "sub/a.log"]),
        # .amlignore wins outright: the .gitignore beside it is not merged.
        (
            {".amlignore": "data\n", ".gitignore": "*.log\n"},
            [".amlignore", ".gitignore", "a.py", "sub/a.log"],
        ),
        (
            {".amlignore": "# comment\n\ndata/*\n!data/keep.txt\n"},
            [".amlignore", "a.py", "data/keep.txt", "sub/a.log"],
        ),
        ({".amlignore": "/sub\n**/big.*\n"}, [".amlignore", "a.py", "data/keep.txt"]),
        # Only the file at the root counts.
        (
            {"sub/.amlignore": "*\n"},
            ["a.py", "data/big.bin", "data/keep.txt", "sub/.amlignore", "sub/a.log"],
        ),
    ],
)
def test_ignore_files_are_read_as_v1_read_them(
    tmp_path: Path, ignore_files: dict[str, str], kept: list[str]
) -> None:
    tree(tmp_path, "a.py", "data/big.bin", "data/keep.txt", "sub/a.log", ".git/HEAD")
    for name, text in ignore_files.items():
        (tmp_path / name).write_text(text)
    assert paths(tmp_path) == sorted(kept)


def test_odd_names_are_taken_along(tmp_path: Path) -> None:
    names = ["with space.py", "quote'\".py", "new\nline.py", "ünï/文.py", "-rf", "$HOME.py"]
    assert paths(tree(tmp_path, *names)) == sorted(names)


def test_a_name_that_is_no_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/bad\xff.py", "wb"):
        pass
    with pytest.raises(SnapshotException, match=r"UTF-8"):
        paths(tmp_path)


def test_links_inside_become_copies_and_links_out_are_left_out(tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside", "secret.txt")
    folder = tree(tmp_path / "src", "a.py", "lib/b.py")
    (folder / "same.py").symlink_to("a.py")
    (folder / "libs").symlink_to("lib")
    (folder / "out").symlink_to(outside)
    (folder / "out.txt").symlink_to(outside / "secret.txt")
    (folder / "broken").symlink_to("nothing")
    (folder / "lib" / "up").symlink_to("..")
    found = walk_source(folder)
    assert sorted(file.path for file in found.files) == [
        "a.py",
        "lib/b.py",
        "libs/b.py",
        "same.py",
    ]
    assert len([note for note in found.notes if "link" in note]) == 5


def test_a_folder_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    tree(tmp_path / "real", "a.py")
    (tmp_path / "link").symlink_to("real")
    assert paths(tmp_path / "link") == ["a.py"]


def test_sockets_are_left_out_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
        found = walk_source(tmp_path)
    assert not found.files
    assert "ordinary file" in found.notes[0]


def test_the_home_folder_is_never_part_of_it(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", ".runyard/runyard.db")
    home = tmp_path / ".runyard"
    assert [file.path for file in walk_source(tmp_path, leave_out=home).files] == ["a.py"]


def test_too_large_a_folder_names_the_largest_files(tmp_path: Path) -> None:
    for number in range(7):
        with (tmp_path / f"{number}.bin").open("wb") as file:
            file.truncate(number * 1_000_000)  # sparse: nothing is written
    with pytest.raises(SnapshotException) as caught:
        check_limits(walk_source(tmp_path), 10_000_000, 2000)
    text = caught.value.message
    assert "20.0 MB in 7 files" in text
    assert all(f"{number}.bin" in text for number in (2, 3, 4, 5, 6))
    assert "1.bin" not in text
    assert ".amlignore" in text


def test_too_many_files_say_how_to_lift_the_limit(tmp_path: Path) -> None:
    found = walk_source(tree(tmp_path, "a", "b", "c"))
    with pytest.raises(SnapshotException, match="AML_SNAPSHOT_NO_FILE_LIMIT"):
        check_limits(found, 1000, 2)
    check_limits(found, 1000, None)


def test_v1s_variables_change_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1 = importlib.import_module("azureml._restclient.snapshots_client")
    assert v1.SNAPSHOT_MAX_SIZE_BYTES == 300 * 1024 * 1024
    folder = tree(tmp_path / "src", "a.py", "b.py")
    monkeypatch.setattr(v1, "SNAPSHOT_MAX_SIZE_BYTES", 3)
    with pytest.raises(SnapshotException):
        take_snapshot(folder, tmp_path / "home")
    monkeypatch.setattr(v1, "SNAPSHOT_MAX_SIZE_BYTES", 1000)
    monkeypatch.setattr(snapshot_limits, "SNAPSHOT_MAX_FILES", 1)
    with pytest.raises(SnapshotException):
        take_snapshot(folder, tmp_path / "home")
    monkeypatch.setenv("AML_SNAPSHOT_NO_FILE_LIMIT", "1")
    assert len(take_snapshot(folder, tmp_path / "home").manifest) == 2


def test_equal_trees_have_equal_ids_wherever_they_are(tmp_path: Path) -> None:
    ids = {
        take_snapshot(tree(tmp_path / name, "a.py", "b/c.py"), tmp_path / "home").id
        for name in ("one", "two")
    }
    assert len(ids) == 1


def test_an_unchanged_file_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree(tmp_path / "src", "a.py", "b.py")
    later = time.time_ns() + 10 * hash_cache.UNSETTLED_NS
    first = digests(walk_source(folder), tmp_path / "cache", now_ns=later)
    hash_cache._memory.clear()  # as in another process: only the file on disk remembers
    (folder / "b.py").write_text("changed")
    read: list[str] = []
    real = hash_cache.digest_of

    def counting(file: SourceFile) -> str:
        read.append(file.path)
        return real(file)

    monkeypatch.setattr(hash_cache, "digest_of", counting)
    second = digests(walk_source(folder), tmp_path / "cache", now_ns=later)
    assert read == ["b.py"]
    assert second["a.py"] == first["a.py"]
    assert second["b.py"] != first["b.py"]


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    folder = tree(tmp_path / "src", "a.py")
    first = digests(walk_source(folder), tmp_path / "cache")
    info = (folder / "a.py").stat()
    (folder / "a.py").write_text("A.PY")  # the same size
    os.utime(folder / "a.py", ns=(info.st_atime_ns, info.st_mtime_ns))  # and the same time
    assert digests(walk_source(folder), tmp_path / "cache") != first


@pytest.mark.parametrize("damage", [b"", b"{", b'{"a.py": 3}', b"\xff"])
def test_a_damaged_cache_costs_only_time(tmp_path: Path, damage: bytes) -> None:
    folder = tree(tmp_path / "src", "a.py")
    later = time.time_ns() + 10 * hash_cache.UNSETTLED_NS
    first = digests(walk_source(folder), tmp_path / "cache", now_ns=later)
    hash_cache._memory.clear()
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage)
    assert digests(walk_source(folder), tmp_path / "cache", now_ns=later) == first


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    folder = tree(tmp_path / "src", "a.py")
    (tmp_path / "cache").write_text("a file where the folder should be")
    later = time.time_ns() + 10 * hash_cache.UNSETTLED_NS
    assert digests(walk_source(folder), tmp_path / "cache", now_ns=later)


def test_executable_files_stay_executable(tmp_path: Path) -> None:
    folder = tree(tmp_path / "src", "run.sh", "a.py")
    (folder / "run.sh").chmod(0o700)
    modes = {file.path: file.mode for file in walk_source(folder).files}
    assert modes == {"run.sh": 0o755, "a.py": 0o644}
