"""Asking the server for models."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from runyard.domain.errors import RunyardError
from runyard.domain.models import ModelPage, ModelRecord
from runyard.sdk.element import nearest
from runyard.sdk.exceptions import ModelNotFoundException, as_v1_model, error_text

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

NAMES_SHOWN = 20

T = TypeVar("T")


def model_page(workspace: "Workspace", query: Mapping[str, object]) -> ModelPage:
    """Some models of the workspace, newest first."""
    whole = {"workspace": workspace.name, **query}
    return ask(workspace, "GET", "/api/v1/models", None, ModelPage, whole)


def find_models(workspace: "Workspace", query: Mapping[str, object]) -> Iterator[ModelRecord]:
    """All models of the workspace that match, newest first."""
    after: str | None = None
    while True:
        page = model_page(workspace, {**query, "after": after})
        yield from page.models
        after = page.next
        if after is None:
            return


def ask(
    workspace: "Workspace",
    method: str,
    path: str,
    body: object | None,
    answer: type[T],
    query: Mapping[str, object] | None = None,
) -> T:
    """One request about models; its errors are v1's for models. All of them may be repeated."""
    try:
        return workspace._session.client.request(
            method, path, query=query, body=body, answer=answer, safe_to_repeat=True
        )
    except RunyardError as error:
        raise as_v1_model(error) from None


def no_such_model(
    workspace: "Workspace", name: str, number: int | None, query: Mapping[str, object]
) -> ModelNotFoundException:
    """The error for a model that is not there, with what there is."""
    versions = [one.number for one in find_models(workspace, {"name": name})]
    narrowed = [key for key in ("tag", "property", "run", "framework") if query[key] is not None]
    called = f"{name}:{number}" if number is not None else name
    if versions and narrowed:
        why = f"Version {versions[0]} is there, but no version fits the {' and '.join(narrowed)}."
        fix = ""
    elif versions:
        why = f"It has the versions: {', '.join(str(one) for one in versions[:NAMES_SHOWN])}."
        fix = f"Leave the version out to get the newest: Model(ws, '{name}')"
    else:
        names = sorted({one.name for one in model_page(workspace, {"latest": True}).models})
        near = nearest(name, names)
        shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
        why = f"Workspace '{workspace.name}' has: {shown or 'no models yet'}."
        fix = f"Did you mean '{near}'?" if near else "Register it: run.register_model(name, path)"
    return ModelNotFoundException(
        error_text(f"ModelNotFound: there is no model '{called}'.", why=why, fix=fix)
    )
