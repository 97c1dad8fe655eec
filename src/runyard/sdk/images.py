"""v1's images of models (2019): a script, its environment and models, kept until they are deployed.

Nothing is built here: a service builds its environment itself.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runyard.sdk.deployment import Code, checked_models
from runyard.sdk.environment_sections import ContainerRegistry
from runyard.sdk.exceptions import WebserviceException, error_text
from runyard.sdk.image_files import ImageNote, StoredImage, keep_image, stored_images
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.model_drafts import has_labels, label_filters, tag_texts
from runyard.sdk.not_here import refuse

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace


class ImageConfig:
    """The base of what `Image.create` takes."""


class ContainerImageConfig(ImageConfig):
    """An entry script and what it needs."""

    def __init__(
        self,
        execution_script: str,
        runtime: str,
        conda_file: str | None = None,
        docker_file: str | None = None,
        schema_file: str | None = None,
        dependencies: Sequence[str] | None = None,
        enable_gpu: bool | None = None,
        tags: Mapping[str, object] | None = None,
        properties: Mapping[str, object] | None = None,
        description: str | None = None,
        base_image: str | None = None,
        base_image_registry: ContainerRegistry | None = None,
        cuda_version: str | None = None,
    ) -> None:
        if os.path.dirname(os.fspath(execution_script)):
            raise WebserviceException(
                error_text(
                    f"The execution script '{execution_script}' is not in this folder.",
                    why="v1 takes scripts of the working directory alone.",
                    fix="Change into its folder, or use InferenceConfig and Model.deploy.",
                )
            )
        self.execution_script = execution_script
        self.dependencies = list(dependencies or ())
        self.schema_file = schema_file
        self.tags = dict(tags or {})
        self.properties = dict(properties or {})
        self.inference_config = InferenceConfig(
            execution_script,
            runtime=runtime,
            conda_file=conda_file,
            extra_docker_file_steps=docker_file,
            enable_gpu=enable_gpu,
            description=description,
            base_image=base_image,
            base_image_registry=base_image_registry,
            cuda_version=cuda_version,
        )
        for name in (*self.dependencies, *([schema_file] if schema_file else [])):
            if not Path(name).exists():
                raise WebserviceException(
                    error_text(f"The dependency '{name}' is not there.", why=f"In {Path.cwd()}.")
                )

    @staticmethod
    def _stored(stored: StoredImage) -> "ContainerImageConfig":
        """The configuration of an image that an earlier program made."""
        note = stored.note
        config = object.__new__(ContainerImageConfig)
        config.execution_script, config.schema_file = note.script, None
        config.dependencies = []  # they lie beside the script
        config.tags, config.properties = dict(note.tags), dict(note.properties)
        config.inference_config = InferenceConfig(
            note.script,
            runtime=note.runtime,
            conda_file=note.conda_file,
            source_directory=stored.folder,
            enable_gpu=note.enable_gpu,
            description=note.description,
            base_image=note.base_image,
        )
        return config

    def beside(self) -> dict[str, Path]:
        """The files and folders that go along with the script."""
        names = [*self.dependencies, *([self.schema_file] if self.schema_file else [])]
        places = (Path(name).absolute() for name in names)
        return {place.name: place for place in places}

    def files(self) -> dict[str, Path]:
        """All that the image is made of, by the names it gets there."""
        names = [self.execution_script]
        if self.inference_config.conda_file is not None:
            names.append(self.inference_config.conda_file)
        return {Path(name).name: Path(name).absolute() for name in names} | self.beside()


class Image:
    """A script with models, by a name and a version."""

    def __init__(
        self,
        workspace: "Workspace",
        name: str | None = None,
        id: str | None = None,
        tags: object | None = None,
        properties: object | None = None,
        version: int | None = None,
    ) -> None:
        wanted, _, number = (id or "").partition(":")
        wanted, version = name or wanted, version or (int(number) if number.isdigit() else None)
        found = [
            one
            for one in _kept(workspace, wanted)
            if str(version or one.note.version) == str(one.note.version)
        ]
        if not found:
            raise WebserviceException(
                error_text(
                    f"ImageNotFound: there is no image '{wanted}'.",
                    fix="Make it anew, or deploy its models: Model.deploy(ws, name, models, ...)",
                )
            )
        self.__dict__.update(_of(workspace, found[-1]).__dict__)

    workspace: "Workspace"
    name: str
    version: int
    created_time: datetime
    image_config: ContainerImageConfig
    _models: "list[Model] | None" = None
    _model_ids: tuple[str, ...] = ()

    @property
    def models(self) -> "_Models":
        """The models that it is made of."""
        if self._models is None:
            self._models = [Model(self.workspace, id=id) for id in self._model_ids]
        return self._models

    @staticmethod
    def create(
        workspace: "Workspace", name: str, models: Sequence[Model], image_config: ImageConfig
    ) -> "ContainerImage":
        """Put models and a script together; nothing is built yet."""
        if not isinstance(image_config, ContainerImageConfig):
            raise WebserviceException(
                error_text(
                    f"image_config cannot be of type {type(image_config).__name__}.",
                    fix="Use ContainerImage.image_configuration(...)",
                )
            )
        checked_models(models, has_code=True)
        image = object.__new__(ContainerImage)
        image.workspace, image.name = workspace, name
        versions = [one.note.version for one in stored_images(workspace, name)]
        image.version = max(versions, default=0) + 1
        image.created_time = datetime.now(UTC)
        image.image_config, image._models = image_config, list(models)
        keep_image(workspace, image._note(), image_config.files())
        sys.stdout.write("Creating image\n")  # as v1 did
        return image

    @staticmethod
    def list(
        workspace: "Workspace",
        image_name: str | None = None,
        model_name: str | None = None,
        model_id: str | None = None,
        tags: Sequence[object] | None = None,
        properties: Sequence[object] | None = None,
        run_id: str | None = None,
        dataset_id: str | None = None,
    ) -> "_Images":
        """The images of a workspace that match."""
        return [
            _of(workspace, one)
            for one in _kept(workspace, image_name)
            if has_labels(one.note.tags, label_filters("tags", tags))
            and has_labels(one.note.properties, label_filters("properties", properties))
            and (model_id is None or model_id in one.note.models)
            and (model_name is None or any(_name(id) == model_name for id in one.note.models))
        ]

    def _note(self, *, is_deleted: bool = False) -> ImageNote:
        config = self.image_config
        settings = config.inference_config
        return ImageNote(
            name=self.name,
            version=self.version,
            created=self.created_time,
            models=tuple(model.id for model in self.models),
            script=Path(config.execution_script).name,
            conda_file=Path(settings.conda_file).name if settings.conda_file else None,
            runtime=settings.runtime or "python",
            enable_gpu=settings.enable_gpu,
            base_image=settings.base_image,
            description=settings.description,
            tags=tag_texts(config.tags),
            properties=tag_texts(config.properties),
            is_deleted=is_deleted,
        )

    def wait_for_creation(self, show_output: bool = False) -> None:
        """Return at once: a service builds its environment itself."""
        if show_output:
            sys.stdout.write("Running\nSucceeded\n")
        sys.stdout.write(
            f'Image creation operation finished for image {self.id}, operation "Succeeded"\n'
        )

    def update_creation_state(self) -> None:
        """Nothing changes about an image."""

    def delete(self) -> None:
        """Forget the image."""
        keep_image(self.workspace, self._note(is_deleted=True), {})

    @property
    def id(self) -> str:
        """NAME:VERSION."""
        return f"{self.name}:{self.version}"

    @property
    def creation_state(self) -> str:
        """Succeeded: there is nothing to wait for."""
        return "Succeeded"

    @property
    def tags(self) -> "_Labels":
        """Its tags."""
        return dict(self.image_config.tags)

    @property
    def properties(self) -> "_Labels":
        """Its properties."""
        return dict(self.image_config.properties)

    @property
    def description(self) -> str | None:
        """What was said of it."""
        return self.image_config.inference_config.description

    @property
    def image_location(self) -> None:
        """None: it is in no registry."""
        return

    @property
    def image_build_log_uri(self) -> None:
        """None: what a service's build says is in `service.get_logs()`."""
        return

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name}, id={self.id}, tags={self.tags})"


class ContainerImage(Image):
    """An image with a Python script."""

    image_configuration = ContainerImageConfig  # called, it gives one

    def run(self, input_data: object) -> object:
        """Not here: deploy the image as a local service."""
        refuse(
            "image.run()",
            "containers of images",
            "Deploy it: Webservice.deploy_from_image(ws, name, image, "
            "LocalWebservice.deploy_configuration())",
        )


def _kept(workspace: "Workspace", name: str | None = None) -> "list[StoredImage]":
    return [one for one in stored_images(workspace, name) if not one.note.is_deleted]


def _of(workspace: "Workspace", stored: StoredImage) -> ContainerImage:
    """The handle of an image that was kept."""
    image = object.__new__(ContainerImage)
    image.workspace, image.name = workspace, stored.note.name
    image.version, image.created_time = stored.note.version, stored.note.created
    image.image_config = ContainerImageConfig._stored(stored)
    image._model_ids = stored.note.models
    return image


def _name(model_id: str) -> str:
    return model_id.rpartition(":")[0]


_Images = list[Image]
_Models = list[Model]
_Labels = dict[str, object]


def code_of(source: object) -> Code:
    """The script of an image, or of an image configuration."""
    config = source.image_config if isinstance(source, Image) else source
    if not isinstance(config, ContainerImageConfig):
        raise WebserviceException(
            error_text(
                f"{type(source).__name__} has no script to deploy.",
                fix="Use ContainerImage.image_configuration(execution_script=…, runtime='python')",
            )
        )
    return Code(config=config.inference_config, beside=config.beside())
