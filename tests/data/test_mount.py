"""The mount process: a real FUSE mount over a real web server."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from runyard.data import mount_contents
from runyard.testing.fake_server import largest_file, wait_until
from runyard.testing.faulty_web import FaultyWeb, cut, hang, status
from runyard.testing.fuse import why_no_fuse
from runyard_runtime import mounts, processes
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.origins import File

pytestmark = pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse())

LARGE = mount_contents.EAGER_BYTES + (4 << 20) + 12345  # not streamed at the first read
MIDDLE = mount_contents.SMALL_BYTES + 54321


def pattern(size: int) -> bytes:
    """Bytes that differ from block to block."""
    block = b"".join(number.to_bytes(8, "big") for number in range(1 << 14))
    return (block * (size // len(block) + 1))[:size]


class Mounted:
    """A mount process and what it was told."""

    def __init__(self, folder: Path, web: FaultyWeb) -> None:
        self.folder, self.web = folder, web
        self.point, self.link = folder / "point", folder / "data"
        self.point.mkdir(parents=True)
        self.link.symlink_to(self.point)
        self.rows: list[list[object]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.config: dict[str, object] = {
            "url": web.url,
            "token": "secret",
            "cache": str(folder.parent / "cache"),
            "cache_bytes": 1 << 40,
            "fetching": {"allow_private": True},
            "run_id": "run",
            "log": str(folder / "log"),
            "link": str(self.link),
            "plain": str(folder / "plain"),
        }

    def add(self, path: str, data: bytes, *, size: int | None = None, ranges: bool = True) -> None:
        """Have the mount show a file of the web server."""
        page = self.web.put(f"/{path}", data, ranges=ranges)
        origin = f"url:{self.web.url}/{quote(path)}"
        self.rows.append([path, len(data) if size is None else size, origin, page.etag])

    def start(self) -> None:
        """Mount, and wait until it can be used."""
        words = []
        documents = {"files": {"files": self.rows, "single": False}, "config": self.config}
        for name, value in documents.items():
            (self.folder / name).write_text(json.dumps(value))
            words.append(str(self.folder / name))
        ready = self.folder / "status"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "runyard.data.mount", str(self.point), *words, str(ready)]
        with (self.folder / "errors").open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)
        wait_until(ready.exists)
        assert json.loads(ready.read_text())["ready"], ready.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(10)

    @property
    def is_plain(self) -> bool:
        """True once the link leads to plain files."""
        return os.readlink(self.link) == str(self.folder / "plain")

    def log(self) -> str:
        """What it complained of."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def web() -> Iterator[FaultyWeb]:
    with FaultyWeb() as web:
        yield web


@pytest.fixture
def mounted(tmp_path: Path, web: FaultyWeb) -> Iterator[Mounted]:
    made = Mounted(tmp_path / "job", web)
    yield made
    _end(made)


def _end(made: Mounted) -> None:
    if made.process is not None and made.process.poll() is None:
        made.stop()
    mounts.clear(str(made.folder))


ODD = ["a.txt", "folder/with spaces/b.txt", "folder/ü – 文.txt", "folder/new\nline", "empty"]


def test_names_sizes_and_contents(mounted: Mounted) -> None:
    contents = {name: (name * 100).encode() if name != "empty" else b"" for name in ODD}
    for name, data in contents.items():
        mounted.add(name, data)
    mounted.start()
    found = {
        str((Path(folder) / name).relative_to(mounted.point)): (Path(folder) / name)
        for folder, _, names in os.walk(mounted.point)
        for name in names
    }
    assert {name: path.stat().st_size for name, path in found.items()} == {
        name: len(data) for name, data in contents.items()
    }
    assert not mounted.web.requests  # looking costs nothing
    assert {name: path.read_bytes() for name, path in found.items()} == contents
    with pytest.raises(FileNotFoundError):
        (mounted.point / "nothing").stat()


def test_it_is_read_only(mounted: Mounted) -> None:
    mounted.add("a.txt", b"a")
    mounted.start()
    for action in (
        lambda: (mounted.point / "a.txt").write_text("b"),
        lambda: (mounted.point / "new").touch(),
        lambda: (mounted.point / "a.txt").unlink(),
    ):
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is looked at
            action()
        assert raised.value.errno == errno.EROFS


def test_a_file_of_unknown_size_is_fetched_to_know_it(mounted: Mounted) -> None:
    mounted.add("a.txt", b"twelve bytes", size=-1)
    mounted.start()
    assert (mounted.point / "a.txt").stat().st_size == 12
    assert (mounted.point / "a.txt").read_bytes() == b"twelve bytes"
    assert mounted.web.asked("/a.txt") == 1


def test_files_read_in_order_are_fetched_ahead_and_once(mounted: Mounted) -> None:
    for number in range(200):
        mounted.add(f"{number:03d}", b"%d" % number)
    mounted.start()
    for number in range(3):
        assert (mounted.point / f"{number:03d}").read_bytes() == b"%d" % number
    wait_until(lambda: len(mounted.web.requests) > 20)
    for number in range(200):
        assert (mounted.point / f"{number:03d}").read_bytes() == b"%d" % number
    assert len(mounted.web.requests) == 200


def test_when_all_is_fetched_plain_files_take_its_place(mounted: Mounted) -> None:
    mounted.add("deep/a.txt", b"a" * 100)
    mounted.add("b.bin", pattern(MIDDLE))
    mounted.start()
    before = (mounted.link / "deep/a.txt").stat()
    assert (mounted.link / "deep/a.txt").read_bytes() == b"a" * 100
    assert not mounted.is_plain
    assert (mounted.link / "b.bin").read_bytes() == pattern(MIDDLE)
    wait_until(lambda: mounted.is_plain)
    after = (mounted.link / "deep/a.txt").stat()
    for name in ("st_mode", "st_size", "st_mtime_ns", "st_uid"):
        assert getattr(before, name) == getattr(after, name)
    assert (mounted.link / "b.bin").read_bytes() == pattern(MIDDLE)
    assert (mounted.point / "b.bin").read_bytes() == pattern(MIDDLE)  # the mount goes on
    assert mounted.stop() == 0
    assert (mounted.link / "deep/a.txt").read_bytes() == b"a" * 100


def test_a_large_file_is_followed_while_it_comes(mounted: Mounted) -> None:
    data = pattern(LARGE)
    mounted.add("large", data)
    mounted.start()
    assert hashlib.sha256((mounted.point / "large").read_bytes()).digest() == (
        hashlib.sha256(data).digest()
    )
    whole = [one for one in mounted.web.requests if "Range" not in one[2]]
    assert len(whole) == 1
    contents = mounted.folder.parent / "cache" / "contents"
    wait_until(lambda: largest_file(contents) == LARGE)


def test_looking_into_a_large_file_does_not_fetch_all_of_it(mounted: Mounted) -> None:
    data = pattern(LARGE)
    mounted.add("large", data)
    mounted.start()
    with (mounted.point / "large").open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for offset in (LARGE - 1000, 0, 50 << 20, (20 << 20) - 10):
            stream.seek(offset)
            assert stream.read(1000) == data[offset : offset + 1000]
    assert all("Range" in one[2] for one in mounted.web.requests)
    assert len(mounted.web.requests) <= 6


def test_a_server_without_parts_serves_a_large_file_too(mounted: Mounted) -> None:
    data = pattern(LARGE)
    mounted.add("large", data, ranges=False)
    mounted.start()
    with (mounted.point / "large").open("rb") as stream:
        stream.seek(LARGE - 1000)
        assert stream.read() == data[-1000:]


def test_a_cut_in_the_middle_is_not_noticed_by_the_reader(mounted: Mounted) -> None:
    data = pattern(MIDDLE)
    mounted.add("middle", data)
    mounted.web.next("/middle", cut(1_000_000), cut(5_000_000))
    mounted.start()
    assert (mounted.point / "middle").read_bytes() == data


def test_what_cannot_be_read_is_an_error_and_said(mounted: Mounted) -> None:
    mounted.add("gone", b"x")
    mounted.add("there", b"y")
    mounted.web.next("/gone", *[status(404)] * 9)
    mounted.start()
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is looked at
        (mounted.point / "gone").read_bytes()
    assert raised.value.errno == errno.EIO
    assert (mounted.point / "there").read_bytes() == b"y"
    assert "'gone' cannot be read" in mounted.log()
    assert "no such file" in mounted.log()


def test_a_content_that_changes_half_way_is_an_error_not_a_mixture(mounted: Mounted) -> None:
    old = pattern(MIDDLE)
    mounted.add("middle", old)
    mounted.web.next("/middle", hang(4 << 20))
    mounted.start()
    with (mounted.point / "middle").open("rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert stream.read(4096) == old[:4096]
        mounted.web.put("/middle", bytes(MIDDLE))
        mounted.web.released.set()
        stream.seek(8 << 20)
        try:
            assert stream.read(4096) == old[8 << 20 : (8 << 20) + 4096]
        except OSError as error:
            assert error.errno == errno.EIO  # noqa: PT017 - the old content would do as well


def test_sigterm_unmounts(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.start()
    assert mounted.stop() == 0
    assert not mounts.mount_points(str(mounted.folder))
    assert os.listdir(mounted.point) == []


def test_it_unmounts_though_somebody_looks(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.start()
    handle = os.open(mounted.point / "a", os.O_RDONLY)
    assert mounted.stop() == 0
    assert not mounts.mount_points(str(mounted.folder))
    with contextlib.suppress(OSError):  # it is told that the mount has gone
        os.close(handle)


def test_when_the_job_is_gone_it_ends(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.start()
    (mounted.folder / "config").unlink()
    assert mounted.process is not None
    assert mounted.process.wait(10) == 0


def test_when_the_process_that_it_is_for_is_gone_it_ends_and_cleans_up(mounted: Mounted) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        mounted.config["parent"] = [parent.pid, processes.start_time(parent.pid)]
        mounted.add("a", b"a")
        mounted.add("b", b"b")
        mounted.start()
        assert (mounted.point / "a").read_bytes() == b"a"
        assert mounted.process is not None
        parent.kill()
    assert mounted.process.wait(10) == 0
    assert not mounts.mount_points(str(mounted.folder))
    assert not mounted.folder.exists()  # the token was in there


def test_what_a_turn_that_was_killed_left_is_no_hindrance(mounted: Mounted) -> None:
    mounted.link.with_name("data.turned").symlink_to("elsewhere")
    mounted.add("a", b"a")
    mounted.start()
    assert (mounted.point / "a").read_bytes() == b"a"
    wait_until(lambda: mounted.is_plain)
    assert not os.path.lexists(mounted.link.with_name("data.turned"))


@pytest.mark.parametrize("error", [None, FetchFailed("no")])
def test_a_stream_that_is_over_keeps_neither_the_file_nor_its_lock(
    tmp_path: Path, error: FetchFailed | None
) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def finish(stream: mount_contents.Stream) -> None:
        with (tmp_path / "partial").open("w+b", buffering=0) as partial:
            fcntl.flock(partial, fcntl.LOCK_EX)
            stream.opened(partial.fileno())
            partial.write(b"x" * 10)
            stream.arrived(10)
        arrived.set()
        go_on.wait(10)
        if error is not None:
            raise error

    stream = mount_contents.Stream(File("x", 100, "url:http://x", ""), finish)
    assert stream.wanted(0, 10)
    assert arrived.wait(10)
    assert stream.read(0, 10) == b"x" * 10
    with (tmp_path / "partial").open("rb") as partial:
        fcntl.flock(partial, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free since the filler closed it
    go_on.set()
    wait_until(lambda: str(tmp_path / "partial") not in _opened_here())
    assert stream.read(0, 10) is None  # to be had from the cache, or in parts


def _opened_here() -> list[str]:
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(one))
    return found


def test_after_kill_9_the_stale_mount_can_be_taken_away_and_made_again(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.add("large", pattern(LARGE))
    mounted.start()
    reader = threading.Thread(target=_read_quietly, args=(mounted.point / "large",))
    reader.start()
    partial = mounted.folder.parent / "cache" / "partial"
    wait_until(lambda: largest_file(partial) > 1 << 20)
    mounted.stop(signal.SIGKILL)
    reader.join()
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is looked at
        os.listdir(mounted.point)
    assert raised.value.errno == errno.ENOTCONN
    assert mounts.clear(str(mounted.folder)) == []
    mounted.start()
    assert (mounted.point / "large").read_bytes() == pattern(LARGE)
    assert (mounted.point / "a").read_bytes() == b"a"


def test_the_processes_that_fetch_ahead_end_with_it(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.start()
    assert mounted.process is not None
    path = Path(f"/proc/{mounted.process.pid}/task/{mounted.process.pid}/children")
    helpers = [int(word) for word in path.read_text().split()]
    assert helpers
    mounted.stop(signal.SIGKILL)
    wait_until(lambda: not any(processes.is_alive(p, processes.start_time(p)) for p in helpers))


def test_a_stream_that_failed_keeps_nobody_from_the_content(mounted: Mounted) -> None:
    data = pattern(MIDDLE)
    mounted.add("middle", data)
    mounted.web.next("/middle", status(404))
    mounted.start()
    _read_quietly(mounted.point / "middle")
    other = Mounted(mounted.folder.parent / "other", mounted.web)
    other.rows = mounted.rows
    other.start()
    assert (other.point / "middle").read_bytes() == data
    _end(other)


def _read_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.read_bytes()


def test_two_mounts_of_the_same_data_fetch_it_once(tmp_path: Path, web: FaultyWeb) -> None:
    both = [Mounted(tmp_path / name, web) for name in ("one", "two")]
    data = pattern(MIDDLE)
    for made in both:
        made.add("middle", data)
        made.add("small", b"s")
        made.start()
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda made=made: found.append((made.point / "middle").read_bytes())
        )
        for made in both
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data, data]
    wait_until(lambda: sum("Range" not in one[2] for one in web.requests) >= 1)
    assert sum(one[1] == "/middle" and "Range" not in one[2] for one in web.requests) == 1
    for made in both:
        _end(made)


def test_blobs_of_this_machine_are_read_where_they_are(mounted: Mounted, tmp_path: Path) -> None:
    data = pattern(MIDDLE)
    digest = hashlib.sha256(data).hexdigest()
    blob = tmp_path / "blobs" / digest[:2] / digest[2:]
    blob.parent.mkdir(parents=True)
    blob.write_bytes(data)
    mounted.config["blobs"] = str(tmp_path / "blobs")
    mounted.rows.append(["large", len(data), f"blob:{digest}", ""])
    mounted.start()
    assert (mounted.point / "large").read_bytes() == data
    assert not mounted.web.requests
    wait_until(lambda: mounted.is_plain)
    assert (mounted.link / "large").read_bytes() == data
    assert blob.stat().st_nlink == 1


def test_what_a_mount_uses_is_not_evicted(mounted: Mounted) -> None:
    mounted.config["cache_bytes"] = 10
    for number in range(20):
        mounted.add(f"{number:02d}", pattern(1000 + number))
    mounted.start()
    for _ in range(2):
        for number in range(20):
            path = mounted.point / f"{number:02d}"
            assert path.read_bytes() == pattern(1000 + number)
    assert len(mounted.web.requests) == 20


def test_why_it_cannot_mount_is_said(mounted: Mounted) -> None:
    mounted.point.rmdir()
    mounted.add("a", b"a")
    with pytest.raises(AssertionError, match="FUSE refused"):
        mounted.start()


def test_the_token_is_not_on_the_command_line(mounted: Mounted) -> None:
    mounted.add("a", b"a")
    mounted.start()
    assert mounted.process is not None
    line = Path(f"/proc/{mounted.process.pid}/cmdline").read_bytes()
    assert b"secret" not in line
