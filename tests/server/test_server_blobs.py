"""Contents by digest and files by name: kept whole, given back in ranges, never as a page."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec
import pytest

from runyard.domain.errors import ErrorBody
from runyard.domain.files import FileInfo
from runyard.server import serving
from runyard.server.downloads import parse_range

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

TRAVERSALS = [
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "..%252f..%252fetc%252fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "..\\..\\etc\\passwd",
    "..%5c..%5cetc%5cpasswd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "file:///etc/passwd",
    "....//....//etc/passwd",
    "%c0%ae%c0%ae/etc/passwd",
    "outputs/%00",
    "C:%5cwindows",
]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(server: LiveServer, digest: str, body: bytes | Iterator[bytes]) -> int:
    return server.request("PUT", f"/api/v1/blobs/{digest}", body=body).status


@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_what_was_put_comes_back(server: LiveServer, size: int) -> None:
    data = os.urandom(size)
    digest = digest_of(data)
    missing = server.request("POST", "/api/v1/blobs/missing", json=[digest])
    assert digest in msgspec.json.decode(missing.data)
    assert put(server, digest, data) == 200
    assert put(server, digest, data) == 200
    missing = server.request("POST", "/api/v1/blobs/missing", json=[digest])
    assert msgspec.json.decode(missing.data) == []
    answer = server.request("GET", f"/api/v1/blobs/{digest}")
    assert answer.data == data
    assert answer.headers["ETag"] == f'"{digest}"'


def test_a_body_in_chunks_is_kept_too(server: LiveServer) -> None:
    parts = [os.urandom(70_000) for _ in range(30)]
    assert put(server, digest_of(b"".join(parts)), iter(parts)) == 200


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_wrong_digest_keeps_nothing(server: LiveServer, size: int) -> None:
    digest = digest_of(b"something else %d" % size)
    assert put(server, digest, os.urandom(size)) == 400
    assert server.request("GET", f"/api/v1/blobs/{digest}").status == 404


def test_an_upload_that_breaks_off_keeps_nothing_and_holds_nothing(own_server: LiveServer) -> None:
    digest = digest_of(b"x" * 8_000_000)
    address = urlsplit(own_server.url)
    for _ in range(40):  # more than there are threads for uploads
        connection = http.client.HTTPConnection(str(address.hostname), address.port)
        connection.putrequest("PUT", f"/api/v1/blobs/{digest}")
        connection.putheader("Authorization", "Bearer the-owner's-token")
        connection.putheader("Content-Length", "8000000")
        connection.endheaders(b"x" * 200_000)
        connection.close()
    assert put(own_server, digest_of(b"y" * 3_000_000), b"y" * 3_000_000) == 200
    assert own_server.request("GET", f"/api/v1/blobs/{digest}").status == 404


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "GRACE_SECONDS", 1)


@pytest.mark.usefixtures("short_grace")
def test_an_upload_that_stalls_does_not_keep_the_server_from_stopping(
    own_server: LiveServer,
) -> None:
    address = urlsplit(own_server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection.putrequest("PUT", f"/api/v1/blobs/{digest_of(b'slow')}")
    connection.putheader("Authorization", "Bearer the-owner's-token")
    connection.putheader("Content-Length", "8000000")
    connection.endheaders(b"x" * 200_000)
    assert own_server.request("GET", "/healthz").status == 200  # by now it has the upload too
    began = time.monotonic()
    own_server.close()
    assert time.monotonic() - began < 5
    connection.close()


@pytest.mark.parametrize(
    ("header", "status", "expected"),
    [
        (None, 200, b"0123456789"),
        ("bytes=0-", 206, b"0123456789"),
        ("bytes=3-5", 206, b"345"),
        ("bytes=7-", 206, b"789"),
        ("bytes=8-100", 206, b"89"),
        ("bytes=-4", 206, b"6789"),
        ("bytes=-100", 206, b"0123456789"),
        ("bytes=10-", 416, b""),
        ("bytes=5-3", 416, b""),
    ],
)
def test_ranges(server: LiveServer, header: str | None, status: int, expected: bytes) -> None:
    run = server.make_run()
    server.keep_file(run.id, "outputs/digits", b"0123456789")
    server.append_log(run.id, "logs/digits", b"0123456789")
    headers = {"Range": header} if header else {}
    digest = digest_of(b"0123456789")
    for path in (
        f"/api/v1/blobs/{digest}",
        f"/api/v1/runs/{run.id}/files/outputs/digits",
        f"/api/v1/runs/{run.id}/files/logs/digits",
    ):
        answer = server.request("GET", path, headers=headers)
        assert (answer.status, answer.data) == (status, expected), path


def test_an_unknown_form_of_range_means_everything() -> None:
    for header in ("bytes=1-2,4-5", "lines=1-2", "bytes=-", "bytes=a-b", ""):
        assert parse_range(header, 10) == (0, 10)


def test_files_are_attachments_that_no_browser_renders(server: LiveServer) -> None:
    run = server.make_run()
    name = 'outputs/<script>alert(1)</script>\r\nX-Evil: 1 "ü.html'
    server.keep_file(run.id, name, b"<script>alert(1)</script>")
    answer = server.request("GET", f"/api/v1/runs/{run.id}/files/{quote(name)}")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment; filename*=UTF-8''")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "X-Evil" not in answer.headers


@pytest.mark.parametrize("payload", TRAVERSALS)
def test_no_name_leads_out_of_the_store(server: LiveServer, payload: str) -> None:
    run = server.make_run()
    for path in (
        f"/api/v1/runs/{run.id}/files/{payload}",
        f"/api/v1/runs/{run.id}/streams/log/{payload}",
        f"/api/v1/runs/{run.id}/streams/{payload}/x",
        f"/api/v1/runs/{payload}",
        f"/api/v1/blobs/{payload}",
        f"/api/v1/workspaces/{payload}",
        f"/static/{payload}",
        f"/runs/{payload}",
    ):
        answer = server.request("GET", path)
        assert answer.status in (200, 400, 404), path
        assert b"root:" not in answer.data
        if answer.status == 200:  # the end of a stream that does not exist
            assert answer.data == b'{"end":0}'


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", "", ".", "a/./b", "a\x00b"])
def test_no_file_gets_a_name_that_could_leave_its_folder(server: LiveServer, path: str) -> None:
    run, digest = server.make_run(), server.keep(b"x")
    entries = [[path, digest, 1]]
    answer = server.request("POST", f"/api/v1/runs/{run.id}/files", json=entries)
    assert answer.status == 400
    assert server.store.artifacts.list(run.id) == []


def test_files_whose_contents_are_missing_are_named(server: LiveServer) -> None:
    run, absent = server.make_run(), digest_of(b"never sent")
    entries = [["outputs/a", server.keep(b"a"), 1], ["outputs/b", absent, 10]]
    answer = server.request("POST", f"/api/v1/runs/{run.id}/files", json=entries)
    assert answer.status == 424
    assert msgspec.json.decode(answer.data, type=ErrorBody).digests == (absent,)
    assert server.store.artifacts.list(run.id) == []


def test_files_are_artifacts_and_logs(server: LiveServer) -> None:
    run = server.make_run()
    entries = [["outputs/a", server.keep(b"abc"), 3]]
    path = f"/api/v1/runs/{run.id}/files"
    assert server.request("POST", path, json=entries).status == 200
    server.append_log(run.id, "azureml-logs/70_driver_log.txt", b"hello")
    found = msgspec.json.decode(server.request("GET", path).data, type=list[FileInfo])
    assert [(info.path, info.size) for info in found] == [
        ("azureml-logs/70_driver_log.txt", 5),
        ("outputs/a", 3),
    ]
    found = msgspec.json.decode(server.request("GET", f"{path}?prefix=out").data)
    assert [info["path"] for info in found] == ["outputs/a"]
