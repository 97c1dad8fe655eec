"""`InferenceConfig`: the entry script of a service, what lies around it, and its environment."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.sdk.environment import Environment
from runyard.sdk.environment_sections import ContainerRegistry
from runyard.sdk.exceptions import WebserviceException, error_text
from runyard.sdk.run_configuration import RunConfiguration
from runyard.sdk.snapshot import Snapshot, take_file_snapshot, take_snapshot
from runyard.sdk.submission import plan_environment

StrPath = str | os.PathLike[str]

RUNTIMES = ("python", "spark-py", "python-slim", "spark-slim-py")
# v1's own images bring conda and nothing that a script sees; an environment is built without them.
_V1_IMAGES = "mcr.microsoft.com/azureml/"


class InferenceConfig:
    """How models are served by a script with `init()` and `run(data)`.

    With `source_directory` that folder goes along and the script's path is relative to it; without,
    the script goes alone. Without an environment the one that the model was trained in is used.
    """

    def __init__(
        self,
        entry_script: StrPath,
        runtime: str | None = None,
        conda_file: StrPath | None = None,
        extra_docker_file_steps: StrPath | None = None,
        source_directory: StrPath | None = None,
        enable_gpu: bool | None = None,
        description: str | None = None,
        base_image: str | None = None,
        base_image_registry: ContainerRegistry | None = None,
        cuda_version: str | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.entry_script = os.fspath(entry_script) if entry_script else ""
        self.runtime = runtime
        self.conda_file = None if conda_file is None else os.fspath(conda_file)
        self.extra_docker_file_steps = (
            None if extra_docker_file_steps is None else os.fspath(extra_docker_file_steps)
        )
        self.source_directory = None if source_directory is None else os.fspath(source_directory)
        self.enable_gpu = enable_gpu
        self.description = description
        self.base_image = base_image
        self.base_image_registry = base_image_registry
        self.cuda_version = cuda_version
        self.environment = environment
        self.validate_configuration()

    def validate_configuration(self) -> None:
        """`WebserviceException` for what cannot be served as it stands."""
        if not self.entry_script:
            raise _wrong("An InferenceConfig needs an entry script.", fix="entry_script='score.py'")
        if self.runtime is not None and self.runtime.lower() not in RUNTIMES:
            raise _wrong(
                f"runtime={self.runtime!r} is none.", why=f"There are: {', '.join(RUNTIMES)}."
            )
        if self.runtime is not None and "spark" in self.runtime.lower():
            raise _wrong(
                f"runtime='{self.runtime}' is not supported.",
                why="Runyard does not run Spark.",
                fix="Use runtime='python'.",
            )
        if self.environment is not None and not isinstance(self.environment, Environment):
            raise _wrong(
                f"environment cannot be of type {type(self.environment).__name__}.",
                fix="Pass an Environment, e.g. Environment.get(ws, 'my-env').",
            )
        place_script(self)
        for name in ("conda_file", "extra_docker_file_steps"):
            if getattr(self, name) is not None:
                _find_beside(self, name)

    def build_create_payload(self, *args: object, **kwargs: object) -> dict[str, object]:
        """The configuration as a plain dictionary."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return (
            f"InferenceConfig(entry_script={self.entry_script}, runtime={self.runtime}, "
            f"conda_file={self.conda_file}, "
            f"extra_docker_file_steps={self.extra_docker_file_steps}, "
            f"source_directory={self.source_directory}, enable_gpu={self.enable_gpu}, "
            f"base_image={self.base_image}, base_image_registry={self.base_image_registry})"
        )


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a service, ready to be sent."""

    snapshot: Snapshot
    entry_script: str  # relative to the root of the snapshot
    name: str = ""  # the source folder's; empty: the script goes alone


def place_script(config: InferenceConfig) -> tuple[Path | None, Path]:
    """The source folder, or None, and the script's file; an error if either is not there."""
    script = Path(config.entry_script).expanduser()
    if config.source_directory is None:
        file = Path.cwd() / script
        if not file.is_file():
            raise _wrong(
                f"The entry script '{config.entry_script}' is not there.",
                why=f"It was looked for in {Path.cwd()}.",
                fix="Check its path, or give source_directory.",
            )
        return None, file
    folder = (Path.cwd() / Path(config.source_directory).expanduser()).resolve()
    if not folder.is_dir():
        raise _wrong(f"The source_directory '{config.source_directory}' is not a folder.")
    # As v1: relative to the folder. A path from here into the folder is meant as well.
    for file in (folder / script, (Path.cwd() / script).resolve()):
        if file.is_file() and file.resolve().is_relative_to(folder):
            return folder, file.resolve()
    raise _wrong(
        f"The entry script '{config.entry_script}' is not in '{config.source_directory}'.",
        why="With source_directory its path is relative to that folder.",
    )


def take_source(
    config: InferenceConfig, home: Path, beside: Mapping[str, Path] | None = None
) -> Source:
    """The code around an entry script; `beside` are further files and folders by their names."""
    folder, script = place_script(config)
    if folder is None:
        snapshot = take_file_snapshot({script.name: script, **(beside or {})}, home)
        return Source(snapshot=snapshot, entry_script=script.name)
    snapshot = take_snapshot(folder, home)
    path = script.relative_to(folder).as_posix()
    if all(entry.path != path for entry in snapshot.manifest):
        raise _wrong(
            f"The entry script '{path}' is left out of the source folder.",
            why="Its .amlignore or .gitignore names it.",
            fix=f"Add the line '!{path}' to a file .amlignore in that folder.",
        )
    return Source(snapshot=snapshot, entry_script=path, name=folder.name)


def plan_service_environment(config: InferenceConfig, url: str) -> EnvironmentSpec | None:
    """The environment that the configuration asks for; None: as the models' runs say."""
    environment = config.environment
    old_style = (config.conda_file, config.base_image, config.extra_docker_file_steps)
    if environment is None and any(old_style):
        environment = _old_style(config)
    elif environment is not None and any(old_style):
        warnings.warn(
            "The InferenceConfig has an environment, so its conda_file, base_image and "
            "extra_docker_file_steps are left aside.",
            stacklevel=4,
        )
    if environment is None:
        return None
    settings = RunConfiguration()
    settings.environment = environment
    spec, _ = plan_environment(settings, url)
    image = spec.base_image or ""
    own_image = bool(spec.base_dockerfile) or bool(image and not image.startswith(_V1_IMAGES))
    if own_image and not spec.user_managed:
        warnings.warn(
            f"The service gets the packages of environment '{spec.name}', but not its image: "
            "services run outside of containers.",
            stacklevel=4,
        )
    return spec


def _old_style(config: InferenceConfig) -> Environment:
    name = "inference"
    if config.conda_file is not None:
        file = _find_beside(config, "conda_file")
        environment = Environment.from_conda_specification(name, file)
    else:
        environment = Environment(name)
        if config.base_image:  # the image's own Python has what is needed
            environment.python.user_managed_dependencies = True
    if config.base_image:
        environment.docker.base_image = config.base_image
        if config.base_image_registry is not None:
            environment.docker.base_image_registry = config.base_image_registry
    if config.extra_docker_file_steps is not None:
        warnings.warn(
            "extra_docker_file_steps have no effect: services run outside of containers.",
            stacklevel=5,
        )
    return environment


def _find_beside(config: InferenceConfig, name: str) -> Path:
    """A file that an argument names: in the source folder, or from here."""
    given = Path(getattr(config, name)).expanduser()
    folders = [Path(config.source_directory).expanduser()] if config.source_directory else []
    for folder in (*folders, Path.cwd()):
        if (folder / given).is_file():
            return folder / given
    raise _wrong(
        f"{name}='{given}' is not there.",
        why=f"It was looked for in {', '.join(str(one) for one in (*folders, Path.cwd()))}.",
    )


def _wrong(what: str, *, why: str = "", fix: str = "") -> WebserviceException:
    return WebserviceException(error_text(what, why=why, fix=fix))
