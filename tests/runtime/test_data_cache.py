"""The node's cache: shared by processes, bounded, and whole whatever is killed."""

import errno
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import runyard_runtime
from runyard.testing.fake_server import largest_file, wait_until
from runyard.testing.faulty_web import FaultyWeb, Page, cut, hang
from runyard_runtime.cache import UNTOUCHED, Cache
from runyard_runtime.fetch import FetchFailed
from runyard_runtime.origins import File, Origins, store_tag

DATA = b"0123456789abcdef" * 65536  # 1 MiB
PLENTY = 1 << 40


@pytest.fixture
def web() -> Iterator[FaultyWeb]:
    with FaultyWeb() as web:
        yield web


Opener = Callable[..., Cache]


@pytest.fixture
def open_cache(web: FaultyWeb, tmp_path: Path) -> Iterator[Opener]:
    opened: list[Origins] = []

    def make(
        limit: int = PLENTY,
        scope: str = "run",
        young: float = 0.0,
        is_root: bool = False,
        **plan: object,
    ) -> Cache:
        origins = Origins({**basic_plan(web), **plan}, sleep=lambda seconds: None)
        opened.append(origins)
        folder = str(tmp_path / "cache")
        return Cache(folder, limit, origins, scope, young_seconds=young, is_root=is_root)

    yield make
    for origins in opened:
        origins.close()


def basic_plan(web: FaultyWeb) -> dict[str, object]:
    return {"url": web.url, "token": "secret", "fetching": {"allow_private": True}}


def file_of(web: FaultyWeb, path: str, data: bytes = DATA) -> File:
    page = web.pages.get(path) or web.put(path, data)
    return File(path.lstrip("/"), len(page.data), f"url:{web.url}{path}", page.etag)


def blob_of(web: FaultyWeb, data: bytes = DATA) -> File:
    digest = hashlib.sha256(data).hexdigest()
    web.put(f"/api/v1/blobs/{digest}", data)
    return File("a blob", len(data), f"blob:{digest}", "")


def test_what_was_fetched_is_not_fetched_again(web: FaultyWeb, open_cache: Opener) -> None:
    file = file_of(web, "/x")
    place = open_cache().ensure(file)
    assert Path(place).read_bytes() == DATA
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o444
    assert open_cache(scope="another run").ensure(file) == place
    assert web.asked("/x") == 1


def test_a_new_stamp_is_a_new_content(web: FaultyWeb, open_cache: Opener) -> None:
    cache = open_cache()
    old = cache.ensure(file_of(web, "/x"))
    web.put("/x", DATA[::-1])
    new = cache.ensure(file_of(web, "/x"))
    assert Path(old).read_bytes() == DATA
    assert Path(new).read_bytes() == DATA[::-1]


def test_without_a_stamp_it_is_fetched_for_each_run(web: FaultyWeb, open_cache: Opener) -> None:
    file = file_of(web, "/x")._replace(stamp="")
    for scope in ("a", "a", "b"):
        open_cache(scope=scope).ensure(file)
    assert web.asked("/x") == 2


def test_blobs_come_from_the_server_with_the_runs_token(web: FaultyWeb, open_cache: Opener) -> None:
    place = open_cache().ensure(blob_of(web))
    assert Path(place).read_bytes() == DATA
    assert web.requests[0][2]["Authorization"] == "Bearer secret"


def test_files_of_a_store_come_from_the_server(web: FaultyWeb, open_cache: Opener) -> None:
    page = web.put("/api/v1/stores/s1/files/a b/ü.txt", b"x")
    page.etag = f'"{store_tag("a b/ü.txt", "t1")}"'
    file = File("p", 1, "store:s1/a b/ü.txt", "t1")
    assert Path(open_cache().ensure(file)).read_bytes() == b"x"


@pytest.mark.parametrize("size", [1000, len(DATA)])
@pytest.mark.parametrize("kind", ["url", "store"])
def test_another_content_of_the_same_size_than_was_listed_is_an_error(
    web: FaultyWeb, open_cache: Opener, kind: str, size: int
) -> None:
    path = "/x" if kind == "url" else "/api/v1/stores/s1/files/x"
    page = web.put(path, DATA[:size])
    file = File("x", size, f"url:{web.url}/x", page.etag)
    if kind == "store":
        page.etag = f'"{store_tag("x", "written later")}"'
        file = File("x", size, "store:s1/x", "as listed")
    else:
        web.put(path, DATA[:size][::-1])
    seen: list[int] = []
    with pytest.raises(FetchFailed, match="is not what it was"):
        open_cache().ensure(file, seen.append)
    assert open_cache().find(file) is None
    assert not seen  # nobody who follows it got any of it


def test_an_etag_is_not_compared_with_a_date(web: FaultyWeb, open_cache: Opener) -> None:
    file = file_of(web, "/x")._replace(stamp="Thu, 01 Jan 2026 00:00:00 GMT")
    assert Path(open_cache().ensure(file)).read_bytes() == DATA


def test_the_token_goes_to_nobody_else(web: FaultyWeb, open_cache: Opener) -> None:
    open_cache().ensure(file_of(web, "/x"))
    assert "Authorization" not in web.requests[0][2]


def test_a_server_that_moved_is_found(web: FaultyWeb, open_cache: Opener, tmp_path: Path) -> None:
    address = tmp_path / "address.json"
    address.write_text(json.dumps({"url": web.url}))
    cache = open_cache(url="http://127.0.0.1:9", address_file=str(address))
    assert Path(cache.ensure(blob_of(web))).read_bytes() == DATA


def test_a_damaged_blob_is_an_error_and_not_kept(web: FaultyWeb, open_cache: Opener) -> None:
    file = blob_of(web)
    web.pages["/api/v1/blobs/" + file.origin[5:]].data = DATA[::-1]
    with pytest.raises(FetchFailed, match="damaged"):
        open_cache().ensure(file)
    assert open_cache().find(file) is None


def test_another_size_than_was_listed_is_an_error(web: FaultyWeb, open_cache: Opener) -> None:
    file = file_of(web, "/x")
    web.put("/x", DATA + b"more")
    with pytest.raises(FetchFailed, match="It had 1048576 bytes and has 1048580 now"):
        open_cache().ensure(file)
    assert open_cache().find(file) is None


def put_blob(folder: Path, data: bytes = DATA) -> tuple[File, Path]:
    """A blob of the server on this machine, and the file that it is."""
    digest = hashlib.sha256(data).hexdigest()
    blob = folder / digest[:2] / digest[2:]
    blob.parent.mkdir(parents=True)
    blob.write_bytes(data)
    return File("x", len(data), f"blob:{digest}", ""), blob


LAY_AND_WRITE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from runyard_runtime.cache import Cache
from runyard_runtime.origins import File, Origins
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
top, size, origin = sys.argv[2:]
origins = Origins({"url": "http://127.0.0.1:9", "token": "", "blobs": top + "/blobs"})
cache = Cache(top + "/cache", 1 << 40, origins)
for private in (True, False):
    target = "%s/laid out %s" % (top, private)
    cache.lay(File("x", int(size), origin, ""), target, private)
    os.chmod(target, 0o644)
    with open(target, "r+b") as stream:
        stream.write(b"damage")
"""


def test_what_a_job_writes_through_a_laid_out_blob_never_reaches_the_servers() -> None:
    # Not as root, and not in tmp_path, where nobody else may look: by the one who owns the blobs.
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        file, blob = put_blob(top / "blobs")
        if os.geteuid() == 0:
            for one in (top, *top.rglob("*")):
                os.chown(one, 65534, 65534)
        runtime = str(Path(runyard_runtime.__file__).parents[1])
        words = [runtime, folder, str(file.size), file.origin]
        subprocess.run([sys.executable, "-c", LAY_AND_WRITE, *words], check=True)
        assert blob.read_bytes() == DATA
        assert blob.stat().st_nlink == 1
        for private in (True, False):
            assert (top / f"laid out {private}").read_bytes().startswith(b"damage")


@pytest.mark.parametrize("private", [True, False])
def test_a_blob_on_this_machine_that_was_damaged_is_noticed(
    open_cache: Opener, tmp_path: Path, private: bool
) -> None:
    file, blob = put_blob(tmp_path / "blobs")
    blob.write_bytes(DATA[::-1])
    cache = open_cache(blobs=str(tmp_path / "blobs"))
    with pytest.raises(FetchFailed, match="damaged"):
        cache.lay(file, str(tmp_path / "x"), private)
    assert not (tmp_path / "x").exists()
    blob.write_bytes(DATA)
    cache.lay(file, str(tmp_path / "x"), private)
    assert (tmp_path / "x").read_bytes() == DATA


def test_a_download_is_the_jobs_own_and_a_mount_is_read_only(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    cache, file = open_cache(), file_of(web, "/x")
    cache.lay(file, str(tmp_path / "own"), True)
    cache.lay(file, str(tmp_path / "shared"), False)
    (tmp_path / "own").write_bytes(b"mine")
    assert (tmp_path / "shared").read_bytes() == DATA
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o444
    assert os.path.samefile(tmp_path / "shared", cache.ensure(file))


def test_what_root_writes_to_an_input_is_seen_by_nobody_else(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    cache, file = open_cache(is_root=True), file_of(web, "/x")
    for name in ("mine", "theirs"):
        cache.lay(file, str(tmp_path / name), False)
    (tmp_path / "mine").chmod(0o644)  # root needs no leave
    (tmp_path / "mine").write_bytes(b"damage")
    assert (tmp_path / "theirs").read_bytes() == DATA
    assert Path(cache.ensure(file)).read_bytes() == DATA
    assert web.asked("/x") == 1


def test_a_content_that_was_written_to_is_thrown_away(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    cache, file = open_cache(), file_of(web, "/x")
    shared = tmp_path / "shared"
    cache.lay(file, str(shared), False)
    shared.chmod(0o644)
    with shared.open("r+b") as stream:
        stream.write(b"damage of the same length")
    assert Path(cache.ensure(file)).read_bytes() == DATA
    assert web.asked("/x") == 2


def test_threads_that_want_the_same_fetch_it_once(web: FaultyWeb, open_cache: Opener) -> None:
    cache, file = open_cache(), file_of(web, "/x")
    threads = [threading.Thread(target=cache.ensure, args=(file,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert web.asked("/x") == 1


ENSURE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from runyard_runtime.cache import Cache
from runyard_runtime.origins import File, Origins
plan, file, folder = json.loads(sys.argv[2]), File(*json.loads(sys.argv[3])), sys.argv[4]
print("go", flush=True)
print(Cache(folder, 1 << 40, Origins(plan)).ensure(file))
"""


def start_process(web: FaultyWeb, tmp_path: Path, file: File) -> subprocess.Popen[str]:
    runtime = str(Path(runyard_runtime.__file__).parents[1])
    words = [json.dumps(basic_plan(web)), json.dumps(file), str(tmp_path / "cache")]
    command = [sys.executable, "-S", "-E", "-c", ENSURE, runtime, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_want_the_same_fetch_it_once(web: FaultyWeb, tmp_path: Path) -> None:
    file = file_of(web, "/x")
    processes = [start_process(web, tmp_path, file) for _ in range(3)]
    said = {process.communicate(timeout=30)[0] for process in processes}
    assert len(said) == 1
    assert web.asked("/x") == 1


def test_after_kill_9_the_next_goes_on_from_the_part(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    file = file_of(web, "/x")
    web.next("/x", hang(600_000))
    partial = tmp_path / "cache" / "partial"
    with start_process(web, tmp_path, file) as process:
        wait_until(lambda: largest_file(partial) > 500_000)
        # One that waits for it takes over.
        waiting = threading.Thread(target=open_cache().ensure, args=(file,))
        waiting.start()
        process.send_signal(signal.SIGKILL)
    waiting.join()
    assert web.requests[-1][2]["Range"] == "bytes=600000-"
    place = open_cache().find(file)
    assert place is not None
    assert Path(place).read_bytes() == DATA
    assert not list(partial.iterdir())


def test_the_oldest_is_evicted_and_what_is_laid_out_stays(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    files = [file_of(web, f"/{number}", bytes([number]) * 1000) for number in range(6)]
    cache = open_cache(limit=PLENTY)
    places = [cache.ensure(file) for file in files]
    for age, place in enumerate(places):
        os.utime(place, ns=(time.time_ns() - (100 - age) * 10**9, UNTOUCHED))
    cache.lay(files[0], str(tmp_path / "laid out"), False)
    os.utime(places[0], ns=(0, UNTOUCHED))
    open_cache(limit=4000).make_room()
    kept = [os.path.exists(place) for place in places]
    assert kept == [True, False, False, False, True, True]  # 0 is in use; then the newest
    assert cache.ensure(files[1])
    assert web.asked("/1") == 2


def test_what_a_mount_holds_is_not_evicted_until_it_ends(
    web: FaultyWeb, open_cache: Opener
) -> None:
    cache, file = open_cache(limit=10), file_of(web, "/x")
    place = cache.ensure(file)
    cache.hold(place)
    os.utime(place, ns=(0, UNTOUCHED))
    cache.make_room()
    assert os.path.exists(place)
    cache.let_go()
    cache.make_room()
    assert not os.path.exists(place)


def test_the_lease_of_a_dead_process_ends(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    cache, file = open_cache(limit=10), file_of(web, "/x")
    place = cache.ensure(file)
    lease = tmp_path / "cache" / "leases" / "999999999-1"
    lease.mkdir()
    os.link(place, lease / "x")
    os.utime(place, ns=(0, UNTOUCHED))
    cache.make_room()
    assert not os.path.exists(place)


def test_a_tiny_cache_still_serves_a_large_job(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    cache = open_cache(limit=1, young=10.0)
    for number in range(5):
        file = file_of(web, f"/{number}", bytes([number]) * 5000)
        cache.lay(file, str(tmp_path / str(number)), True)
        assert (tmp_path / str(number)).read_bytes() == bytes([number]) * 5000


def test_a_full_disk_is_said_and_leaves_nothing_wrong(
    web: FaultyWeb, open_cache: Opener, tmp_path: Path
) -> None:
    file = file_of(web, "/x")
    limited = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
"""
    runtime = str(Path(runyard_runtime.__file__).parents[1])
    words = [json.dumps(basic_plan(web)), json.dumps(file), str(tmp_path / "cache")]
    command = [sys.executable, "-c", limited + ENSURE, runtime, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cannot be kept on this machine" in ended.stderr
    assert os.strerror(errno.EFBIG) in ended.stderr
    assert open_cache().find(file) is None
    assert Path(open_cache().ensure(file)).read_bytes() == DATA


def test_a_cut_is_no_trouble(web: FaultyWeb, open_cache: Opener) -> None:
    file = file_of(web, "/x")
    web.next("/x", cut(10), cut(10_000))
    seen: list[int] = []
    assert Path(open_cache().ensure(file, seen.append)).read_bytes() == DATA
    assert sum(seen) == len(DATA)


def test_an_unknown_size_is_learnt(web: FaultyWeb, open_cache: Opener) -> None:
    page: Page = web.put("/x", DATA, sized=False)
    file = File("x", -1, f"url:{web.url}/x", page.etag)
    cache = open_cache()
    assert os.stat(cache.ensure(file)).st_size == len(DATA)
    assert cache.find(file) is not None
