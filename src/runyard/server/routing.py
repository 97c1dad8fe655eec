"""Routes as data: verb, path, permission, what comes in and what goes out.

The table of all routes (`runyard.server.table`) is what the server serves, what the OpenAPI
document is made from and what the tests of permissions go through.

A path has literal parts and parameters: `{run}` is one part, `{path...}` all the rest. Parts are
cut at the slashes that were really sent and decoded once, so an encoded slash never moves a
border.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope

from runyard.domain.errors import NotFound
from runyard.domain.tokens import Grant
from runyard.server.platform import Platform

B = TypeVar("B")
Q = TypeVar("Q")


class Permission(StrEnum):
    """Who may use a route. A viewer's cookie counts wherever a viewer may read."""

    PUBLIC = "public"  # anybody
    READ = "read"  # owner, runs of that workspace, viewer of everything
    VIEW = "view"  # as READ, and viewer of that run or its ancestors
    WRITE = "write"  # owner
    JOB = "job"  # owner, runs of that workspace
    RUN = "run"  # owner, that run, its ancestors
    SUPERVISE = "supervise"  # owner, the ancestors of that run, not the run itself
    REPORT = "report"  # owner, the agent of that run
    SUBMIT = "submit"  # owner, the parent named in the body or the parent's ancestors
    PAGE = "page"  # owner, viewer of everything or of that run or its ancestors; refusals are pages


_OF_A_RUN = (Permission.VIEW, Permission.RUN, Permission.SUPERVISE, Permission.REPORT)


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For routes that take no query parameters."""


class Call(Generic[B, Q]):
    """One request, checked and decoded, as its handler sees it."""

    __slots__ = ("body", "grant", "params", "platform", "query", "receive", "scope")

    def __init__(
        self,
        platform: Platform,
        scope: Scope,
        receive: Receive,
        params: Mapping[str, str],
        grant: Grant,
        body: B,
        query: Q,
    ) -> None:
        self.platform = platform
        self.scope = scope
        self.receive = receive
        self.params = params
        self.grant = grant
        self.body = body
        self.query = query

    def header(self, name: bytes) -> str | None:
        """The value of a request header, by its lower-case name."""
        return header(self.scope, name)


Handler = Callable[[Call[Any, Any]], object]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. What a handler returns is sent as JSON, unless it is ASGI itself.

    A plain function is called in the thread pool, because stores are synchronous; a coroutine
    function in the event loop.
    """

    verb: str
    path: str
    permission: Permission
    handler: Handler
    query: type[msgspec.Struct] = NoQuery
    body: object = None  # the type of the JSON body; bytes: read whole; None: no body is read
    answer: object = None  # the type of the JSON answer; None: an empty object; bytes: bytes
    media: str = "application/json"  # of an answer that is bytes
    body_limit_bytes: int | None = None  # None: the setting's

    @property
    def is_async(self) -> bool:
        """Whether the handler belongs into the event loop."""
        return asyncio.iscoroutinefunction(self.handler)

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        parts = self.path.split("/")
        return [part.strip("{}").removesuffix("...") for part in parts if part.startswith("{")]


class Match(NamedTuple):
    """What a path leads to: routes by verb, and the values in it."""

    routes: Mapping[str, Route]
    params: dict[str, str]


class _Node:
    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, Route] = {}
        self.tails: dict[str, Route] = {}


class Router:
    """Finds the route of a request. Refuses a table with a hole in it."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        if not isinstance(route.permission, Permission):
            raise ValueError(f"{route.verb} {route.path} declares no permission; see Permission")
        if route.permission in _OF_A_RUN and "run" not in route.parameters:
            raise ValueError(f"{route.verb} {route.path} needs a {{run}} in its path")
        if not route.summary:
            raise ValueError(f"the handler of {route.verb} {route.path} needs a docstring")
        node = self._root
        for part in route.path.split("/")[1:]:
            if part.endswith("...}"):
                _put(node.tails, route)
                return
            if part.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(part, _Node())
        _put(node.routes, route)

    def match(self, raw_path: bytes) -> Match:
        """The routes of a path as it was sent; `NotFound` if there are none."""
        node, values = self._root, []
        parts = raw_path.decode("latin-1").split("/")[1:]
        for index, part in enumerate(parts):
            following = node.literals.get(part)
            if following is not None:
                node = following
                continue
            if node.tails:
                values.append(decode_part("/".join(parts[index:])))
                return _found(node.tails, values, raw_path)
            if node.parameter is None:
                raise _unknown(raw_path)
            values.append(decode_part(part))
            node = node.parameter
        return _found(node.routes, values, raw_path)


def _put(routes: dict[str, Route], route: Route) -> None:
    if route.verb in routes:
        raise ValueError(f"{route.verb} {route.path} is declared twice")
    routes[route.verb] = route


def _found(routes: Mapping[str, Route], values: list[str], raw_path: bytes) -> Match:
    if not routes or not all(values):
        raise _unknown(raw_path)
    names = next(iter(routes.values())).parameters
    return Match(routes, dict(zip(names, values, strict=True)))


def _unknown(raw_path: bytes) -> NotFound:
    path = raw_path[:200].decode("ascii", "backslashreplace")
    return NotFound(f"There is nothing at {path}.", fix="See docs/http-api.md for what there is.")


def decode_part(part: str) -> str:
    """A part of a path as its sender meant it; `NotFound` if it cannot name anything."""
    if "%" in part:
        try:
            part = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            raise NotFound("The address is not UTF-8.") from None
    if "\x00" in part:
        raise NotFound("The address has a zero byte in it.")
    return part


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header, by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return None
