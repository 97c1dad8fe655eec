"""The environment of an estimator: the framework's packages of its time, and what is added."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runyard.domain.errors import Unsupported
from runyard.planning.frameworks import plan_framework
from runyard.sdk.conda_dependencies import CondaDependencies
from runyard.sdk.environment import Environment
from runyard.sdk.environment_files import load_requirements
from runyard.sdk.environment_sections import ContainerRegistry
from runyard.sdk.exceptions import TrainingException, error_text, user_error

if TYPE_CHECKING:
    from runyard.sdk.estimators import Arguments


def plan_environment(
    arguments: "Arguments", folder: str, framework: str | None, version: str, *, mpi: bool
) -> Environment:
    """The environment that the arguments of an estimator describe."""
    definition = arguments.environment_definition
    if definition is not None:
        if not isinstance(definition, Environment):
            raise TrainingException(
                error_text(
                    f"environment_definition cannot be of type {type(definition).__name__}.",
                    fix="Pass an Environment.",
                )
            )
        return definition
    kind = "gpu" if arguments.use_gpu else "cpu"
    name = f"{framework.lower()}-{version}-{kind}" if framework else "estimator"
    environment = Environment(name)
    environment.environment_variables = {}
    _set_container(environment, arguments)
    if arguments.user_managed:
        environment.python.user_managed_dependencies = True
        return environment
    environment.python.conda_dependencies = _dependencies(
        arguments, folder, framework, version, mpi=mpi
    )
    return environment


def _set_container(environment: Environment, arguments: "Arguments") -> None:
    docker = environment.docker
    docker.enabled = bool(arguments.use_docker)
    docker.gpu_support = bool(arguments.use_gpu)
    docker.shm_size = arguments.shm_size
    image = arguments.custom_docker_image or arguments.custom_docker_base_image
    if image:
        docker.base_image = str(image)
    registry = arguments.image_registry_details
    if registry is not None:
        if not isinstance(registry, ContainerRegistry):
            raise user_error(
                f"image_registry_details cannot be of type {type(registry).__name__}.",
                fix="Pass a ContainerRegistry.",
            )
        docker.base_image_registry = registry


def _dependencies(
    arguments: "Arguments", folder: str, framework: str | None, version: str, *, mpi: bool
) -> CondaDependencies:
    # Of two spellings v1 takes the newer one.
    conda_file = arguments.conda_dependencies_file or arguments.conda_dependencies_file_path
    pip_file = arguments.pip_requirements_file or arguments.pip_requirements_file_path
    conda = _listed("conda_packages", arguments.conda_packages)
    pip = _listed("pip_packages", arguments.pip_packages)
    if pip_file:
        pip = [*load_requirements(_find(folder, pip_file)), *pip]
    if conda_file:  # as in v1 it says everything: no package of the framework is added
        made = CondaDependencies(_find(folder, conda_file))
    elif framework:
        made = _of_framework(framework, version, pip, gpu=bool(arguments.use_gpu), mpi=mpi)
    else:
        made = CondaDependencies()
    for line in conda:
        made.add_conda_package(line)
    options = [line for line in pip if line.startswith("-")]
    made._set_pip([*options, *made._pip()])
    for line in pip:
        if line not in options:
            made.add_pip_package(line)
    return made


def _of_framework(
    framework: str, version: str, pip: Sequence[str], *, gpu: bool, mpi: bool
) -> CondaDependencies:
    own = [line for line in pip if not line.startswith("-")]
    try:
        wanted = plan_framework(framework, version, gpu=gpu, mpi=mpi, own=own)
    except Unsupported as error:
        fix = f"{error.fix} For MPI without Horovod use the generic Estimator."
        raise TrainingException(error_text(error.what, why=error.why, fix=fix), error) from None
    structure = {
        "name": "project_environment",
        "channels": ["conda-forge"],
        "dependencies": [
            f"python={wanted.python}",
            {"pip": ["azureml-defaults", *wanted.packages]},
        ],
    }
    return CondaDependencies(_underlying_structure=structure)


def _listed(name: str, packages: Iterable[str] | None) -> list[str]:
    if isinstance(packages, str):
        raise user_error(
            f"{name} must be a list of packages, not the text '{packages}'.",
            fix=f"Write {name}=['{packages}'].",
        )
    return list(packages or ())


def _find(folder: str, file: str | os.PathLike[str]) -> Path:
    """The file as v1 looks for it, in the source folder; else as the path says."""
    inside = Path(folder).expanduser() / file
    return inside if inside.is_file() else Path(file)
