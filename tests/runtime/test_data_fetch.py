"""The guarded fetcher against a real web server that does all that servers do to people."""

import errno
import hashlib
import io
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.testing.fake_server import wait_until
from runyard.testing.faulty_web import FaultyWeb, cut, hang, redirect, status, then
from runyard.testing.interpreters import interpreters
from runyard_runtime import outbound
from runyard_runtime.fetch import Fetcher, FetchFailed

DATA = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def web() -> Iterator[FaultyWeb]:
    with FaultyWeb() as web:
        yield web


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    fetcher = Fetcher(allow_private=True, read_seconds=0.5, environ={}, sleep=lambda seconds: None)
    yield fetcher
    fetcher.close()


def test_a_file_arrives_whole_with_its_digest(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/a b.bin", DATA)
    found = fetcher.download(web.url + "/a b.bin", str(tmp_path / "x"))
    assert (found.size, found.digest) == (len(DATA), DIGEST)
    assert (tmp_path / "x").read_bytes() == DATA
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("facts", [{"sized": False}, {"ranges": False}])
def test_servers_that_say_little_are_enough(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path, facts: dict[str, bool]
) -> None:
    web.put("/x", DATA, **facts)
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST


def test_after_a_cut_it_goes_on_where_it_was(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    web.next("/x", cut(300_000), cut(400_000))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST
    assert [one[2].get("Range") for one in web.requests] == [
        None,
        "bytes=300000-",
        "bytes=700000-",
    ]


def test_a_server_without_parts_is_asked_for_all_of_it_again(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA, ranges=False)
    web.next("/x", cut(300_000))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST


def test_without_a_validator_nothing_is_pieced_together(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA).etag = None
    web.next("/x", cut(300_000))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST
    assert [one[2].get("Range") for one in web.requests] == [None, None]


def test_a_hang_is_noticed_and_gone_on_from(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    web.next("/x", hang(300_000))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST


def test_one_that_hangs_for_ever_is_said(web: FaultyWeb, tmp_path: Path) -> None:
    web.put("/x", DATA)
    web.next("/x", *[hang(0)] * 9)
    hasty = Fetcher(allow_private=True, read_seconds=0.05, environ={}, sleep=lambda seconds: None)
    with pytest.raises(FetchFailed, match="does not answer in time") as raised:
        hasty.download(web.url + "/x", str(tmp_path / "x"))
    assert raised.value.again


def test_a_content_that_changes_once_is_fetched_anew(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    web.next("/x", then(lambda: web.put("/x", DATA[::-1] + b"!"), cut(300_000)))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).size == len(DATA) + 1
    assert (tmp_path / "x").read_bytes() == DATA[::-1] + b"!"


def test_a_content_that_keeps_changing_is_an_error(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    def change() -> None:
        faults = web.pages["/x"].faults
        web.put("/x", web.pages["/x"].data + b"x").faults = faults

    web.put("/x", DATA)
    web.next("/x", *[then(change, cut(300_000))] * 9)
    with pytest.raises(FetchFailed, match="changes while it is read"):
        fetcher.download(web.url + "/x", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_server_that_is_busy_is_asked_again(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    web.next("/x", status(503), status(429))
    assert fetcher.download(web.url + "/x", str(tmp_path / "x")).digest == DIGEST


@pytest.mark.parametrize(("code", "words"), [(404, "no such file"), (403, "not allow")])
def test_a_refusal_says_what_and_why(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path, code: int, words: str
) -> None:
    web.next("/x", status(code))
    with pytest.raises(FetchFailed, match=words) as raised:
        fetcher.download(web.url + "/x?sig=secret", str(tmp_path / "x"))
    assert raised.value.status == code
    assert "secret" not in str(raised.value)
    assert web.asked("/x") == 1


def test_redirects_are_followed_and_counted(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    for number in range(1, 6):
        web.next(f"/{number}", redirect(f"/{number + 1}" if number < 5 else web.url + "/x"))
    assert fetcher.download(web.url + "/1", str(tmp_path / "x")).digest == DIGEST
    web.next("/loop", *[redirect("/loop")] * 9)
    with pytest.raises(FetchFailed, match="redirects more than 5 times"):
        fetcher.download(web.url + "/loop", str(tmp_path / "y"))


def test_private_addresses_are_refused_unless_allowed(web: FaultyWeb, tmp_path: Path) -> None:
    web.put("/x", DATA)
    with pytest.raises(FetchFailed, match=r"private address 127\.0\.0\.1"):
        Fetcher(environ={}).download(web.url + "/x", str(tmp_path / "x"))
    assert not web.requests


def test_a_redirect_to_a_private_address_is_refused(web: FaultyWeb, tmp_path: Path) -> None:
    web.next("/x", redirect("http://metadata.test/latest"))
    answers = {"metadata.test": "169.254.169.254", "127.0.0.1": "127.0.0.1"}

    def resolve(host: str, port: int) -> list[object]:
        return [(socket.AF_INET, (answers[host], port))]

    def is_public(address: str) -> bool:  # the first hop stands for a public server
        return address == "127.0.0.1" or bool(outbound.is_public(address))

    fetcher = Fetcher(environ={}, resolve=resolve, is_public=is_public)
    with pytest.raises(FetchFailed, match=r"private address 169\.254\.169\.254"):
        fetcher.download(web.url + "/x", str(tmp_path / "x"))
    fetcher.close()


def test_a_name_is_resolved_once_and_that_address_is_used(web: FaultyWeb, tmp_path: Path) -> None:
    web.put("/x", DATA)
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, ("127.0.0.1", port))]

    fetcher = Fetcher(allow_private=True, environ={}, resolve=resolve)
    address = web.url.replace("127.0.0.1", "data.test") + "/x"
    assert fetcher.download(address, str(tmp_path / "x")).digest == DIGEST
    fetcher.close()
    assert asked == ["data.test"]
    assert web.requests[0][2]["Host"].startswith("data.test:")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("10.1.2.3", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("168.63.129.16", False),
        ("100.100.100.200", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:0a00:0001::", False),
        ("192.88.99.1", False),
        ("fec0::1", False),
        ("not an address", False),
    ],
)
def test_what_is_public(address: str, public: bool) -> None:
    assert outbound.is_public(address) is public


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "http://", "http://a b/", "x", "http://a:99999/"]
)
def test_only_the_web_is_fetched(fetcher: Fetcher, tmp_path: Path, url: str) -> None:
    with pytest.raises(FetchFailed, match="not an http or https address"):
        fetcher.download(url, str(tmp_path / "x"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://dead.test/a/b.gz", "http://alive.test/mirror/a/b.gz"),
        ("http://dead.test/deep/b", "http://other.test/b"),
        ("http://dead.test", "http://alive.test/mirror"),
        ("http://dead.test.evil/a", "http://dead.test.evil/a"),
    ],
)
def test_mirrors_stand_in_for_what_is_dead(url: str, expected: str) -> None:
    mirrors = {
        "http://dead.test": "http://alive.test/mirror",
        "http://dead.test/deep": "http://other.test",
    }
    assert outbound.mirrored(url, mirrors) == expected


def test_a_mirror_is_used(web: FaultyWeb, tmp_path: Path) -> None:
    web.put("/mnist/x", DATA)
    mirrors = {"http://dead.invalid/exdb/": web.url + "/"}
    fetcher = Fetcher(mirrors, allow_private=True, environ={})
    found = fetcher.download("http://dead.invalid/exdb/mnist/x", str(tmp_path / "x"))
    fetcher.close()
    assert found.digest == DIGEST


@pytest.mark.parametrize("sized", [True, False])
def test_what_is_too_large_is_not_fetched(web: FaultyWeb, tmp_path: Path, sized: bool) -> None:
    web.put("/x", DATA, sized=sized)
    fetcher = Fetcher(allow_private=True, environ={}, max_bytes=1000)
    with pytest.raises(FetchFailed, match="at most 1000 are allowed"):
        fetcher.download(web.url + "/x", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_full_disk_is_said(web: FaultyWeb, fetcher: Fetcher) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    web.put("/x", DATA)
    with pytest.raises(FetchFailed, match="disk is full") as raised:
        fetcher.fetch(web.url + "/x", Full())
    assert raised.value.disk_full


@pytest.mark.parametrize("head", [True, False])
def test_head_tells_size_and_stamp(web: FaultyWeb, fetcher: Fetcher, head: bool) -> None:
    page = web.put("/x", DATA, head=head)
    assert fetcher.head(web.url + "/x") == (len(DATA), page.etag, True)
    web.put("/x", DATA + b"more", head=head)
    assert fetcher.head(web.url + "/x").stamp != page.etag


def test_parts_are_read_and_a_change_is_noticed(web: FaultyWeb, fetcher: Fetcher) -> None:
    page = web.put("/x", DATA)
    read = fetcher.read(web.url + "/x", 1000, 2000, page.etag)
    assert b"".join(bytes(piece) for piece in read) == DATA[1000:2000]
    web.put("/x", DATA[::-1])
    with pytest.raises(FetchFailed, match="changes"):
        list(fetcher.read(web.url + "/x", 1000, 2000, page.etag))


def test_connections_are_kept(web: FaultyWeb, fetcher: Fetcher, tmp_path: Path) -> None:
    opened: list[str] = []

    def resolve(host: str, port: int) -> list[object]:
        opened.append(host)
        return [(socket.AF_INET, (host, port))]

    kept = Fetcher(allow_private=True, environ={}, resolve=resolve)
    for number in range(5):
        web.put(f"/{number}", DATA)
        kept.download(f"{web.url}/{number}", str(tmp_path / str(number)))
    kept.close()
    assert len(opened) == 1


def test_a_proxy_of_the_environment_is_used(tmp_path: Path) -> None:
    with FaultyWeb() as proxy:
        proxy.put("/x", DATA)
        environ = {"http_proxy": proxy.url.replace("//", "//me:secret@")}
        fetcher = Fetcher(environ=environ)
        found = fetcher.download("http://only.the.proxy.knows.invalid/x", str(tmp_path / "x"))
        fetcher.close()
    assert found.digest == DIGEST
    assert proxy.requests[0][2]["Proxy-Authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize(
    ("host", "rules", "used"),
    [
        ("a.test", "", True),
        ("a.test", "b.test,.test", False),
        ("a.test", "*", False),
        ("10.1.1.1", "10.0.0.0/8", False),
        ("localhost", "", False),
        ("127.0.0.1", "", False),
    ],
)
def test_who_goes_through_the_proxy(host: str, rules: str, used: bool) -> None:
    environ = {"HTTPS_PROXY": "proxy.test:3128", "no_proxy": rules}
    assert (outbound.proxy_for("https", host, environ) is not None) is used


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from runyard_runtime.fetch import Fetcher
Fetcher(allow_private=True).download(sys.argv[2], sys.argv[3])
"""


def test_a_killed_download_is_gone_on_from(
    web: FaultyWeb, fetcher: Fetcher, tmp_path: Path
) -> None:
    web.put("/x", DATA)
    web.next("/x", hang(700_000))
    target = tmp_path / "x"
    runtime = str(Path(outbound.__file__).parents[1])
    command = [sys.executable, "-S", "-E", "-c", KILLED, runtime, web.url + "/x", str(target)]
    process = subprocess.Popen(command)
    part = tmp_path / "x.part"
    wait_until(lambda: part.exists() and part.stat().st_size > 500_000)
    process.kill()
    process.wait()
    left = part.stat().st_size
    assert fetcher.download(web.url + "/x", str(target)).digest == DIGEST
    assert web.requests[-1][2]["Range"] == f"bytes={left}-"


@pytest.mark.parametrize(
    "interpreter", interpreters(extremes=True), ids=lambda path: Path(path).parts[-3]
)
def test_it_works_on_the_oldest_and_newest_python(
    web: FaultyWeb, tmp_path: Path, interpreter: str
) -> None:
    web.put("/x", DATA)
    web.next("/x", cut(300_000))
    runtime = str(Path(outbound.__file__).parents[1])
    command = [interpreter, "-S", "-E", "-c", KILLED, runtime, web.url + "/x", str(tmp_path / "x")]
    subprocess.run(command, check=True)
    assert (tmp_path / "x").read_bytes() == DATA


def test_many_threads_share_one_fetcher(web: FaultyWeb, fetcher: Fetcher, tmp_path: Path) -> None:
    for number in range(40):
        web.put(f"/{number}", DATA[number:])

    def some(first: int) -> None:
        for number in range(first, 40, 4):
            fetcher.download(f"{web.url}/{number}", str(tmp_path / str(number)))

    threads = [threading.Thread(target=some, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((tmp_path / str(number)).read_bytes() == DATA[number:] for number in range(40))
