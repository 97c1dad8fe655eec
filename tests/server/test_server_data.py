"""Datastores and datasets through the API: what a user gets, and what nobody gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from runyard.domain.data import DatasetRecord, DatastoreRecord, ResolvedData
from runyard.domain.errors import ErrorBody
from runyard.domain.files import FileInfo
from runyard_runtime.fetch import Fetcher

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

YARD = "/api/v1/workspaces/yard"
BLOBS = f"{YARD}/datastores/workspaceblobstore"
SECRET = "hunter2-hunter2-hunter2"


def ask(server: LiveServer, verb: str, path: str, kind: Any, json: object = None) -> Any:
    answer = server.request(verb, path, json=json)
    assert answer.status == 200, answer.data
    return msgspec.json.decode(answer.data, type=kind)


def refused(server: LiveServer, verb: str, path: str, json: object = None) -> ErrorBody:
    answer = server.request(verb, path, json=json)
    assert answer.status >= 400, answer.data
    return msgspec.json.decode(answer.data, type=ErrorBody)


def keep(server: LiveServer, store: str, files: dict[str, bytes]) -> None:
    entries = [[path, server.keep(data), len(data)] for path, data in files.items()]
    ask(server, "POST", f"{YARD}/datastores/{store}/files", object, entries)


def below(path: str, store: str = "workspaceblobstore", **more: object) -> dict[str, object]:
    return {"sources": [{"type": "datastore", "datastore": store, "path": path}], **more}


def urls(*addresses: str, **more: object) -> dict[str, object]:
    return {"sources": [{"type": "url", "url": url} for url in addresses], **more}


def resolve(server: LiveServer, spec: dict[str, object]) -> ResolvedData:
    found = ask(server, "POST", f"{YARD}/datasets/resolve", ResolvedData, spec)
    assert isinstance(found, ResolvedData)
    return found


def paths(found: ResolvedData) -> list[str]:
    return [file.path for file in found.files]


def register(server: LiveServer, name: str, spec: object, **more: object) -> DatasetRecord:
    body = {"name": name, "spec": spec, **more}
    record = ask(server, "POST", f"{YARD}/datasets", DatasetRecord, body)
    assert isinstance(record, DatasetRecord)
    return record


# ---- datastores ------------------------------------------------------------------------------


def test_every_workspace_has_two_datastores_and_one_is_the_default(server: LiveServer) -> None:
    found = ask(server, "GET", f"{YARD}/datastores", list[DatastoreRecord])
    by_name = {record.name: record for record in found}
    assert {"workspaceblobstore", "workspacefilestore"} <= set(by_name)
    assert by_name["workspaceblobstore"].is_default
    assert not by_name["workspacefilestore"].is_default
    in_any_case = f"{YARD}/datastores/WorkspaceBlobStore"
    assert ask(server, "GET", in_any_case, DatastoreRecord).name == "workspaceblobstore"


def test_an_older_workspace_gets_its_datastores_when_they_are_asked_for(
    own_server: LiveServer,
) -> None:
    for record in ask(own_server, "GET", f"{YARD}/datastores", list[DatastoreRecord]):
        kept = own_server.store.records.get(DatastoreRecord, record.id)
        own_server.store.records.delete(kept)
    assert ask(own_server, "GET", BLOBS, DatastoreRecord).is_default


def test_files_go_in_and_come_out(server: LiveServer) -> None:
    keep(server, "workspaceblobstore", {"io/a b.txt": b"0123456789", "io/sub/c": b"", "iota": b"x"})
    listed = ask(server, "GET", f"{BLOBS}/files?prefix=io/", list[FileInfo])
    assert [(info.path, info.size) for info in listed] == [("io/a b.txt", 10), ("io/sub/c", 0)]
    listed = ask(server, "GET", f"{BLOBS}/files?prefix=io", list[FileInfo])
    assert [info.path for info in listed] == ["io/a b.txt", "io/sub/c", "iota"]
    path = f"{BLOBS}/files/io/a%20b.txt"
    assert server.request("GET", path).data == b"0123456789"
    part = server.request("GET", path, headers={"Range": "bytes=2-4"})
    assert (part.status, part.data) == (206, b"234")
    assert refused(server, "GET", f"{BLOBS}/files/io/none").code == "not_found"


def test_contents_come_before_names(server: LiveServer) -> None:
    digest = "3" * 64
    answer = refused(server, "POST", f"{BLOBS}/files", [["new", digest, 1]])
    assert (answer.code, answer.digests) == ("blobs_missing", (digest,))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a//b", ""])
def test_names_that_traverse_are_refused(server: LiveServer, path: str) -> None:
    entries = [[path, server.keep(b"x"), 1]]
    assert refused(server, "POST", f"{BLOBS}/files", entries).code == "invalid"


def test_a_folder_becomes_a_datastore_and_nothing_beside_it(
    server: LiveServer, tmp_path: Path
) -> None:
    root = tmp_path / "a folder"
    (root / "train").mkdir(parents=True)
    (root / "train" / "x").write_bytes(b"12345")
    (tmp_path / "secret").write_text("hidden")
    (root / "out").symlink_to(tmp_path / "secret")
    spec = {"name": "pool1", "url": root.as_uri()}
    record = ask(server, "PUT", f"{YARD}/datastores/pool1", DatastoreRecord, spec)
    listed = ask(server, "GET", f"{YARD}/datastores/pool1/files", list[FileInfo])
    assert [info.path for info in listed] == ["train/x"]
    for path in ("out", "..%2fsecret", "%2e%2e/secret", "train/..%2F../secret"):
        answer = server.request("GET", f"{YARD}/datastores/pool1/files/{path}")
        assert answer.status in (400, 404)
        assert b"hidden" not in answer.data
    (file,) = resolve(server, below("train", "pool1")).files
    assert file.origin == f"store:{record.id}/train/x"
    part = server.request(
        "GET", f"/api/v1/stores/{record.id}/files/train/x", headers={"Range": "bytes=1-2"}
    )
    assert part.data == b"23"
    keep(server, "pool1", {"new/y": b"written"})
    assert (root / "new" / "y").read_bytes() == b"written"


def test_the_servers_own_secrets_are_in_no_datastore(server: LiveServer) -> None:
    home = server.settings.home
    (home / "secret").write_text("of the server")
    spec = {"name": "greedy", "url": home.parent.as_uri()}
    ask(server, "PUT", f"{YARD}/datastores/greedy", DatastoreRecord, spec)
    path = f"{YARD}/datastores/greedy/files/{home.name}/secret"
    assert server.request("GET", path).status == 404
    listed = ask(server, "GET", f"{YARD}/datastores/greedy/files", list[FileInfo])
    assert not [info for info in listed if info.path.startswith(f"{home.name}/")]


def test_the_servers_home_is_no_datastore(server: LiveServer) -> None:
    for folder in (server.settings.home, server.settings.home / "blobs"):
        spec = {"name": "inner", "url": folder.as_uri()}
        assert "secrets" in refused(server, "PUT", f"{YARD}/datastores/inner", spec).why


def test_a_workspace_goes_only_when_no_file_goes_with_it(server: LiveServer) -> None:
    for name in ("empty", "full"):
        server.request("POST", "/api/v1/workspaces", json={"name": name})
    entries = [["a", server.keep(b"a"), 1]]
    path = "/api/v1/workspaces/full/datastores/workspaceblobstore/files"
    ask(server, "POST", path, object, entries)
    ask(server, "DELETE", "/api/v1/workspaces/empty", object)
    answer = refused(server, "DELETE", "/api/v1/workspaces/full")
    assert (answer.code, "1 files" in answer.what) == ("conflict", True)


def test_a_name_is_taken_once_unless_it_is_to_be_replaced(server: LiveServer) -> None:
    path = f"{YARD}/datastores/pool2"
    spec = {"name": "pool2", "url": "memory://pool2"}
    ask(server, "PUT", path, DatastoreRecord, spec)
    assert refused(server, "PUT", path, spec).code == "conflict"
    again = {**spec, "url": "memory://other", "overwrite": True}
    assert ask(server, "PUT", path, DatastoreRecord, again).url == "memory://other"
    ask(server, "DELETE", path, object)
    answer = refused(server, "GET", path)
    assert answer.code == "not_found"
    assert "workspaceblobstore" in answer.why


def test_the_default_moves_and_falls_back(own_server: LiveServer) -> None:
    path = f"{YARD}/datastores/mine"
    spec = {"name": "mine", "url": "memory://mine"}
    ask(own_server, "PUT", path, DatastoreRecord, spec)
    assert ask(own_server, "POST", f"{path}/default", DatastoreRecord).is_default
    assert not ask(own_server, "GET", BLOBS, DatastoreRecord).is_default
    ask(own_server, "DELETE", path, object)
    assert ask(own_server, "GET", BLOBS, DatastoreRecord).is_default


def test_the_workspaces_own_datastores_stay(server: LiveServer) -> None:
    assert refused(server, "DELETE", BLOBS).code == "conflict"
    spec = {"name": "workspaceblobstore", "url": "memory://x", "overwrite": True}
    assert refused(server, "PUT", BLOBS, spec).code == "conflict"


@pytest.mark.parametrize(
    "spec",
    [
        {"url": "nonsense"},
        {"url": "gopher://x/y"},
        {"url": "file:///no/such/folder"},
        {"url": "file://relative"},
        {"url": f"s3://key:{SECRET}@bucket/x"},
        {"url": f"memory://bucket/x?sas={SECRET}"},
        {"url": "memory://x", "options": {"secret_key": SECRET}},
        {"url": "memory://x", "options": {"SAS_TOKEN": SECRET}},
    ],
)
def test_datastores_that_make_no_sense_or_show_secrets(
    server: LiveServer, spec: dict[str, object]
) -> None:
    answer = server.request("PUT", f"{YARD}/datastores/bad", json={"name": "bad", **spec})
    assert answer.status in (400, 422)
    assert SECRET.encode() not in answer.data
    assert server.request("GET", f"{YARD}/datastores/bad").status == 404


def test_credentials_are_kept_where_nobody_reads_them(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{YARD}/datastores/locked"
    spec = {"name": "locked", "url": "memory://locked", "secrets": {"account_key": SECRET}}
    answers = [
        server.request("PUT", path, json=spec),
        server.request("PUT", path, json=spec),
        server.request("GET", path),
        server.request("GET", f"{YARD}/datastores"),
        server.request("GET", f"{path}/files"),
        server.request("POST", f"{path}/default"),
        server.request("POST", f"{BLOBS}/default"),
    ]
    for answer in answers:
        assert SECRET.encode() not in answer.data
        assert b'"secret":""' in answer.data or b'"secret"' not in answer.data
    for file in server.settings.home.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in caplog.text
    id = msgspec.json.decode(answers[0].data)["id"]
    kept = server.store.records.get(DatastoreRecord, id)
    assert kept.secret
    # They do arrive where they are needed: fsspec's memory takes any argument.
    assert server.platform.datastores.files(kept)._secrets == (SECRET,)  # type: ignore[attr-defined]


# ---- datasets --------------------------------------------------------------------------------


def test_versions_of_a_name(server: LiveServer) -> None:
    first = register(server, "digits v", below("a"), description="one", tags={"t": "1"})
    assert (first.number, first.description, first.tags) == (1, "one", {"t": "1"})
    assert register(server, "digits v", below("a")) == first
    answer = refused(server, "POST", f"{YARD}/datasets", {"name": "digits v", "spec": below("b")})
    assert answer.code == "conflict"
    assert "create_new_version=True" in answer.fix
    second = register(server, "digits v", below("b"), create_new_version=True)
    assert register(server, "digits v", below("b"), create_new_version=True).number == 2
    third = register(server, "digits v", below("a"), create_new_version=True)
    assert (second.number, third.number) == (2, 3)

    def listed(query: str) -> list[int]:
        found = ask(server, "GET", f"{YARD}/datasets?{query}", list[DatasetRecord])
        return [record.number for record in found if record.name == "digits v"]

    assert listed("name=digits%20v") == [3, 2, 1]
    assert listed("name=digits%20v&version=2") == [2]
    assert listed("name=digits%20v&version=latest") == [3]
    assert listed("version=latest") == [3]
    gone = refused(server, "GET", f"{YARD}/datasets?name=digits%20v&version=7")
    assert (gone.code, gone.why) == ("not_found", "It has: 3, 2, 1.")
    assert refused(server, "GET", f"{YARD}/datasets?name=none&version=latest").code == "not_found"
    assert refused(server, "GET", f"{YARD}/datasets?name=digits%20v&version=x").code == "invalid"
    by_id = ask(server, "GET", f"/api/v1/datasets/{second.id}", DatasetRecord)
    assert by_id == second


def test_unregistering_takes_the_name_but_not_the_dataset(server: LiveServer) -> None:
    record = register(server, "passing", below("a"))
    ask(server, "DELETE", f"{YARD}/datasets/passing", object)
    assert ask(server, "GET", f"{YARD}/datasets?name=passing", list[DatasetRecord]) == []
    after = ask(server, "GET", f"/api/v1/datasets/{record.id}", DatasetRecord)
    assert (after.name, after.spec) == ("", record.spec)
    assert refused(server, "DELETE", f"{YARD}/datasets/passing").code == "not_found"
    assert register(server, "passing", below("a")).number == 2, "numbers are not given twice"


def test_many_who_register_at_once_get_versions_of_their_own(server: LiveServer) -> None:
    def one(index: int) -> int:
        return register(server, "rush", below(f"p{index}"), create_new_version=True).number

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(24))) == list(range(1, 25))


def test_of_two_who_want_a_new_name_one_gets_it(server: LiveServer) -> None:
    def one(index: int) -> int:
        body = {"name": "single", "spec": below(f"p{index}")}
        return server.request("POST", f"{YARD}/datasets", json=body).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(8))) == [200] + [409] * 7


def test_a_recipe_without_a_name_has_an_id(server: LiveServer) -> None:
    first = register(server, "", below("unnamed/**"))
    assert (first.name, first.number) == ("", 0)
    assert register(server, "", below("unnamed/**")).id == first.id
    assert register(server, "", below("unnamed/*")).id != first.id
    everything = ask(server, "GET", f"{YARD}/datasets", list[DatasetRecord])
    assert first.id not in {record.id for record in everything}


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"sources": []}, "invalid"),
        (below("a/../../b"), "invalid"),
        (below("a", "nowhere"), "not_found"),
        (urls("ftp://h/x"), "invalid"),
        (urls("http://user:word@h/x"), "invalid"),
        ({"sources": [*below("a")["sources"], *urls("http://h/x")["sources"]]}, "invalid"),  # type: ignore[misc]
        (below("a", steps=[{"op": "explode"}]), "invalid"),
    ],
)
def test_recipes_that_can_never_be_followed(
    server: LiveServer, spec: dict[str, object], code: str
) -> None:
    for path, body in (
        (f"{YARD}/datasets", {"name": "wrong", "spec": spec}),
        (f"{YARD}/datasets/resolve", spec),
    ):
        answer = refused(server, "POST", path, body)
        assert answer.code == code, (path, answer)


# ---- following recipes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def animals(server: LiveServer) -> LiveServer:
    """A server whose default datastore has some pictures."""
    names = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/old/3.png", "labels.csv"]
    keep(server, "workspaceblobstore", {f"zoo/{name}": name.encode() for name in names})
    return server


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("zoo", "cat/1.png cat/2.png dog/1.png dog/old/3.png labels.csv"),
        ("/zoo/", "cat/1.png cat/2.png dog/1.png dog/old/3.png labels.csv"),
        ("zoo/**", "cat/1.png cat/2.png dog/1.png dog/old/3.png labels.csv"),
        ("zoo/dog", "1.png old/3.png"),
        ("zoo/*/1.png", "cat/1.png dog/1.png"),
        ("zoo/d?g/**", "dog/1.png dog/old/3.png"),
        ("zoo/**/3.png", "dog/old/3.png"),
        ("zoo/*.csv", "labels.csv"),
    ],
)
def test_the_given_folder_is_cut_off(animals: LiveServer, path: str, found: str) -> None:
    resolved = resolve(animals, below(path))
    assert " ".join(paths(resolved)) == found
    assert not resolved.single
    assert all(file.origin.startswith("blob:") for file in resolved.files)


def test_one_file_is_single_and_several_keep_what_tells_them_apart(animals: LiveServer) -> None:
    one = resolve(animals, below("zoo/labels.csv", is_list=True))
    assert (paths(one), one.single) == (["labels.csv"], True)
    sources = [
        {"type": "datastore", "datastore": "workspaceblobstore", "path": f"zoo/{name}"}
        for name in ("cat/1.png", "dog/1.png", "cat")
    ]
    several = resolve(animals, {"sources": sources, "is_list": True})
    assert (paths(several), several.single) == (["cat/1.png", "cat/2.png", "dog/1.png"], False)
    keep(animals, "workspacefilestore", {"x/1.png": b"x"})
    sources.append({"type": "datastore", "datastore": "workspacefilestore", "path": "x"})
    mixed = resolve(animals, {"sources": sources, "is_list": True})
    assert paths(mixed)[-2:] == ["workspaceblobstore/dog/1.png", "workspacefilestore/1.png"]


@pytest.mark.parametrize("path", ["zoo/*.jpg", "zoo/**/x", "nowhere/*", "nowhere", "zoo/labels"])
def test_a_pattern_or_path_that_leads_nowhere_says_so(animals: LiveServer, path: str) -> None:
    answer = refused(animals, "POST", f"{YARD}/datasets/resolve", below(path))
    assert answer.code == "not_found"
    assert path in answer.what
    assert answer.fix


def test_steps_choose_among_files(animals: LiveServer) -> None:
    step = {"op": "take", "arguments": {"count": 2}}
    record = register(animals, "two animals", below("zoo", steps=[step]))
    found = ask(animals, "GET", f"/api/v1/datasets/{record.id}/files", ResolvedData)
    assert paths(found) == ["cat/1.png", "cat/2.png"]
    table = below("zoo/*.csv", steps=[step], kind="tabular", reader="delimited")
    assert paths(resolve(animals, table)) == ["labels.csv"], "rows are the reader's business"


# ---- web addresses ---------------------------------------------------------------------------


class _Web(BaseHTTPRequestHandler):
    """Files, redirects, and what goes wrong."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        if self.path.startswith("/hang"):
            self.server.hanging.wait(20)  # type: ignore[attr-defined]
            self.close_connection = True
            return
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("Location", "http://10.0.0.1/x")
        elif self.path.startswith("/files/"):
            self.send_response(200)
            self.send_header("ETag", f'"{self.path}"')
            self.send_header("Content-Length", str(len(self.path)))
            self.end_headers()
            return
        else:
            self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """The address of a server of files."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    http.hanging = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.hanging.set()  # type: ignore[attr-defined]
    http.shutdown()
    thread.join()
    http.server_close()


def test_one_address_is_a_single_file_and_several_keep_their_host(
    server: LiveServer, web: str
) -> None:
    one = resolve(server, urls(f"{web}/files/a/x.gz", is_list=True))
    assert one.single
    (file,) = one.files
    assert (file.path, file.size, file.origin) == ("x.gz", 13, f"url:{web}/files/a/x.gz")
    assert file.stamp
    several = resolve(server, urls(f"{web}/files/a/x.gz", f"{web}/files/b/x.gz"))
    host = web.removeprefix("http://").replace(":", "_")
    assert paths(several) == [f"{host}/files/a/x.gz", f"{host}/files/b/x.gz"]
    assert not several.single


def test_an_address_that_is_gone_is_named(server: LiveServer, web: str) -> None:
    spec = urls(f"{web}/files/a", f"{web}/gone")
    answer = refused(server, "POST", f"{YARD}/datasets/resolve", spec)
    assert answer.code == "invalid"
    assert "/gone" in answer.what
    assert "404" in answer.why


def test_an_address_that_hangs_is_given_up(server: LiveServer, web: str) -> None:
    usual = server.platform.fetcher
    server.platform.fetcher = Fetcher(allow_private=True, read_seconds=0.1, sleep=lambda s: None)
    try:
        answer = refused(server, "POST", f"{YARD}/datasets/resolve", urls(f"{web}/hang"))
    finally:
        server.platform.fetcher.close()
        server.platform.fetcher = usual
    assert answer.code == "invalid"
    assert "/hang" in answer.what


class _LoopbackIsPublic(Fetcher):
    """A guard that has to let the test's own server pass, and nothing else that is private."""

    def _guard(self, url: str, addresses: list[Any]) -> Any:
        if addresses[0][1][0] == "127.0.0.1":
            return addresses
        return Fetcher._guard(self, url, addresses)


@pytest.mark.parametrize(
    ("fetcher", "path", "address"),
    [(Fetcher, "/files/a", "127.0.0.1"), (_LoopbackIsPublic, "/away", "10.0.0.1")],
)
def test_private_addresses_are_refused_also_behind_a_redirect(
    server: LiveServer, web: str, fetcher: type[Fetcher], path: str, address: str
) -> None:
    usual = server.platform.fetcher
    server.platform.fetcher = fetcher(allow_private=False)
    try:
        answer = refused(server, "POST", f"{YARD}/datasets/resolve", urls(f"{web}{path}"))
    finally:
        server.platform.fetcher.close()
        server.platform.fetcher = usual
    assert answer.code == "invalid"
    assert f"private address {address}" in answer.why


def test_a_mirror_is_asked_and_the_users_address_stays(own_server: LiveServer, web: str) -> None:
    usual = own_server.platform.fetcher
    mirrors = {"http://yann.lecun.com/exdb/mnist/": f"{web}/files/"}
    own_server.platform.fetcher = Fetcher(allow_private=True, mirrors=mirrors)
    try:
        address = "http://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz"
        (file,) = resolve(own_server, urls(address)).files
    finally:
        own_server.platform.fetcher.close()
        own_server.platform.fetcher = usual
    assert file.origin == f"url:{address}"
    assert file.size > 0
