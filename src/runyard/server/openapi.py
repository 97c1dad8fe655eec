"""The OpenAPI document, made from the table of routes."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from runyard import __version__
from runyard.domain.errors import ErrorBody
from runyard.server.routing import Permission, Route

_REFERENCE = "#/components/schemas/{name}"


@lru_cache(maxsize=1)
def describe(routes: tuple[Route, ...]) -> dict[str, Any]:
    """All routes as an OpenAPI 3.1 document."""
    types = _types(routes)
    schemas, components = msgspec.json.schema_components(
        types, schema_hook=_schema_of_anything, ref_template=_REFERENCE
    )
    by_type = {repr(type): schema for type, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r"\.\.\.}", "}", route.path)
        paths.setdefault(path, {})[route.verb.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Runyard", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schema_of_anything(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError(f"no JSON schema for {kind}")


def _types(routes: Sequence[Route]) -> list[Any]:
    types: list[Any] = [ErrorBody, dict[str, object]]
    for route in routes:
        types += [kind for kind in (route.body, route.answer) if kind not in (None, bytes)]
        types += [field.type for field in msgspec.structs.fields(route.query)]
    return list({repr(kind): kind for kind in types}.values())


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in route.parameters
    ]
    in_query = [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": schemas[repr(field.type)],
        }
        for field in msgspec.structs.fields(route.query)
    ]
    operation: dict[str, Any] = {
        "operationId": f"{route.handler.__module__.rpartition('.')[2]}_{route.handler.__name__}",
        "summary": route.summary,
        "parameters": in_path + in_query,
        "responses": {
            "200": {"description": "Done.", "content": _content(route, schemas)},
            "default": {
                "description": "Refused; the body says what, why, and what to do.",
                "content": {"application/json": {"schema": schemas[repr(ErrorBody)]}},
            },
        },
        "x-permission": route.permission.value,
    }
    if route.permission is not Permission.PUBLIC:
        operation["security"] = [{"token": []}]
    if route.body is bytes or (route.verb == "PUT" and route.path.endswith("{digest}")):
        operation["requestBody"] = {"content": {"application/octet-stream": {}}}
    elif route.body is not None:
        schema = schemas[repr(route.body)]
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _content(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.answer is bytes:
        media = route.media if route.media != "application/json" else "application/octet-stream"
        return {media: {}}
    answer = dict[str, object] if route.answer is None else route.answer
    return {"application/json": {"schema": schemas[repr(answer)]}}
