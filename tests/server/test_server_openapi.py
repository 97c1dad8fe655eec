"""The table of routes, the OpenAPI document and docs/http-api.md say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runyard.server.openapi import describe
from runyard.server.table import ROUTES

if TYPE_CHECKING:
    from tests.server.conftest import LiveServer

DOCUMENT = Path(__file__).parents[2] / "docs" / "http-api.md"


def test_the_document_has_every_route_and_no_loose_references(server: LiveServer) -> None:
    answer = server.request("GET", "/api/v1/openapi.json")
    document = msgspec.json.decode(answer.data)
    found = {(verb, path) for path, verbs in document["paths"].items() for verb in verbs}
    assert found == {(r.verb.lower(), r.path.replace("...}", "}")) for r in ROUTES}
    names = set(re.findall(rb'"#/components/schemas/([^"]+)"', answer.data))
    assert {name.decode() for name in names} <= set(document["components"]["schemas"])


def test_operations_have_names_of_their_own() -> None:
    paths = describe(ROUTES)["paths"]
    names = [operation["operationId"] for verbs in paths.values() for operation in verbs.values()]
    assert len(names) == len(set(names)) == len(ROUTES)


def test_the_documentation_lists_every_route_with_its_permission() -> None:
    rows = re.findall(r"^\| (\w+) `([^`]+)` \| ([\w ]+)", DOCUMENT.read_text(), re.MULTILINE)
    written = {f"{verb} {path}": words.split()[0] for verb, path, words in rows}
    declared = {
        f"{route.verb} {route.path.replace('...}', '}')}": route.permission.value
        for route in ROUTES
    }
    assert written == declared, "docs/http-api.md and server/table.py differ"
