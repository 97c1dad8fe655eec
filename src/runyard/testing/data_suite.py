"""What the files of every datastore promise. Subclass it and give it a `files` fixture:

class TestMyFiles(FilesSuite):
    @pytest.fixture
    def files(self) -> Files:
        ...  # of an empty datastore
"""

import hashlib
from collections.abc import Iterator

import pytest

from runyard.data.base import Files
from runyard.domain.errors import NotFound

PATHS = ["a.txt", "train/b.txt", "train/deep/c.txt", "training/d.txt", "Größe/損失 🏃.txt"]


def put(files: Files, path: str, content: bytes) -> None:
    """Write a file."""
    files.write(path, hashlib.sha256(content).hexdigest(), [content[:3], content[3:]])


def read(files: Files, path: str, start: int = 0, end: int | None = None) -> bytes:
    """Read a part of a file."""
    return b"".join(files.open(path, start, end))


class FilesSuite:
    """The promises of `data.base.Files`."""

    @pytest.fixture
    def filled(self, files: Files) -> Files:
        """A few files in a few folders; each holds its own path."""
        for path in PATHS:
            put(files, path, path.encode())
        return files

    def test_what_was_written_is_read_whole_and_in_parts(self, filled: Files) -> None:
        for path in PATHS:
            assert read(filled, path) == path.encode()
        assert read(filled, "train/b.txt", 2, 5) == b"ain"
        assert read(filled, "train/b.txt", 2) == b"ain/b.txt"
        assert read(filled, "train/b.txt", 2, 999) == b"ain/b.txt"
        assert read(filled, "train/b.txt", 4, 4) == b""

    def test_a_folder_is_listed_to_its_ground_and_no_further(self, filled: Files) -> None:
        assert sorted(file.path for file in filled.list()) == sorted(PATHS)
        assert sorted(file.path for file in filled.list("train")) == PATHS[1:3]
        assert [file.size for file in filled.list("train/deep")] == [16]
        # A file is not a folder, and a beginning of a name is not one either.
        assert [list(filled.list(name)) for name in ("a.txt", "tra", "none/such")] == [[], [], []]

    def test_one_file_is_found_by_its_path(self, filled: Files) -> None:
        assert filled.find("train/b.txt")[:2] == ("train/b.txt", 11)
        for path in ("train", "nothing", "train/b.txt/x", ""):
            with pytest.raises(NotFound):
                filled.find(path)
            with pytest.raises(NotFound):
                filled.open(path)

    def test_writing_again_replaces_and_the_stamp_tells(self, files: Files) -> None:
        put(files, "x/y", b"first")
        before = files.find("x/y")
        put(files, "x/y", b"second!")
        assert read(files, "x/y") == b"second!"
        assert before.stamp != files.find("x/y").stamp or not before.stamp

    def test_an_empty_file_is_a_file(self, files: Files) -> None:
        put(files, "empty", b"")
        assert files.find("empty").size == 0
        assert read(files, "empty") == b""

    def test_a_content_that_breaks_off_leaves_what_was_there(self, files: Files) -> None:
        put(files, "x", b"whole")

        def broken() -> Iterator[bytes]:
            yield b"ha"
            raise ConnectionResetError

        with pytest.raises(Exception):  # noqa: B017, PT011 - of whatever kind
            files.write("x", hashlib.sha256(b"half").hexdigest(), broken())
        assert read(files, "x") == b"whole"
        assert [file.path for file in files.list()] == ["x"]
