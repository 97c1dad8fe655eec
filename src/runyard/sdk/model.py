"""`Model`: a live handle of one version of a registered model."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from runyard.domain.models import ModelPatch, ModelRecord, model_label
from runyard.sdk.abstract_dataset import AbstractDataset
from runyard.sdk.exceptions import (
    ModelNotFoundException,
    UserErrorException,
    WebserviceException,
    error_text,
    user_error,
)
from runyard.sdk.model_drafts import (
    Details,
    checked_version,
    label_filters,
    parse_id,
    plan_datasets,
    plan_draft,
    property_texts,
    saved_id,
    tag_texts,
)
from runyard.sdk.model_files import cached_model, download_model, measure_model, post_model
from runyard.sdk.model_search import ask, find_models, model_page, no_such_model
from runyard.sdk.not_here import refuse
from runyard.sdk.resource_configuration import (
    ResourceConfiguration,
    plan_resources,
    resources_of,
)
from runyard.sdk.session import segment, segments
from runyard_runtime import files, model_paths

if TYPE_CHECKING:
    from runyard.sdk.deployment_configuration import WebserviceDeploymentConfiguration
    from runyard.sdk.inference_config import InferenceConfig
    from runyard.sdk.run import Run
    from runyard.sdk.webservice import Webservice
    from runyard.sdk.workspace import Workspace

T = TypeVar("T")

SMALLEST_PAGE, LARGEST_PAGE = 20, 255  # v1's

StrPath = str | os.PathLike[str]
Labels = Mapping[str, object]
Datasets = Sequence[tuple[str, AbstractDataset]]
Filters = Sequence[object] | None


class Model:
    """One version of a model: a name, its files, and where it came from."""

    class Framework:
        """The frameworks v1 knows; their models can be deployed without a script."""

        CUSTOM = "Custom"
        TENSORFLOW = "TensorFlow"
        SCIKITLEARN = "ScikitLearn"
        ONNX = "Onnx"
        TFKERAS = "TfKeras"
        PYTORCH = "PyTorch"
        MULTI = "Multi"

    def __init__(
        self,
        workspace: "Workspace",
        name: str | None = None,
        id: str | None = None,
        tags: Filters = None,
        properties: Filters = None,
        version: int | None = None,
        run_id: str | None = None,
        model_framework: str | None = None,
        expand: bool = True,
        **kwargs: object,
    ) -> None:
        if not name and not id:
            raise WebserviceException(
                error_text(
                    "A model is found by its name or its id.",
                    fix="Write Model(ws, 'my-model') or Model(ws, id='my-model:2')",
                )
            )
        number = None if version is None else checked_version(version)
        if id:
            name, number = parse_id(id)
        query = {
            "name": name,
            "number": number,
            "tag": label_filters("tags", tags),
            "property": label_filters("properties", properties),
            "run": run_id,
            "framework": model_framework,
        }
        found = model_page(workspace, {**query, "limit": 1}).models
        if not found:
            raise no_such_model(workspace, name or "", number, query)
        self._attach(workspace, found[0])

    def _attach(self, workspace: "Workspace", record: ModelRecord) -> None:
        self._workspace = workspace
        self._session = workspace._session
        self._record = record

    @classmethod
    def _of(cls, workspace: "Workspace", record: ModelRecord) -> "Model":
        model = cls.__new__(cls)
        model._attach(workspace, record)
        return model

    # Registering and finding

    @staticmethod
    def register(
        workspace: "Workspace",
        model_path: StrPath,
        model_name: str,
        tags: Labels | None = None,
        properties: Labels | None = None,
        description: str | None = None,
        datasets: Datasets | None = None,
        model_framework: str | None = None,
        model_framework_version: str | None = None,
        child_paths: Sequence[str] | None = None,
        sample_input_dataset: AbstractDataset | None = None,
        sample_output_dataset: AbstractDataset | None = None,
        resource_configuration: object | None = None,
    ) -> "Model":
        """Register a local file or folder as the next version of a model."""
        details = Details(
            tags=tags,
            properties=properties,
            description=description,
            datasets=datasets,
            framework=model_framework,
            framework_version=model_framework_version,
            sample_input=sample_input_dataset,
            sample_output=sample_output_dataset,
            resources=resource_configuration,
        )
        draft = plan_draft(workspace, model_name, details)
        local = measure_model(model_path, child_paths)
        sys.stdout.write(f"Registering model {model_name}\n")  # as v1 did
        draft = msgspec.structs.replace(draft, manifest=local.manifest, is_folder=local.is_folder)
        return Model._of(workspace, post_model(workspace._session, draft, local.contents))

    @staticmethod
    def list(
        workspace: "Workspace",
        name: str | None = None,
        tags: Filters = None,
        properties: Filters = None,
        run_id: str | None = None,
        latest: bool = False,
        dataset_id: str | None = None,
        expand: bool = True,
        page_count: int = LARGEST_PAGE,
        model_framework: str | None = None,
    ) -> "_Models":
        """The models of a workspace that match, newest first."""
        if page_count and not SMALLEST_PAGE <= page_count <= LARGEST_PAGE:
            raise user_error(
                f"page_count={page_count} is not possible.",
                why=f"It must be between {SMALLEST_PAGE} and {LARGEST_PAGE}.",
            )
        query: dict[str, object] = {
            "name": name,
            "tag": label_filters("tags", tags),
            "property": label_filters("properties", properties),
            "run": run_id,
            "latest": latest or None,
            "dataset": dataset_id,
            "framework": model_framework,
            "limit": page_count or LARGEST_PAGE,
        }
        return [Model._of(workspace, record) for record in find_models(workspace, query)]

    @staticmethod
    def get_model_path(
        model_name: str, version: int | None = None, _workspace: "Workspace | None" = None
    ) -> str:
        """The path of a model on this machine.

        With a workspace it is fetched into azureml-models/NAME/VERSION below the working directory;
        else it is looked for there, and then as ./NAME.
        """
        number = None if version is None else checked_version(version)
        if number is not None or _workspace is None:
            try:
                return str(model_paths.find(model_name, number))
            except ModelNotFoundException:
                if _workspace is None:
                    raise
        model = Model(_workspace, model_name, version=number)
        return str(cached_model(model._session, model._record))

    # Deploying

    @staticmethod
    def deploy(
        workspace: "Workspace",
        name: str,
        models: "Sequence[Model]",
        inference_config: "InferenceConfig | None" = None,
        deployment_config: "WebserviceDeploymentConfiguration | None" = None,
        deployment_target: object | None = None,
        overwrite: bool = False,
        show_output: bool = False,
    ) -> "Webservice":
        """Deploy models as a web service; returns while it is still coming up.

        Without an inference_config the model's framework says how it is served.
        """
        from runyard.sdk.webservice import code_for, deploy_service

        service = deploy_service(
            workspace,
            name,
            models,
            code_for(inference_config),
            deployment_config,
            deployment_target,
            overwrite=overwrite,
        )
        if show_output:
            sys.stdout.write(f"Service '{name}' is {service.state}: {service.scoring_uri}\n")
        return service

    @staticmethod
    def package(
        workspace: "Workspace",
        models: "Sequence[Model]",
        inference_config: "InferenceConfig | None" = None,
        generate_dockerfile: bool = False,
        image_name: str | None = None,
        image_label: str | None = None,
    ) -> object:
        """Not in this release."""
        refuse("Model.package()", "images of models", "Deploy it: Model.deploy(ws, name, [model])")

    @staticmethod
    def profile(
        workspace: "Workspace",
        profile_name: str,
        models: "Sequence[Model]",
        inference_config: "InferenceConfig",
        input_dataset: AbstractDataset,
        cpu: float | None = None,
        memory_in_gb: float | None = None,
        description: str | None = None,
    ) -> object:
        """Not in this release."""
        refuse(
            "Model.profile()",
            "model profiling",
            "Deploy it and look at the service's /metrics while you call it.",
        )

    @staticmethod
    def _get_model_path_remote(model_name: str, version: int | None, workspace: "Workspace") -> str:
        """Private in v1, and used all the same."""
        return Model.get_model_path(model_name, version, workspace)

    @staticmethod
    def deserialize(workspace: "Workspace", model_payload: Mapping[str, object]) -> "Model":
        """The model that `serialize` was called on; it must be in that workspace."""
        return Model(workspace, id=str(model_payload.get("id") or ""))

    # What it is

    @property
    def name(self) -> str:
        """The model's name."""
        return self._record.name

    @property
    def version(self) -> int:
        """Its version: 1, 2, …"""
        return self._record.number

    @property
    def id(self) -> str:
        """NAME:VERSION."""
        return model_label(self._record)

    @property
    def description(self) -> str | None:
        """What was said of it."""
        return self._record.description

    @property
    def tags(self) -> dict[str, str | None]:
        """Its tags."""
        return dict(self._record.tags)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties; they are never changed."""
        return dict(self._record.properties)

    @property
    def workspace(self) -> "Workspace":
        """Where it is registered."""
        return self._workspace

    @property
    def created_time(self) -> datetime:
        """When it was registered."""
        return self._record.created

    @property
    def created_by(self) -> dict[str, str]:
        """Who registered it."""
        return {"userName": self._record.created_by}

    @property
    def model_framework(self) -> str | None:
        """The framework it was made with."""
        return self._record.framework

    @property
    def model_framework_version(self) -> str | None:
        """The framework's version."""
        return self._record.framework_version

    @property
    def resource_configuration(self) -> ResourceConfiguration | None:
        """What a service of it should have, or None."""
        return resources_of(self._record.resources)

    @property
    def experiment_name(self) -> str | None:
        """The experiment of the run that made it."""
        return self._record.experiment

    @property
    def run_id(self) -> str | None:
        """The run that made it."""
        return self._record.run

    @property
    def run(self) -> "Run | None":
        """The run that made it; None if it was registered from local files."""
        from runyard.sdk.run import Run

        try:
            return Run.get(self._workspace, self._record.run) if self._record.run else None
        except UserErrorException:  # it is no more; the model does not need it
            return None

    @property
    def datasets(self) -> "dict[str, _Datasets]":
        """The datasets it was registered with, by what they were for."""
        from runyard.sdk.dataset import Dataset

        found: dict[str, _Datasets] = {}
        for use in self._record.datasets:
            dataset = Dataset.get_by_id(self._workspace, use.dataset)
            found.setdefault(use.purpose, []).append(dataset)
        return found

    @property
    def sample_input_dataset(self) -> AbstractDataset | None:
        """What it may be given."""
        return self._dataset(self._record.sample_input)

    @property
    def sample_output_dataset(self) -> AbstractDataset | None:
        """What it may answer."""
        return self._dataset(self._record.sample_output)

    def _dataset(self, id: str | None) -> AbstractDataset | None:
        from runyard.sdk.dataset import Dataset

        return Dataset.get_by_id(self._workspace, id) if id is not None else None

    @property
    def url(self) -> str:
        """v1's address of its files; a name here."""
        return f"aml://asset/{self._record.id}"

    @property
    def mime_type(self) -> str:
        """v1's type of its files."""
        return "application/json"

    @property
    def unpack(self) -> bool:
        """False: files are kept as they are."""
        return False

    @property
    def parent_id(self) -> str | None:
        """None: models are not derived from others here."""
        return None

    @property
    def derived_model_ids(self) -> "_Texts":
        """Empty: models are not derived from others here."""
        return []

    def serialize(self) -> dict[str, object]:
        """What is known of it, under v1's keys."""
        record = self._record
        resources = resources_of(record.resources)
        return {
            "createdTime": record.created.isoformat(),
            "createdBy": self.created_by,
            "description": record.description,
            "id": self.id,
            "mimeType": self.mime_type,
            "name": record.name,
            "framework": record.framework,
            "frameworkVersion": record.framework_version,
            "tags": self.tags,
            "properties": self.properties,
            "unpack": self.unpack,
            "url": self.url,
            "version": record.number,
            "experimentName": record.experiment,
            "runId": record.run,
            "runDetails": str(self.run),
            "datasets": [{"name": use.purpose, "id": use.dataset} for use in record.datasets],
            "resourceConfiguration": resources.serialize() if resources else None,
            "sampleInputDatasetId": record.sample_input,
            "sampleOutputDatasetId": record.sample_output,
        }

    # Its files

    def download(
        self, target_dir: StrPath = ".", exist_ok: bool = False, exists_ok: bool | None = None
    ) -> str:
        """Download it below a folder; the path of the file or folder that it is."""
        replace = exist_ok if exists_ok is None else exists_ok
        folder = Path(os.fspath(target_dir))
        return str(download_model(self._session, self._record, folder, exist_ok=replace))

    def get_sas_urls(self) -> dict[str, str]:
        """The address of each of its files; getting them needs the token, as all does here."""
        base = f"{self._session.client.url}{self._path}/files"
        return {entry.path: f"{base}/{segments(entry.path)}" for entry in self._record.manifest}

    # Changes

    def update(
        self,
        tags: Labels | None = None,
        description: str | None = None,
        sample_input_dataset: AbstractDataset | None = None,
        sample_output_dataset: AbstractDataset | None = None,
        resource_configuration: object | None = None,
    ) -> None:
        """Replace what is given; tags replace all the tags there are."""
        self._patch(
            ModelPatch(
                tags=None if tags is None else tag_texts(tags),
                description=description,
                sample_input=saved_id(
                    self._workspace, sample_input_dataset, "sample_input_dataset"
                ),
                sample_output=saved_id(
                    self._workspace, sample_output_dataset, "sample_output_dataset"
                ),
                resources=plan_resources(resource_configuration),
            )
        )

    def update_tags_properties(
        self,
        add_tags: Labels | None = None,
        remove_tags: Iterable[str] | str | None = None,
        add_properties: Labels | None = None,
    ) -> None:
        """Add and remove tags, add properties."""
        gone = (remove_tags,) if isinstance(remove_tags, str) else tuple(remove_tags or ())
        added = property_texts(add_properties)
        if taken := sorted(set(added) & set(self._look().properties)):
            raise WebserviceException(
                error_text(
                    f"Model '{self.id}' has the property '{taken[0]}' already.",
                    why="Properties are never changed.",
                    fix="Use a tag for what changes: model.add_tags({...})",
                )
            )
        self._patch(
            ModelPatch(
                set_tags=tag_texts(add_tags),
                remove_tags=tuple(str(key) for key in gone),
                add_properties=added,
            )
        )

    def add_tags(self, tags: Labels) -> None:
        """Add tags, or change their values."""
        self.update_tags_properties(add_tags=tags)

    def remove_tags(self, tags: Iterable[str] | str) -> None:
        """Remove tags by their keys."""
        self.update_tags_properties(remove_tags=tags)

    def add_properties(self, properties: Labels) -> None:
        """Add properties; one that is there already cannot be changed."""
        self.update_tags_properties(add_properties=properties)

    def add_dataset_references(self, datasets: Datasets) -> None:
        """Say which datasets belong to it: pairs of a purpose and a dataset."""
        self._patch(ModelPatch(add_datasets=plan_datasets(self._workspace, datasets)))

    def delete(self) -> None:
        """Remove this version from the workspace; a run that made it keeps its files."""
        ask(self._workspace, "DELETE", self._path, None, dict[str, object])

    @property
    def _path(self) -> str:
        return f"/api/v1/models/{segment(self._record.id)}"

    def _look(self) -> ModelRecord:
        self._record = ask(self._workspace, "GET", self._path, None, ModelRecord)
        return self._record

    def _patch(self, patch: ModelPatch) -> None:
        self._record = ask(self._workspace, "PATCH", self._path, patch, ModelRecord)

    def __repr__(self) -> str:
        return (
            f"Model(workspace={self._workspace!r}, name={self.name}, id={self.id}, "
            f"version={self.version}, tags={self.tags}, properties={self.properties})"
        )


_Models = list[Model]
_Datasets = list[AbstractDataset]
_Texts = list[str]


def register_from_run(run: "Run", name: str, path: str | None, details: Details) -> Model:
    """Register files of a run as a model; nothing is copied."""
    workspace = run.experiment.workspace
    draft = plan_draft(workspace, name, details)
    wanted = name if path is None else os.fspath(path)
    if wanted.strip("/."):  # else it is no path at all, which the server's answer says best
        wanted = str(files.artifact_name(wanted))
    draft = msgspec.structs.replace(draft, run=run.id, path=wanted)
    return Model._of(workspace, post_model(run._session, draft))
