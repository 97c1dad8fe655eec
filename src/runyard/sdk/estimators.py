"""Estimators: v1's first way to describe a run. Each is a run configuration in other words."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from runyard.domain.errors import Unsupported
from runyard.planning.frameworks import FRAMEWORKS, check_framework_version
from runyard.sdk.arguments import argument_texts
from runyard.sdk.data_reference import DataReference
from runyard.sdk.dataset_consumption import DatasetConsumptionConfig
from runyard.sdk.distributed import MpiConfiguration, TensorflowConfiguration, at_least
from runyard.sdk.estimators_combinations import check_combinations, list_warnings
from runyard.sdk.estimators_distribution import ALL_BACKENDS, plan_distribution
from runyard.sdk.estimators_environment import plan_environment
from runyard.sdk.exceptions import TrainingException, error_text, user_error
from runyard.sdk.run_configuration import RunConfiguration, target_name
from runyard.sdk.run_data import resume_reference
from runyard.sdk.script_run_config import ScriptRunConfig

if TYPE_CHECKING:
    from runyard.sdk.conda_dependencies import CondaDependencies
    from runyard.sdk.environment import Environment

_Path = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What any estimator may be given, with v1's defaults."""

    compute_target: object = None
    vm_size: str | None = None
    vm_priority: str | None = None
    entry_script: str | None = None
    script_params: Mapping[str, object] | None = None
    node_count: int = 1
    process_count_per_node: int = 1
    worker_count: int = 1
    parameter_server_count: int = 1
    distributed_backend: str | None = None
    distributed_training: object = None
    use_gpu: bool = False
    use_docker: bool = True
    custom_docker_base_image: str | None = None
    custom_docker_image: str | None = None
    image_registry_details: object = None
    user_managed: bool = False
    conda_packages: Sequence[str] | None = None
    pip_packages: Sequence[str] | None = None
    conda_dependencies_file_path: _Path | None = None
    pip_requirements_file_path: _Path | None = None
    conda_dependencies_file: _Path | None = None
    pip_requirements_file: _Path | None = None
    environment_variables: Mapping[str, object] | None = None
    environment_definition: "Environment | None" = None
    inputs: Sequence[object] | None = None
    source_directory_data_store: object = None
    shm_size: str | None = None
    resume_from: object = None
    max_run_duration_seconds: int | None = None
    framework_version: str | None = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> "Arguments":
        """Those among a call's names and values; what v1 kept for itself is passed over."""
        known = {field.name for field in fields(Arguments)}
        return Arguments(**{name: value for name, value in given.items() if name in known})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What tells one estimator from another."""

    name: str
    module: str  # v1's, under whose name its warnings are logged
    framework: str | None = None  # a row of FRAMEWORKS; None: only what the user names
    backends: tuple[str, ...] = ALL_BACKENDS


class MMLBaseEstimator:
    """What all estimators have: a folder, and the settings of a run of a script in it."""

    def __init__(self, source_directory: _Path, *, kind: Kind, arguments: Arguments) -> None:
        self._source_directory = os.fspath(source_directory) if source_directory else "."
        self._resume_from = arguments.resume_from
        log = logging.getLogger(kind.module)
        log.warning(
            "'%s' estimator is deprecated. Use 'ScriptRunConfig' from "
            "'azureml.core.script_run_config' with an environment.",
            kind.name,
        )
        self._framework_version = _choose_version(kind, arguments, log)
        self._run_config = _plan(
            kind, self._source_directory, arguments, self._framework_version, log
        )

    @property
    def source_directory(self) -> str:
        """The folder that is taken along."""
        return self._source_directory

    @property
    def run_config(self) -> RunConfiguration:
        """The settings of the run; they may be changed before it is submitted."""
        return self._run_config

    @property
    def _estimator_config(self) -> RunConfiguration:
        """Private in v1, and used all the same."""
        return self._run_config

    @property
    def conda_dependencies(self) -> "CondaDependencies":
        """The packages of the run's environment."""
        return self._run_config.environment.python.conda_dependencies

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(source_directory={self._source_directory!r}, "
            f"entry_script={self._run_config.script!r})"
        )


def script_run_of(estimator: MMLBaseEstimator) -> ScriptRunConfig:
    """The configuration that does what the estimator describes."""
    if not estimator.run_config.script and not estimator.run_config.command:
        raise user_error(
            f"The {type(estimator).__name__} estimator has no script.",
            fix="Pass entry_script='train.py', a file in source_directory.",
        )
    return ScriptRunConfig(
        source_directory=estimator.source_directory,
        run_config=estimator.run_config,
        resume_from=estimator._resume_from,
    )


def script_arguments(script_params: Mapping[str, object] | None) -> list[object]:
    """The words of a command line for names with values; an empty value leaves the name alone."""
    if script_params is None:
        return []
    if not isinstance(script_params, Mapping):
        raise user_error(
            f"script_params={script_params!r} is not a dictionary.",
            fix="Write script_params={'--batch-size': 50, '--verbose': ''}",
        )
    words: list[object] = []
    for name, value in script_params.items():
        words.append(name)
        if value is not None and not (isinstance(value, str) and value == ""):
            words.append(value)
    argument_texts(words)  # refuse odd ones where they are written, not at submit
    return words


def _plan(
    kind: Kind, folder: str, arguments: Arguments, version: str, log: logging.Logger
) -> RunConfiguration:
    """The settings of the run that the arguments describe. What v1 warned of is logged."""
    check_combinations(arguments)
    for words in list_warnings(arguments, kind.framework):
        log.warning("%s", words)
    if arguments.resume_from is not None:
        resume_reference(arguments.resume_from)  # refuse a wrong one where it is written
    distributed = plan_distribution(arguments, kind.backends)
    config = RunConfiguration(arguments.entry_script, script_arguments(arguments.script_params))
    if distributed is not None:
        config.use(distributed)
    if isinstance(distributed, TensorflowConfiguration):
        # Workers and servers are laid over as many nodes as are asked for, not over one each.
        config.node_count = arguments.node_count
    config.target = target_name(arguments.compute_target)
    _set_size(config, arguments, log)
    if arguments.max_run_duration_seconds is not None:
        at_least("max_run_duration_seconds", arguments.max_run_duration_seconds, 1)
    config.max_run_duration_seconds = arguments.max_run_duration_seconds
    config.environment = plan_environment(
        arguments,
        folder,
        kind.framework,
        version,
        mpi=isinstance(distributed, MpiConfiguration),
    )
    if arguments.environment_definition is None:
        config.environment.environment_variables = _variables(arguments.environment_variables)
    _set_inputs(config, arguments.inputs)
    if arguments.source_directory_data_store is not None:
        store = arguments.source_directory_data_store
        config.source_directory_data_store = str(getattr(store, "name", store))
    return config


def _choose_version(kind: Kind, arguments: Arguments, log: logging.Logger) -> str:
    """The framework's version that is meant; empty for an estimator without a framework."""
    if kind.framework is None:
        return ""
    version = arguments.framework_version
    if version is None:
        default = FRAMEWORKS[kind.framework].default
        if not arguments.user_managed and arguments.environment_definition is None:
            log.warning("framework_version is not specified, defaulting to version %s.", default)
        return default
    if not isinstance(version, str):
        raise TrainingException(
            error_text(
                f"framework_version={version!r} is not a text.",
                why="As a number 1.10 is the same as 1.1.",
                fix=f"Write framework_version='{version}'.",
            )
        )
    try:
        check_framework_version(kind.framework, version)
    except Unsupported as error:
        raise TrainingException(str(error), error) from None
    return version


def _set_size(config: RunConfiguration, arguments: Arguments, log: logging.Logger) -> None:
    """Keep what v1 would have made a cluster of; there is none for a single run here."""
    if arguments.vm_priority not in (None, "dedicated", "lowpriority"):
        raise TrainingException(
            error_text(
                f"vm_priority={arguments.vm_priority!r} is not known.",
                why="It is 'dedicated' or 'lowpriority'.",
            )
        )
    config.amlcompute.vm_size = arguments.vm_size
    config.amlcompute.vm_priority = arguments.vm_priority
    if arguments.vm_size is not None and arguments.compute_target is None:
        log.warning(
            "vm_size=%r makes no cluster here: the run goes to '%s'. For a cluster of that size, "
            "create an AmlCompute and pass it as compute_target.",
            arguments.vm_size,
            config.target,
        )


def _variables(given: Mapping[str, object] | None) -> dict[str, str]:
    if not isinstance(given or {}, Mapping):
        raise user_error(
            f"environment_variables={given!r} is not a dictionary.",
            fix="Write environment_variables={'NAME': 'value'}",
        )
    return {str(name): str(value) for name, value in (given or {}).items()}


def _set_inputs(config: RunConfiguration, inputs: Sequence[object] | None) -> None:
    for one in inputs or ():
        match one:
            case DatasetConsumptionConfig():
                config.data[one.name] = one
            case DataReference():
                config.data_references[one.data_reference_name] = one.to_config()
            case _:
                raise TrainingException(
                    error_text(
                        f"An input cannot be of type {type(one).__name__}.",
                        why="It is a dataset with a name, or a place in a datastore.",
                        fix="Write inputs=[dataset.as_named_input('training')].",
                    )
                )


class Estimator(MMLBaseEstimator):
    """A script with the packages that it needs, for any framework."""

    def __init__(
        self,
        source_directory: _Path,
        *,
        compute_target: object = None,
        vm_size: str | None = None,
        vm_priority: str | None = None,
        entry_script: str | None = None,
        script_params: Mapping[str, object] | None = None,
        node_count: int = 1,
        process_count_per_node: int = 1,
        distributed_backend: str | None = None,
        distributed_training: object = None,
        use_gpu: bool = False,
        use_docker: bool = True,
        custom_docker_base_image: str | None = None,
        custom_docker_image: str | None = None,
        image_registry_details: object = None,
        user_managed: bool = False,
        conda_packages: Sequence[str] | None = None,
        pip_packages: Sequence[str] | None = None,
        conda_dependencies_file_path: _Path | None = None,
        pip_requirements_file_path: _Path | None = None,
        conda_dependencies_file: _Path | None = None,
        pip_requirements_file: _Path | None = None,
        environment_variables: Mapping[str, object] | None = None,
        environment_definition: "Environment | None" = None,
        inputs: Sequence[object] | None = None,
        source_directory_data_store: object = None,
        shm_size: str | None = None,
        resume_from: object = None,
        max_run_duration_seconds: int | None = None,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        arguments = Arguments.of(locals())
        super().__init__(source_directory, kind=_GENERIC, arguments=arguments)


_GENERIC = Kind(name="Estimator", module="azureml.train.estimator")
