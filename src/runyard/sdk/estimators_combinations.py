"""Which arguments of an estimator go together, and which ones v1 had already given up. Pure."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runyard.sdk.exceptions import TrainingException, error_text, user_error

if TYPE_CHECKING:
    from runyard.sdk.estimators import Arguments

_IMAGES = ("custom_docker_image", "custom_docker_base_image")
_PACKAGES = (
    "conda_packages",
    "pip_packages",
    "conda_dependencies_file",
    "conda_dependencies_file_path",
    "pip_requirements_file",
    "pip_requirements_file_path",
)
_ENVIRONMENT = (
    *_PACKAGES,
    *_IMAGES,
    "image_registry_details",
    "use_gpu",
    "user_managed",
    "shm_size",
    "environment_variables",
)

# Of two spellings v1 takes the newer one and says so.
_RENAMED = {
    "conda_dependencies_file_path": "conda_dependencies_file",
    "pip_requirements_file_path": "pip_requirements_file",
    "custom_docker_base_image": "custom_docker_image",
    "distributed_backend": "distributed_training",
}
_COUNTS = ("process_count_per_node", "worker_count", "parameter_server_count")


def check_combinations(arguments: "Arguments") -> None:
    """v1's error if two arguments say different things about one matter."""
    beside = _given(arguments, _ENVIRONMENT)
    if arguments.environment_definition is not None and beside:
        raise TrainingException(
            error_text(
                f"environment_definition and {', '.join(beside)} were given.",
                why="The definition says everything about the environment.",
                fix=f"Leave {', '.join(beside)} out, and set it on the definition.",
            )
        )
    packages = _given(arguments, _PACKAGES)
    if arguments.user_managed and packages:
        raise user_error(
            f"user_managed=True and {', '.join(packages)} were given.",
            why="In an environment of your own nothing is installed.",
            fix=f"Leave {', '.join(packages)} out, or user_managed.",
        )
    images = _given(arguments, _IMAGES)
    if images and not arguments.use_docker:
        raise TrainingException(
            error_text(
                f"use_docker=False and {images[0]} were given.",
                why="An image is of no use without a container.",
                fix="Leave one of them out.",
            )
        )
    if len({getattr(arguments, name) for name in images}) > 1:
        raise TrainingException(
            error_text(
                "Two images were given: "
                f"{' and '.join(str(getattr(arguments, name)) for name in images)}.",
                why="custom_docker_base_image is the older name of custom_docker_image.",
                fix="Leave custom_docker_base_image out.",
            )
        )


def list_warnings(arguments: "Arguments", framework: str | None) -> Iterator[str]:
    """What v1 warns of: arguments it was about to give up, or that do nothing here."""
    for name in _given(arguments, tuple(_RENAMED)):
        newer = _RENAMED[name]
        if getattr(arguments, newer):
            yield f"'{name}' and '{newer}' are given: '{newer}' counts, '{name}' is deprecated."
        else:
            yield f"'{name}' parameter is deprecated. Use '{newer}' instead."
    for name in _COUNTS:
        if getattr(arguments, name) == 1:
            continue
        yield f"'{name}' parameter is deprecated. Set it on the object in 'distributed_training'."
        if name != _COUNTS[0] and str(arguments.distributed_backend).lower() != "ps":
            yield f"'{name}' is used only with distributed_backend='ps'."
    if not arguments.use_docker:
        yield "'use_docker' parameter is deprecated. Use 'environment_definition' instead."
    names = ("environment_definition", "conda_dependencies_file", "conda_dependencies_file_path")
    whole = _given(arguments, names)
    if framework and whole:
        yield f"{whole[0]} is given, so no package of {framework} is added to it."


def _given(arguments: "Arguments", names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(arguments, name)]
