"""Routes of the model registry."""

from typing import Annotated, Any

import msgspec

from runyard.conductor import models
from runyard.conductor.models import ModelSearch
from runyard.conductor.services import services_of_model
from runyard.domain.errors import NotFound
from runyard.domain.models import (
    ModelDraft,
    ModelLineage,
    ModelPage,
    ModelPatch,
    ModelRecord,
    model_label,
)
from runyard.server.auth import check_workspace
from runyard.server.downloads import Download
from runyard.server.platform import utc_now
from runyard.server.routing import Call, NoQuery


class ModelsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which models to list."""

    workspace: str | None = None
    name: str | None = None
    number: int | None = None
    run: str | None = None
    framework: str | None = None
    dataset: str | None = None
    tag: list[str] = []  # `key` or `key=value`
    property: list[str] = []
    latest: bool = False
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    after: str | None = None


def register_model(call: Call[ModelDraft, NoQuery]) -> ModelRecord:
    """Register a model: of contents that the server has, or of files of a run."""
    check_workspace(call.grant, call.body.workspace)
    return models.register(call.platform.store, call.body, utc_now())


def list_models(call: Call[None, ModelsQuery]) -> ModelPage:
    """Some models, newest first."""
    query = call.query
    if query.workspace is not None:
        check_workspace(call.grant, query.workspace)
    wanted = ModelSearch(
        workspace=query.workspace or call.grant.workspace or None,
        name=query.name,
        number=query.number,
        run=query.run,
        framework=query.framework,
        dataset=query.dataset,
        tags=_labels(query.tag),
        properties=_labels(query.property),
        latest=query.latest,
    )
    return models.find(call.platform.store, wanted, limit=query.limit, after=query.after)


def _labels(texts: list[str]) -> dict[str, str | None]:
    pairs = (text.partition("=") for text in texts)
    return {key: value if equals else None for key, equals, value in pairs}


def get_model(call: Call[None, NoQuery]) -> ModelRecord:
    """One version of a model, by its id."""
    return _load(call)


def patch_model(call: Call[ModelPatch, NoQuery]) -> ModelRecord:
    """Change a model's labels, add properties and datasets."""
    return models.patch(call.platform.store, _load(call).id, call.body, utc_now())


def delete_model(call: Call[None, NoQuery]) -> None:
    """Remove one version of a model."""
    store, model = call.platform.store, _load(call)
    using = [service.name for service in services_of_model(store, model)]
    models.delete(store, model.id, services=using)


def get_model_lineage(call: Call[None, NoQuery]) -> ModelLineage:
    """Where a model comes from: run, code, environment and datasets."""
    return models.load_lineage(call.platform.store, _load(call))


def get_model_file(call: Call[None, NoQuery]) -> Download:
    """A file of a model, always as an attachment."""
    model, path, blobs = _load(call), call.params["path"], call.platform.store.blobs
    entry = next((one for one in model.manifest if one.path == path), None)
    if entry is None:
        raise NotFound(
            f"Model '{model_label(model)}' has no file '{path}'.",
            why=f"It has: {', '.join(one.path for one in model.manifest[:20])}.",
        )
    return Download(
        call.platform,
        lambda start, end: blobs.open(entry.digest, start, end),
        size=entry.size,
        etag=entry.digest,
        name=path.rpartition("/")[2],
    )


def _load(call: Call[Any, Any]) -> ModelRecord:
    model = call.platform.store.records.get(ModelRecord, call.params["model"])
    check_workspace(call.grant, model.workspace)
    return model
