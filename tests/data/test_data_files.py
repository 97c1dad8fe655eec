"""The files of every kind of datastore keep the same promises; a folder keeps its walls."""

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runyard.data.base import Files
from runyard.data.folder import FolderFiles
from runyard.data.managed import ManagedFiles
from runyard.data.remote import RemoteFiles
from runyard.domain.data import DatastoreKind, DatastoreRecord
from runyard.domain.errors import Denied, Invalid, NotFound, RunyardError, Unavailable, Unsupported
from runyard.stores import open_store
from runyard.testing.data_suite import FilesSuite, put, read

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class TestFiles(FilesSuite):
    """The shipped suite on every implementation."""

    @pytest.fixture(params=["managed", "folder", "remote"])
    def files(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
        if request.param == "folder":
            (tmp_path / "a folder").mkdir()
            yield FolderFiles(tmp_path / "a folder")
        elif request.param == "remote":
            yield RemoteFiles(f"memory://{uuid.uuid4().hex}/root", {}, {})
        else:
            store = open_store(f"sqlite:///{tmp_path / 'db'}", str(tmp_path / "blobs"))
            kind = DatastoreKind.MANAGED
            record = DatastoreRecord(id="d", workspace="w", name="d", kind=kind, created=NOW)
            store.records.insert(record)
            yield ManagedFiles(store, "d")
            store.close()


@pytest.fixture
def walls(tmp_path: Path) -> Path:
    """A folder with links in and out of it; beside it stands what must not be reached."""
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hidden")
    (root / "in" / "file").write_text("inside")
    (root / "link-in").symlink_to(root / "in" / "file")
    (root / "folder-in").symlink_to(root / "in")
    (root / "link-out").symlink_to(tmp_path / "secret" / "key")
    (root / "folder-out").symlink_to(tmp_path / "secret")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    return root


def test_links_are_followed_as_far_as_they_stay_inside(walls: Path) -> None:
    files = FolderFiles(walls)
    assert sorted(file.path for file in files.list()) == ["in/file", "link-in"]
    assert read(files, "link-in") == b"inside"
    assert read(files, "folder-in/file") == b"inside"
    assert read(files, "loop/loop/in/file") == b"inside"


@pytest.mark.parametrize(
    "path", ["link-out", "folder-out/key", "../secret/key", "in/../../secret/key", "dangling"]
)
def test_nothing_outside_a_folder_is_read(walls: Path, path: str) -> None:
    files = FolderFiles(walls)
    with pytest.raises(NotFound):
        files.open(path)
    with pytest.raises(NotFound):
        files.find(path)
    assert list(files.list(path.rpartition("/")[0] or "folder-out")) == [] or "/" not in path


@pytest.mark.parametrize("path", ["folder-out/new", "../new", "folder-out/deep/new", "in/file/x"])
def test_nothing_outside_a_folder_is_written(walls: Path, path: str) -> None:
    with pytest.raises(RunyardError):
        put(FolderFiles(walls), path, b"x")
    assert sorted(os.listdir(walls.parent)) == ["root", "secret"]
    assert os.listdir(walls.parent / "secret") == ["key"]


def test_writing_over_a_link_that_leads_out_replaces_the_link(walls: Path) -> None:
    put(FolderFiles(walls), "link-out", b"mine")
    assert (walls.parent / "secret" / "key").read_text() == "hidden"
    assert (walls / "link-out").read_text() == "mine"


def test_a_pipe_is_no_file_and_keeps_nobody_waiting(walls: Path) -> None:
    with pytest.raises(NotFound):
        FolderFiles(walls).open("pipe")


def test_what_is_hidden_is_not_there(walls: Path) -> None:
    files = FolderFiles(walls.parent, hidden=walls.parent / "secret")
    assert "secret/key" not in {file.path for file in files.list()}
    for path in ("secret/key", "root/folder-out/key"):
        with pytest.raises(NotFound):
            files.open(path)


def test_a_name_that_is_not_text_is_left_out(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("x")
    (tmp_path / "fine").write_text("x")
    assert [file.path for file in FolderFiles(tmp_path).list()] == ["fine"]


def test_a_folder_that_went_away_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="is not there"):
        list(FolderFiles(tmp_path / "gone").list())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    (tmp_path / "x").chmod(0)
    with pytest.raises(Denied):
        FolderFiles(tmp_path).open("x")


def test_a_scheme_nobody_knows_and_a_client_that_is_missing() -> None:
    with pytest.raises(Invalid, match="Known are"):
        RemoteFiles("gopher://x/y", {}, {})
    with pytest.raises(Unsupported) as caught:
        RemoteFiles("gs://bucket/x", {}, {})
    assert "runyard[gcs]" in caught.value.fix


def test_a_clients_own_words_never_hold_the_credentials() -> None:
    secret = "hunter2-hunter2"
    files = RemoteFiles("memory://x", {}, {})
    files._secrets = (secret,)

    class Angry:
        def find(self, path: str, detail: bool) -> object:
            raise RuntimeError(f"could not log in with {secret} at {path}")

    files._files = Angry()
    with pytest.raises(Unavailable) as caught:
        list(files.list())
    assert "could not log in with ***" in caught.value.why
    assert caught.value.__suppress_context__
