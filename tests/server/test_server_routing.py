"""The table refuses holes, and a path is cut where it was really cut."""

from __future__ import annotations

import pytest

from runyard.domain.errors import NotFound
from runyard.server.routing import Call, NoQuery, Permission, Route, Router
from runyard.server.table import ROUTES


def answer(call: Call[None, NoQuery]) -> None:
    """Nothing."""


def wordless(call: Call[None, NoQuery]) -> None: ...


def route(path: str, *, verb: str = "GET", permission: object = Permission.READ) -> Route:
    return Route(verb=verb, path=path, permission=permission, handler=answer)  # type: ignore[arg-type]


def test_a_route_without_a_permission_does_not_start() -> None:
    with pytest.raises(ValueError, match="declares no permission"):
        Router([*ROUTES, route("/new", permission=None)])


def test_a_runs_permission_needs_a_run_in_the_path() -> None:
    with pytest.raises(ValueError, match=r"needs a \{run\}"):
        Router([route("/new/{other}", permission=Permission.RUN)])


def test_a_route_is_declared_once_and_documented() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        Router([route("/a"), route("/a")])
    with pytest.raises(ValueError, match="docstring"):
        Router([Route(verb="GET", path="/", permission=Permission.READ, handler=wordless)])


@pytest.mark.parametrize(
    ("sent", "params"),
    [
        (b"/runs/a/files/x/y.txt", {"run": "a", "path": "x/y.txt"}),
        (b"/runs/a%2Fb/files/x", {"run": "a/b", "path": "x"}),
        (b"/runs/..%2f..%2fetc/files/x", {"run": "../../etc", "path": "x"}),
        (b"/runs/a/files/%2e%2e/x", {"run": "a", "path": "../x"}),
        (b"/runs/a/files/%252e%252e%252fx", {"run": "a", "path": "%2e%2e%2fx"}),
        (b"/runs/a/files//etc/passwd", {"run": "a", "path": "/etc/passwd"}),
        (b"/runs/a/files/..\\x", {"run": "a", "path": "..\\x"}),
        ("/runs/a/files/ü".encode(), None),
        (b"/runs/a/files/%C3%BC+%20", {"run": "a", "path": "ü+ "}),
    ],
)
def test_parts_are_decoded_once(sent: bytes, params: dict[str, str] | None) -> None:
    router = Router([route("/runs/{run}/files/{path...}")])
    if params is not None:
        assert router.match(sent).params == params
    else:  # not encoded, so latin-1 at best: no file has that name
        assert router.match(sent).params["path"] != "ü"


@pytest.mark.parametrize(
    "sent",
    [
        b"/runs",
        b"/runs/",
        b"/runs/a/",
        b"/runs/a/files/",
        b"/runs//files/x",
        b"//runs/a",
        b"/runs/a/b",
        b"/runs/%00",
        b"/runs/%ff",
        b"",
        b"*",
    ],
)
def test_other_paths_lead_nowhere(sent: bytes) -> None:
    router = Router([route("/runs/{run}"), route("/runs/{run}/files/{path...}")])
    with pytest.raises(NotFound):
        router.match(sent)
