"""What users say of a model, checked, in the domain's words."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from runyard.domain.errors import Invalid
from runyard.domain.models import (
    FRAMEWORKS,
    ModelDataset,
    ModelDraft,
    check_framework,
    check_model_name,
    known_framework,
)
from runyard.sdk.abstract_dataset import AbstractDataset
from runyard.sdk.element import nearest
from runyard.sdk.exceptions import WebserviceException, as_v1_model, error_text, user_error
from runyard.sdk.resource_configuration import plan_resources
from runyard.sdk.submission import user_name

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """All that may be said of a model beside its name and files, as it was given."""

    tags: Mapping[str, object] | None = None
    properties: Mapping[str, object] | None = None
    description: str | None = None
    datasets: object | None = None
    framework: str | None = None
    framework_version: object | None = None
    sample_input: object | None = None
    sample_output: object | None = None
    resources: object | None = None


def plan_draft(workspace: "Workspace", name: str, details: Details) -> ModelDraft:
    """A draft without files. Datasets that have no id yet get one."""
    version = details.framework_version
    try:
        if not isinstance(name, str):
            raise Invalid(f"{name!r} cannot be the name of a model.", fix="Pass a text.")
        check_model_name(name)
        check_framework(details.framework, None if version is None else str(version))
    except Invalid as error:
        raise as_v1_model(error) from None
    return ModelDraft(
        # Ours to choose, so that a repeated request finds what the first one made.
        id=uuid4().hex,
        workspace=workspace.name,
        name=name,
        description=details.description,
        tags=tag_texts(details.tags),
        properties=property_texts(details.properties),
        framework=_framework(details.framework),
        framework_version=None if version is None else str(version),
        resources=plan_resources(details.resources),
        datasets=plan_datasets(workspace, details.datasets),
        sample_input=saved_id(workspace, details.sample_input, "sample_input_dataset"),
        sample_output=saved_id(workspace, details.sample_output, "sample_output_dataset"),
        created_by=user_name(),
    )


def _framework(name: str | None) -> str | None:
    if name is None:
        return None
    known = known_framework(str(name))
    if known not in FRAMEWORKS and (near := nearest(known, FRAMEWORKS)):
        warnings.warn(
            f"model_framework='{name}' is none that v1 knows; did you mean '{near}'? As it is, "
            "the model can be deployed with a script only.",
            stacklevel=5,
        )
    return known


def tag_texts(tags: Mapping[str, object] | None) -> dict[str, str | None]:
    """Tags as they are kept: texts, or None for a tag without a value."""
    return {
        str(key): None if value is None else str(value)
        for key, value in _mapping("tags", tags).items()
    }


def property_texts(properties: Mapping[str, object] | None) -> dict[str, str]:
    """Properties as they are kept."""
    return {str(key): str(value) for key, value in _mapping("properties", properties).items()}


def _mapping(what: str, given: Mapping[str, object] | None) -> Mapping[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise WebserviceException(
            error_text(f"{what}={given!r} is not a dictionary.", fix=f"Write {what}={{'a': 'b'}}")
        )
    return given


def plan_datasets(workspace: "Workspace", datasets: object | None) -> tuple[ModelDataset, ...]:
    """Pairs of a purpose and a dataset. Datasets that are not registered get an id."""
    if datasets is None:
        return ()
    planned = []
    for pair in datasets if isinstance(datasets, list | tuple) else [datasets]:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise WebserviceException(
                error_text(
                    f"{pair!r} is not a pair of a purpose and a dataset.",
                    fix="Write datasets=[('training', dataset)]",
                )
            )
        id = saved_id(workspace, pair[1], f"dataset for '{pair[0]}'")
        if id is None:
            raise WebserviceException(error_text(f"The dataset for '{pair[0]}' is None."))
        planned.append(ModelDataset(purpose=str(pair[0]), dataset=id))
    return tuple(planned)


def saved_id(workspace: "Workspace", dataset: object | None, what: str) -> str | None:
    """The id of a dataset; None for None."""
    if dataset is None:
        return None
    if not isinstance(dataset, AbstractDataset):
        raise WebserviceException(
            error_text(
                f"The {what} cannot be of type {type(dataset).__name__}.",
                fix="Pass a FileDataset or TabularDataset, such as Dataset.get_by_name(ws, name).",
            )
        )
    return dataset._saved(workspace).id


def label_filters(what: str, wanted: Sequence[object] | None) -> list[str] | None:
    """v1's filter, a list of 'key' and ['key', 'value'], as the server takes it."""
    if wanted is None:
        return None
    if not isinstance(wanted, list | tuple):
        raise user_error(
            f"{what}={wanted!r} is not a list.",
            fix=f"Write {what}=['key', ['other key', 'its value']]",
        )
    return [
        "=".join(str(part) for part in one) if isinstance(one, list | tuple) else str(one)
        for one in wanted
    ]


def has_labels(labels: Mapping[str, str | None], wanted: "list[str] | None") -> bool:
    """Whether such a filter lets labels pass."""
    for text in wanted or ():
        key, equals, value = text.partition("=")
        if key not in labels or (equals and (labels[key] or "") != value):
            return False
    return True


def parse_id(id: object) -> tuple[str, int]:
    """Name and version of v1's NAME:VERSION."""
    name, _, number = str(id).rpartition(":")
    if not name or not (number.isascii() and number.isdigit()):
        raise WebserviceException(
            error_text(
                f"'{id}' is not the id of a model: ModelNotFound.",
                why="An id has the form NAME:VERSION.",
                fix="Write Model(ws, id='my-model:2'), or give the name: Model(ws, 'my-model')",
            )
        )
    return name, int(number)


def checked_version(version: object) -> int:
    """A version as a number; v1 took nothing else."""
    text = str(version)
    if isinstance(version, bool) or not (text.isascii() and text.isdigit()):
        raise WebserviceException(
            error_text(f"version={version!r} is not a version.", why="It is a number: 1, 2, …")
        )
    return int(text)
