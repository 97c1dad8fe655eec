"""Requests that cannot be answered: each is told what was expected, and costs nothing."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3

from azureml.core import Model, Workspace
from azureml.core.webservice import AciWebservice

pytestmark = pytest.mark.story

GOOD = {"data": [[5.1, 3.5, 1.4, 0.2]], "method": "predict"}


@pytest.fixture(scope="module")
def iris_service(shared: Workspace, iris: Model) -> Iterator[Any]:
    """A scikit-learn service without a script, which wants a key."""
    config = AciWebservice.deploy_configuration(auth_enabled=True)
    service = Model.deploy(shared, "bad-requests", [iris], deployment_config=config)
    service.wait_for_deployment()
    yield service
    service.delete()


def send(service: Any, body: bytes, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """The status and the document that come back."""
    secret = service.get_keys()[0] if key is None else key
    headers = {"Content-Type": "application/json"}
    if secret:
        headers["Authorization"] = f"Bearer {secret}"
    answer = urllib3.request("POST", service.scoring_uri, body=body, headers=headers)
    return answer.status, json.loads(answer.data)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"data": [[NaN, 3.5, 1.4, 0.2]]}', "NaN"),
        (b'{"data": [[1, 2, 3]]}', "4"),
        (b'{"data": [[1, 2, 3, 4], [1, 2]]}', "rows"),
        (b'{"data": [["a", "b", "c", "d"]]}', "number"),
        (b'{"data": [[1, 2, 3, 4]], "method": "predictt"}', "predictt"),
        (b'{"rows": []}', "data"),
        (b'{"data": "\xff\xfe"}', "UTF-8"),
        (b"not json at all", "JSON"),
        (b"", "empty"),
        (b"[" * 100_000, "nested too deeply"),
    ],
    ids=["nan", "shape", "ragged", "text", "method", "key", "utf-8", "json", "empty", "deep"],
)
def test_a_bad_body_is_told_what_was_expected(iris_service: Any, body: bytes, words: str) -> None:
    status, document = send(iris_service, body)
    assert status == 400, document
    assert words in document["error"], document
    assert document["example"] == {"data": [[0.0, 0.0, 0.0, 0.0]]}, document
    assert send(iris_service, json.dumps(GOOD).encode()) == (200, {"predict": [0]})


@pytest.mark.parametrize("key", ["", "a-wrong-one"], ids=["missing", "wrong"])
def test_a_wrong_or_missing_key_is_told_so(iris_service: Any, key: str) -> None:
    status, document = send(iris_service, json.dumps(GOOD).encode(), key)
    assert status == 401
    assert "key" in document["why"]
    assert "get_keys()" in document["fix"]


def test_a_gigabyte_is_refused_before_it_is_sent(iris_service: Any) -> None:
    address = urlsplit(iris_service.scoring_uri)
    assert address.port is not None
    with socket.create_connection((address.hostname, address.port), timeout=30) as link:
        link.sendall(
            b"POST /score HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
            + f"Authorization: Bearer {iris_service.get_keys()[0]}\r\n".encode()
            + b"Content-Length: 1073741824\r\n\r\n"
        )
        answer = link.makefile("rb").read()  # to the end: it hangs up, so nothing more is sent
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert "64" in json.loads(body)["error"] + json.loads(body)["why"]
