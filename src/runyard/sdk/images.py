"""v1's images of models (2019): a script, its environment and models, kept until they are deployed.

Nothing is built here: a service builds its environment itself. Images are known to the process
that made them.
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
from runyard.sdk.inference_config import InferenceConfig
from runyard.sdk.model import Model
from runyard.sdk.not_here import refuse

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace

_made: "dict[tuple[str, str], list[Image]]" = {}  # by workspace and name; the last is the newest


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

    def beside(self) -> dict[str, Path]:
        """The files and folders that go along with the script."""
        names = [*self.dependencies, *([self.schema_file] if self.schema_file else [])]
        places = (Path(name).absolute() for name in names)
        return {place.name: place for place in places}


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
        known = _made.get((workspace.name, wanted), [])
        found = [image for image in known if version in (None, image.version)]
        if not found:
            raise WebserviceException(
                error_text(
                    f"ImageNotFound: there is no image '{wanted}'.",
                    why="Images are known to the process that made them, and to no other.",
                    fix="Make it anew, or deploy its models: Model.deploy(ws, name, models, ...)",
                )
            )
        self.__dict__.update(found[-1].__dict__)

    workspace: "Workspace"
    name: str
    version: int
    created_time: datetime
    image_config: ContainerImageConfig
    models: list[Model]

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
        known = _made.setdefault((workspace.name, name), [])
        image = object.__new__(ContainerImage)
        image.workspace, image.name, image.version = workspace, name, len(known) + 1
        image.created_time = datetime.now(UTC)
        image.image_config, image.models = image_config, list(models)
        known.append(image)
        sys.stdout.write("Creating image\n")  # as v1 did
        return image

    @staticmethod
    def list(workspace: "Workspace", image_name: str | None = None, **filters: object) -> "_Images":
        """The images that this process made."""
        return [
            image
            for (yard, name), images in _made.items()
            for image in images
            if yard == workspace.name and image_name in (None, name)
        ]

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
        known = _made.get((self.workspace.name, self.name), [])
        _made[self.workspace.name, self.name] = [one for one in known if one.id != self.id]

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


_Images = list[Image]
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
