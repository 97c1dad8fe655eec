"""Environment: what a run's script needs, as v1 code describes it."""

import builtins
import copy
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runyard.domain.environments import EnvironmentSpec
from runyard.sdk.conda_dependencies import (
    CONDA_FILE,
    CondaDependencies,
    default_python_version,
    dependencies_of_lock,
    dependencies_of_requirements,
    dependencies_of_text,
    package_name,
)
from runyard.sdk.element import closed
from runyard.sdk.environment_sections import (
    DEFAULT_CPU_IMAGE,
    DEFAULT_GPU_IMAGE,
    MPI_CPU_IMAGE,
    MPI_GPU_IMAGE,
    ContainerRegistry,
    DatabricksSection,
    DockerImagePlatform,
    DockerSection,
    PythonSection,
    RSection,
    SparkPackage,
    SparkSection,
)
from runyard.sdk.exceptions import user_error
from runyard.sdk.not_here import refuse

if TYPE_CHECKING:
    from runyard.sdk.environment_registry import DockerImageDetails, ImageBuildDetails
    from runyard.sdk.workspace import Workspace

__all__ = [
    "DEFAULT_CPU_IMAGE",
    "DEFAULT_GPU_IMAGE",
    "MPI_CPU_IMAGE",
    "MPI_GPU_IMAGE",
    "CondaDependencies",
    "ContainerRegistry",
    "DatabricksSection",
    "DockerImagePlatform",
    "DockerSection",
    "Environment",
    "PythonSection",
    "RSection",
    "SparkPackage",
    "SparkSection",
]

_JSON_FILE = "azureml_environment.json"
_DOCKERFILE = "BaseDockerfile"
_Path = str | os.PathLike[str]


@closed
class Environment:
    """A named set of Python packages, variables and container settings."""

    name: str
    version: str | None
    environment_variables: dict[str, str]
    python: PythonSection
    docker: DockerSection
    spark: SparkSection
    databricks: DatabricksSection
    r: RSection | None
    inferencing_stack_version: str | None
    asset_id: str | None

    def __init__(self, name: str, **kwargs: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"An environment's name must be a str, not {type(name).__name__}.")
        self.name = name
        self.version = None
        self.environment_variables = {"EXAMPLE_ENV_VAR": "EXAMPLE_VALUE"}
        self.python = PythonSection()
        self.docker = DockerSection()
        self.spark = SparkSection()
        self.databricks = DatabricksSection()
        self.r = None
        self.inferencing_stack_version = None
        self.asset_id = None
        for attribute, value in kwargs.items():
            setattr(self, attribute, value)

    @staticmethod
    def from_conda_specification(name: str, file_path: _Path) -> "Environment":
        """The environment that a conda YAML file describes."""
        environment = Environment(name)
        environment.python.conda_dependencies = _with_python(
            CondaDependencies(file_path), str(file_path)
        )
        return environment

    @staticmethod
    def from_pip_requirements(
        name: str, file_path: _Path, pip_version: str | None = None
    ) -> "Environment":
        """The environment that a pip requirements file describes."""
        environment = Environment(name)
        environment.python.conda_dependencies = dependencies_of_requirements(file_path, pip_version)
        return environment

    @staticmethod
    def from_docker_image(
        name: str,
        image: str,
        container_registry: ContainerRegistry | None = None,
        conda_specification: _Path | None = None,
        pip_requirements: _Path | None = None,
    ) -> "Environment":
        """An environment in that image; without a package file the image's own Python is used."""
        environment = _with_packages(name, conda_specification, pip_requirements)
        environment.docker.base_image = image
        if container_registry is not None:
            environment.docker.base_image_registry = container_registry
        return environment

    @staticmethod
    def from_dockerfile(
        name: str,
        dockerfile: _Path,
        conda_specification: _Path | None = None,
        pip_requirements: _Path | None = None,
    ) -> "Environment":
        """An environment in an image made from a Dockerfile: its path, or its text."""
        environment = _with_packages(name, conda_specification, pip_requirements)
        environment.docker.base_image = None
        environment.docker.base_dockerfile = _dockerfile_text(dockerfile)
        return environment

    @staticmethod
    def from_existing_conda_environment(name: str, conda_environment_name: str) -> "Environment":
        """The environment that conda has under that name on this machine."""
        import shutil
        import subprocess

        conda = shutil.which("conda")
        if conda is None:
            raise user_error(
                f"The conda environment '{conda_environment_name}' cannot be read.",
                why="There is no conda on PATH.",
                fix="Use Environment.from_conda_specification with a file that conda exported.",
            )
        done = subprocess.run(
            [conda, "env", "export", "--no-builds", "--name", conda_environment_name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise user_error(
                f"The conda environment '{conda_environment_name}' cannot be read.",
                why=done.stderr.strip() or f"conda ended with {done.returncode}.",
                fix="List the environments with: conda env list",
            )
        environment = Environment(name)
        environment.python.conda_dependencies = _with_python(
            dependencies_of_text(done.stdout, conda_environment_name), conda_environment_name
        )
        return environment

    @staticmethod
    def from_lock(name: str, file_path: _Path) -> "Environment":
        """The environment of a lock, version for version; `runyard env show --lock` writes one."""
        environment = Environment(name)
        environment.python.conda_dependencies = dependencies_of_lock(file_path)
        return environment

    @staticmethod
    def get(
        workspace: "Workspace", name: str, version: str | None = None, label: str | None = None
    ) -> "Environment":
        """A registered or curated environment: the newest, or that version, or that label."""
        from runyard.sdk.environment_registry import load_environment

        if version is not None and label is not None:
            raise user_error("Give a version or a label, not both.")
        return load_environment(workspace, name, version, label)

    @staticmethod
    def list(workspace: "Workspace") -> "dict[str, Environment]":
        """The newest version of every environment by name, the curated ones too."""
        from runyard.sdk.environment_registry import list_environments

        return list_environments(workspace)

    @staticmethod
    def label(
        workspace: "Workspace",
        environment_name: str,
        environment_version: str,
        labels: "builtins.list[str]",
    ) -> None:
        """Give a version labels to get it by; a label that another version has moves."""
        from runyard.sdk.environment_registry import set_labels

        set_labels(workspace, environment_name, str(environment_version), labels)

    @staticmethod
    def add_private_pip_wheel(workspace: object, file_path: _Path, exist_ok: bool = False) -> str:
        """Not in this release."""
        refuse(
            "Environment.add_private_pip_wheel()",
            "private wheels",
            "Name the wheel by its full path on the server's machine, or by its URL.",
        )

    def register(self, workspace: "Workspace") -> "Environment":
        """Keep it in the workspace; returns it with its version, the same if nothing changed."""
        from runyard.sdk.environment_registry import register

        return register(self, workspace)

    def build(
        self, workspace: "Workspace", image_build_compute: object = None
    ) -> "ImageBuildDetails":
        """Build it now, so that runs need not wait; follow it with `wait_for_completion`."""
        from runyard.sdk.environment_registry import ImageBuildDetails

        return ImageBuildDetails(self, workspace._session)

    def build_local(
        self, workspace: "Workspace", platform: object = None, **kwargs: object
    ) -> "ImageBuildDetails":
        """Build it and wait. The embedded server builds on this machine anyway."""
        details = self.build(workspace)
        details.wait_for_completion(show_output=True)
        return details

    def get_image_details(self, workspace: "Workspace") -> "DockerImageDetails":
        """Whether it is built, and as what."""
        from runyard.sdk.environment_registry import image_details

        return image_details(self, workspace)

    def clone(self, new_name: str) -> "Environment":
        """A copy under another name, without version."""
        if not new_name or not isinstance(new_name, str):
            raise user_error("A copy of an environment needs a name.")
        copied = copy.deepcopy(self)
        copied.name, copied.version, copied.asset_id = new_name, None, None
        return copied

    def save_to_directory(self, path: _Path, overwrite: bool = False) -> None:
        """Write the environment's files into a new folder."""
        folder = Path(path)
        if folder.exists() and not overwrite:
            raise FileExistsError(f"'{folder}' exists already; pass overwrite=True to replace it.")
        data = self.serialize_to_dict()
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(data, indent=4, sort_keys=True)
        (folder / _JSON_FILE).write_text(text + "\n", encoding="utf-8")
        self.python.conda_dependencies.save(folder / CONDA_FILE)
        if self.docker.base_dockerfile:
            (folder / _DOCKERFILE).write_text(self.docker.base_dockerfile, encoding="utf-8")
        else:
            (folder / _DOCKERFILE).unlink(missing_ok=True)

    @staticmethod
    def load_from_directory(path: _Path) -> "Environment":
        """The environment that `save_to_directory` wrote, with later edits of its files."""
        folder = Path(path)
        try:
            data = json.loads((folder / _JSON_FILE).read_text("utf-8"))
        except ValueError as error:
            raise user_error(f"'{folder / _JSON_FILE}' is not JSON.", why=str(error)) from None
        environment = Environment.deserialize_from_dict(data)
        if (folder / CONDA_FILE).is_file():
            environment.python.conda_dependencies = CondaDependencies(folder / CONDA_FILE)
        if (folder / _DOCKERFILE).is_file():
            environment.docker.base_image = None
            environment.docker.base_dockerfile = (folder / _DOCKERFILE).read_text("utf-8")
        return environment

    def to_spec(self) -> EnvironmentSpec:
        """What the platform is asked for; `UserErrorException` if settings contradict."""
        self._check()
        packages = self._packages()
        image = self.docker.base_image
        variables = {
            **packages.as_dict().get("variables", {}),
            **(self.environment_variables or {}),
        }
        managed = bool(self.python.user_managed_dependencies)
        return EnvironmentSpec(
            name=self.name,
            version=self.version,
            user_managed=managed,
            interpreter=self.python.interpreter_path or "python",
            python=None if managed else packages._wished_python(),
            channels=() if managed else tuple(packages.conda_channels),
            conda=() if managed else tuple(_beyond_python(packages)),
            pip=() if managed else (*packages.pip_options, *packages.pip_packages),
            variables={str(key): str(value) for key, value in variables.items()},
            docker=bool(self.docker.enabled),
            # The default image is v1's way to say that nobody chose one.
            base_image=None if image == DEFAULT_CPU_IMAGE else image,
            base_dockerfile=self.docker.base_dockerfile,
            docker_arguments=tuple(self.docker.arguments or ()),
            shm_size=self.docker.shm_size,
        )

    @staticmethod
    def from_spec(spec: EnvironmentSpec) -> "Environment":
        """The environment that `to_spec` was called on, as far as the platform was told."""
        environment = Environment(spec.name, version=spec.version)
        environment.environment_variables = dict(spec.variables)
        environment.python.user_managed_dependencies = spec.user_managed
        environment.python.interpreter_path = spec.interpreter
        dependencies: list[object] = [f"python={spec.python}"] if spec.python else []
        dependencies += [*spec.conda, *([{"pip": [*spec.pip]}] if spec.pip else [])]
        if not spec.user_managed:
            environment.python.conda_dependencies = CondaDependencies(
                _underlying_structure={"channels": [*spec.channels], "dependencies": dependencies}
            )
        environment.docker.enabled = spec.docker
        environment.docker.base_dockerfile = spec.base_dockerfile
        if spec.base_image or spec.base_dockerfile:
            environment.docker.base_image = spec.base_image
        return environment

    def serialize_to_dict(self) -> dict[str, Any]:
        """The environment in v1's JSON layout. A registry's password stays out of it."""
        self._check()
        registry = self.docker.base_image_registry
        packages = self._packages().as_dict()
        return {
            "assetId": self.asset_id,
            "databricks": _camel_dict(self.databricks),
            "docker": {
                **_camel_dict(self.docker),
                "baseImageRegistry": {**_camel_dict(registry), "password": None},
                "platform": _camel_dict(self.docker.platform),
            },
            "environmentVariables": dict(self.environment_variables or {}),
            "inferencingStackVersion": self.inferencing_stack_version,
            "name": self.name,
            "python": {
                "baseCondaEnvironment": self.python.base_conda_environment,
                "condaDependencies": packages,
                "condaDependenciesFile": self.python.conda_dependencies_file,
                "interpreterPath": self.python.interpreter_path,
                "userManagedDependencies": self.python.user_managed_dependencies,
            },
            "r": None if self.r is None else _camel_dict(self.r),
            "spark": {
                **_camel_dict(self.spark),
                "packages": [_camel_dict(package) for package in self.spark.packages],
            },
            "version": self.version,
        }

    @staticmethod
    def deserialize_from_dict(data: Mapping[str, Any]) -> "Environment":
        """The environment that v1's JSON layout describes; unknown keys are passed over."""
        if not isinstance(data, Mapping):
            raise user_error("An environment's JSON must be an object.")
        environment = Environment(str(data.get("name") or "project"))
        _fill(environment, data, skip=("python", "docker", "spark", "databricks", "r"))
        python = data.get("python") or {}
        _fill(environment.python, python, skip=("condaDependencies",))
        if isinstance(python.get("condaDependencies"), dict):
            environment.python.conda_dependencies = CondaDependencies(
                _underlying_structure=python["condaDependencies"]
            )
        docker = data.get("docker") or {}
        _fill(environment.docker, docker, skip=("baseImageRegistry", "platform"))
        if docker.get("baseDockerfile"):
            environment.docker.base_image = docker.get("baseImage")
        _fill(environment.docker.base_image_registry, docker.get("baseImageRegistry") or {})
        _fill(environment.docker.platform, docker.get("platform") or {})
        spark = data.get("spark") or {}
        _fill(environment.spark, spark, skip=("packages",))
        for package in spark.get("packages") or []:
            environment.spark.packages.append(SparkPackage(**package))
        _fill(environment.databricks, data.get("databricks") or {})
        if data.get("r"):
            environment.r = RSection()
            _fill(environment.r, data["r"])
        return environment

    def __repr__(self) -> str:
        return json.dumps(self.serialize_to_dict(), indent=4, sort_keys=True)

    __str__ = __repr__

    def _packages(self) -> CondaDependencies:
        file = self.python.conda_dependencies_file
        if file and self.python._conda_dependencies is None:
            return _with_python(CondaDependencies(file), file)
        return self.python.conda_dependencies

    def _check(self) -> None:
        docker = self.docker
        chosen = [
            name
            for name in ("base_image", "base_dockerfile", "build_context")
            if getattr(docker, name)
        ]
        if len(chosen) > 1:
            raise user_error(
                f"Environment '{self.name}' sets docker.{' and docker.'.join(chosen)}.",
                why="Only one of base_image, base_dockerfile and build_context can be used.",
                fix=f"Set the other to None: env.docker.{chosen[0]} = None",
            )


def _with_packages(
    name: str, conda_specification: _Path | None, pip_requirements: _Path | None
) -> Environment:
    if conda_specification and pip_requirements:
        raise user_error("Give conda_specification or pip_requirements, not both.")
    if conda_specification:
        return Environment.from_conda_specification(name, conda_specification)
    if pip_requirements:
        return Environment.from_pip_requirements(name, pip_requirements)
    environment = Environment(name)
    environment.python.user_managed_dependencies = True
    return environment


def _with_python(packages: CondaDependencies, source: str) -> CondaDependencies:
    if not any(package_name(line) == "python" for line in packages.conda_packages):
        version = default_python_version()
        warnings.warn(
            f"'{source}' names no Python version; python={version} is added, or an older one "
            "if the packages need it.",
            stacklevel=3,
        )
        packages._add_default_python()
    return packages


def _beyond_python(packages: CondaDependencies) -> list[str]:
    own = ("python", "pip")
    return [line for line in packages.conda_packages if package_name(line) not in own]


def _dockerfile_text(dockerfile: _Path) -> str:
    text = os.fspath(dockerfile)
    if "\n" in text or text.lstrip().upper().startswith("FROM "):
        return text
    try:
        return Path(text).read_text("utf-8")
    except OSError as error:
        raise user_error(
            f"The Dockerfile '{text}' cannot be read.",
            why=f"{error.strerror}.",
            fix="Give the path of a Dockerfile, or its text.",
        ) from None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _camel_dict(section: object) -> dict[str, Any]:
    return {_camel(name): copy.deepcopy(value) for name, value in vars(section).items()}


def _fill(section: object, data: Mapping[str, Any], skip: tuple[str, ...] = ()) -> None:
    """Set the attributes that `data` has values for."""
    for name in list(vars(section)):
        key = _camel(name)
        if not name.startswith("_") and key not in skip and data.get(key) is not None:
            setattr(section, name, copy.deepcopy(data[key]))
