"""The edge: from an HTTP request to the handler of its route, and back.

Plain ASGI and no objects on the way, because jobs send thousands of small requests.
"""

import logging
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Message, Receive, Scope, Send

from runyard.domain.errors import ErrorBody, Invalid, RunyardError, WrongVerb, to_wire
from runyard.domain.tokens import Grant
from runyard.server import web
from runyard.server.auth import Guard, Unauthenticated
from runyard.server.messages import ClientGone, read_body, send_json
from runyard.server.platform import Platform
from runyard.server.routing import Call, NoQuery, Permission, Route, Router

log = logging.getLogger(__name__)

_MEGABYTE = 1 << 20
_ENCODE = msgspec.json.Encoder().encode
_NO_QUERY = NoQuery()


class Edge:
    """The ASGI application."""

    def __init__(self, platform: Platform, routes: tuple[Route, ...]) -> None:
        self._platform = platform
        self._guard = Guard(platform)
        self._router = Router(routes)
        self._decoders = {id(route): _decoder(route) for route in routes}
        self._plain = {id(route) for route in routes if not route.is_async}
        self._lists = {route.query: _repeatable(route.query) for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise ValueError(f"the server speaks http, not {scope['type']}")
        started = False
        route: Route | None = None

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self._guard.check_origin(scope)
            route, params = self._route(scope)
            await self._answer(route, params, scope, receive, noting_send)
        except ClientGone:
            return
        except RunyardError as error:
            if started:
                log.warning("an answer was cut short: %s", error)
                raise
            await self._refuse(error.status, to_wire(error), route, scope, receive, send)
        except Exception:
            incident = secrets.token_hex(4)
            log.exception("error %s while answering %s %s", incident, *_request_line(scope))
            if started:
                raise
            await self._refuse(500, _bug(incident), route, scope, receive, send)

    def _route(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        routes, params = self._router.match(scope["raw_path"])
        route = routes.get(scope["method"])
        if route is None:
            verb, path = _request_line(scope)
            raise WrongVerb(f"{verb} is not possible on {path}; it has: {', '.join(routes)}.")
        return route, params

    async def _answer(
        self, route: Route, params: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        grant = await self._guard.admit(scope, route.permission, params)
        call = await self._call(route, params, grant, scope, receive)
        if id(route) in self._plain:
            answer = await self._platform.in_thread(route.handler, call)
        else:
            answer = await route.handler(call)  # type: ignore[misc]  # it is a coroutine
        if callable(answer):  # an ASGI application of its own: bytes, pages, streams
            await answer(scope, receive, send)
        else:
            await send_json(send, 200, b"{}" if answer is None else _ENCODE(answer))

    async def _call(
        self,
        route: Route,
        params: dict[str, str],
        grant: Grant,
        scope: Scope,
        receive: Receive,
    ) -> Call[Any, Any]:
        query: msgspec.Struct = _NO_QUERY
        if scope["query_string"] or route.query is not NoQuery:
            query = parse_query(scope["query_string"], route.query, self._lists[route.query])
        body: object = None
        if route.body is not None:
            limit = route.body_limit_bytes
            if limit is None:
                limit = self._platform.settings.body_limit_mb * _MEGABYTE
            body = await read_body(scope, receive, limit)
            decoder = self._decoders[id(route)]
            if decoder is not None:
                body = _decode(decoder, body)
        return Call(self._platform, scope, receive, params, grant, body, query)

    async def _refuse(
        self,
        status: int,
        body: ErrorBody,
        route: Route | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        if route is not None and route.permission is Permission.PAGE:
            await web.refusal(status, body)(scope, receive, send)
            return
        extra = ((b"www-authenticate", b"Bearer"),) if status == Unauthenticated.status else ()
        await send_json(send, status, _ENCODE(body), extra)


def parse_query(
    raw: bytes, kind: type[msgspec.Struct], repeatable: Mapping[str, bool]
) -> msgspec.Struct:
    """The query parameters as `kind`, decoded once; `Invalid` says which is wrong."""
    values: dict[str, object] = {}
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise Invalid("The query of the address is malformed.", why=f"{error}.") from None
    for key, value in pairs:
        if "\x00" in value:
            raise Invalid(f"The query parameter '{key}' has a zero byte in it.")
        if repeatable.get(key):
            several = values.setdefault(key, [])
            assert isinstance(several, list)
            several.append(value)
        else:
            values[key] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid("The query of the address makes no sense.", why=f"{error}.") from None


def _repeatable(kind: type[msgspec.Struct]) -> dict[str, bool]:
    fields = msgspec.structs.fields(kind)
    return {field.encode_name: getattr(field.type, "__origin__", None) is list for field in fields}


def _decoder(route: Route) -> "msgspec.json.Decoder[Any] | None":
    if route.body is None or route.body is bytes:
        return None
    return msgspec.json.Decoder(route.body)


def _decode(decoder: "msgspec.json.Decoder[Any]", body: object) -> object:
    assert isinstance(body, bytes)
    try:
        asked = decoder.decode(body)
        if isinstance(asked, msgspec.Struct):
            _refuse_unknown(msgspec.json.decode(body), msgspec.to_builtins(asked))
        return asked
    except msgspec.ValidationError as error:
        raise Invalid("The body of the request makes no sense.", why=f"{error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            "The body of the request is not JSON.", why=f"{error}.", fix="Send valid JSON."
        ) from None
    except RecursionError:
        raise Invalid("The body of the request is nested too deeply.") from None


def _refuse_unknown(sent: object, understood: object, path: str = "$") -> None:
    """Refuse fields that would be ignored: a typo, or a wish this server is too old for.

    Only requests are that strict. Answers may have more fields than their reader knows, so that
    an older client can speak with a newer server.
    """
    if isinstance(sent, dict) and isinstance(understood, dict):
        for name, value in sent.items():
            if name not in understood:
                raise Invalid(
                    f"The request has a field that is not known here: {path}.{name}",
                    fix="Mind the spelling, or update the server.",
                )
            _refuse_unknown(value, understood[name], f"{path}.{name}")
    elif isinstance(sent, list) and isinstance(understood, list | tuple):
        for index, (value, known) in enumerate(zip(sent, understood, strict=False)):
            _refuse_unknown(value, known, f"{path}[{index}]")


def _bug(incident: str) -> ErrorBody:
    return ErrorBody(
        code="internal",
        what=f"The server failed while it answered (error {incident}).",
        why="This is a bug of the platform, not of your request.",
        fix=f"Look for {incident} in logs/server.log of the server's home folder.",
    )


def _request_line(scope: Scope) -> tuple[str, str]:
    return scope["method"], scope["raw_path"][:200].decode("ascii", "backslashreplace")
