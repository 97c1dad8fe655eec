"""Who gets in: keys, tokens, the platform's own token."""

import time

import pytest

from runyard.serving.access import hash_key, mint_token
from runyard.testing.front_service import Service


@pytest.fixture
def locked(service: Service) -> Service:
    service.worker()
    service.start(auth="key", key_hashes=[hash_key("first"), hash_key("second")])
    service.wait_ready()
    return service


def test_a_service_with_keys_wants_one(locked: Service) -> None:
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}):
        answer = locked.score(b"[1]", **header)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="demo"'
        assert answer.json()["error"]
        assert "get_keys" in str(answer.json()["fix"])
    bare = locked.score(b"[1]", Authorization="first")
    assert bare.status == 401
    assert "does not begin with 'Bearer '" in str(bare.json()["why"])
    for key in ("first", "second"):
        assert locked.score(b"[1]", Authorization=f"Bearer {key}").body == b"[1]"


def test_health_is_open_and_the_rest_is_not(locked: Service) -> None:
    assert locked.ask("GET", "/").status == 200
    assert locked.ask("GET", "/healthz").status == 200
    for path in ("/swagger.json", "/metrics", "/v1/models/m", "/v2/models/m", "/nothing"):
        assert locked.ask("GET", path).status == 401, path
        if path != "/nothing":
            key = {"Authorization": "Bearer first"}
            assert locked.ask("GET", path, headers=key).status == 200, path
    description = locked.ask("GET", "/swagger.json", headers={"Authorization": "Bearer first"})
    assert "securityDefinitions" in description.json()


def test_the_status_is_for_the_platform_alone(locked: Service) -> None:
    assert locked.ask("GET", "/_runyard/status").status == 401
    for key in ("first", "wrong", ""):
        headers = {"Authorization": f"Bearer {key}"}
        assert locked.ask("GET", "/_runyard/status", headers=headers).status == 401
    platform = {"Authorization": "Bearer control"}
    assert locked.ask("GET", "/_runyard/status", headers=platform).status == 200
    assert locked.ask("GET", "/metrics", headers=platform).status == 200
    assert locked.ask("POST", "/score", b"[1]", headers=platform).status == 401


def test_a_refused_client_keeps_its_connection_if_it_sent_little(locked: Service) -> None:
    with locked.raw() as one:
        for _ in range(2):
            one.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n[1]")
            assert one.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_large_body_without_a_key_is_not_read(locked: Service) -> None:
    with locked.raw() as one:
        one.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_new_keys_replace_the_old_without_a_restart(locked: Service) -> None:
    locked.write(key_hashes=[hash_key("third")], configuration="another")
    platform = {"Authorization": "Bearer control"}
    while locked.ask("GET", "/_runyard/status", headers=platform).json()["configuration"] == "":
        time.sleep(0.02)
    assert locked.score(b"[1]", Authorization="Bearer third").status == 200
    assert locked.score(b"[1]", Authorization="Bearer first").status == 401


def test_a_token_opens_until_it_runs_out(service: Service) -> None:
    service.worker()
    service.start(auth="token", token_secret="s3cret")
    service.wait_ready()
    now = int(time.time())
    good, old = mint_token("s3cret", "demo", now + 600), mint_token("s3cret", "demo", now - 1)
    assert service.score(b"[1]", Authorization=f"Bearer {good}").status == 200
    assert service.score(b"[1]", Authorization=f"Bearer {old}").status == 401
    assert service.score(b"[1]").status == 401
