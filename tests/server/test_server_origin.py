"""Attacks from web pages: a name that points at us, and requests another site makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runyard.server.auth import allowed_hosts, host_name
from runyard.settings import Settings

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

STOP = "/api/v1/workspaces"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#localhost",
        "localhost:port",
        "127.0.0.2",
        "0.0.0.0",
        "",
        "[::1",
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/api/v1/server", "/", "/static/page.css", "/none"])
def test_a_strange_host_is_refused_everywhere(server: LiveServer, host: str, path: str) -> None:
    assert server.request("GET", path, headers={"Host": host}).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1234", "127.0.0.1:99", "[::1]:80", "yard.example", "[::1]"]
)
def test_our_own_names_are_answered(server: LiveServer, host: str) -> None:
    assert server.request("GET", "/healthz", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
    ],
    ids=str,
)
@pytest.mark.parametrize("verb", ["POST", "PUT", "PATCH", "DELETE"])
def test_unsafe_verbs_from_other_sites_are_refused(
    server: LiveServer, headers: dict[str, str], verb: str
) -> None:
    assert server.request(verb, STOP, json={"name": "yard"}, headers=headers).status == 403


def test_our_own_pages_may_post(server: LiveServer) -> None:
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": server.url}
    assert server.request("POST", STOP, json={"name": "yard"}, headers=headers).status == 200


def test_a_cookie_never_writes(server: LiveServer) -> None:
    run = server.make_run()
    opened = server.request("GET", f"/runs/{run.id}?ticket={server.ticket()}", token=None)
    cookie = opened.headers["Set-Cookie"].partition(";")[0]
    headers = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
    reads = f"/api/v1/runs/{run.id}/files"
    assert server.request("GET", reads, token=None, headers=headers).status == 200
    for path in ("/api/v1/blobs/missing", f"/api/v1/runs/{run.id}/ticket", f"{reads}"):
        assert server.request("POST", path, json=[], token=None, headers=headers).status == 401


def test_only_a_viewers_ticket_works_as_a_cookie(server: LiveServer) -> None:
    run = server.make_run()
    opened = server.request("GET", f"/?ticket={server.ticket()}", token=None)
    name = opened.headers["Set-Cookie"].partition("=")[0]
    for token in (server.run_token(run.id), "the-owner's-token", server.ticket(-1)):
        headers = {"Cookie": f"{name}={token}"}
        assert server.request("GET", "/api/v1/server", token=None, headers=headers).status == 401
        assert server.request("GET", "/", token=None, headers=headers).status == 401
        assert server.request("GET", f"/?ticket={token}", token=None).status == 401


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost:80", "localhost"),
        ("LocalHost.", "localhost"),
        ("[::1]:8080", "::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("a b", "a b"),
        ("user@localhost", ""),
        ("localhost/x", ""),
        ("localhost?x", ""),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name


def test_the_name_in_its_public_address_is_one_of_its_names() -> None:
    settings = Settings(home=Path("home"), public_url="https://Yard.lab:8443")
    assert "yard.lab" in allowed_hosts(settings)
    assert "" not in allowed_hosts(Settings(home=Path("home")))
