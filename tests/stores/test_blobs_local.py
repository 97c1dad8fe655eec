"""What is special about blobs in a folder."""

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.domain.errors import Unavailable
from runyard.stores import open_blobs
from runyard.stores.blobs_local import STALE_SECONDS, LocalBlobs

HELLO = hashlib.sha256(b"hello").hexdigest()


def test_agents_find_contents_as_files(tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path))
    blobs.put(HELLO, [b"hello"])
    assert blobs.folder() == str(tmp_path)
    file = tmp_path / HELLO[:2] / HELLO[2:]
    assert file.read_bytes() == b"hello"
    assert file.stat().st_mode & 0o400


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    open_blobs(f"file://{tmp_path}").put(HELLO, [b"hello"])
    assert open_blobs(str(tmp_path)).size(HELLO) == 5


def test_nothing_unfinished_stays_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"hel"
        raise ConnectionError

    blobs = LocalBlobs(tmp_path)
    with pytest.raises(ConnectionError):
        blobs.put(HELLO, broken())
    blobs.put(HELLO, [b"hello"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [
        tmp_path / HELLO[:2] / HELLO[2:]
    ]


def test_old_unfinished_files_are_swept_and_young_ones_are_not(tmp_path: Path) -> None:
    LocalBlobs(tmp_path)
    old, young = tmp_path / "tmp" / "old", tmp_path / "tmp" / "young"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    LocalBlobs(tmp_path)
    assert not old.exists()
    assert young.exists()
    LocalBlobs(tmp_path, now=lambda: time.time() + STALE_SECONDS + 60)
    assert not young.exists()


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    def full() -> Iterator[bytes]:
        yield b"hel"
        raise OSError(errno.ENOSPC, "No space left on device")

    blobs = LocalBlobs(tmp_path)
    with pytest.raises(Unavailable, match="could not be kept") as caught:
        blobs.put(HELLO, full())
    assert "RUNYARD_BLOBS" in caught.value.fix
    assert list((tmp_path / "tmp").iterdir()) == []


def test_reading_is_not_tied_to_closing(tmp_path: Path) -> None:
    # Warnings are errors here: an iterator that is dropped must not leave a file open.
    blobs = LocalBlobs(tmp_path)
    blobs.put(HELLO, [b"hello"])
    blobs.open(HELLO)
    assert next(iter(blobs.open(HELLO))) == b"hello"
