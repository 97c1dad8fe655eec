"""The estimators with a framework: TensorFlow, PyTorch, Chainer, scikit-learn.

Their parameters are v1's, one by one, so that editors and `help` show them.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from runyard.planning.frameworks import FRAMEWORKS, supported_versions
from runyard.sdk.estimators import Arguments, Kind, MMLBaseEstimator

if TYPE_CHECKING:
    from runyard.sdk.environment import Environment

_Path = str | os.PathLike[str]
_DNN = "azureml.train.dnn"

_TENSORFLOW = Kind(name="TensorFlow", module=_DNN, framework="TensorFlow", backends=("mpi", "ps"))
_PYTORCH = Kind(name="PyTorch", module=_DNN, framework="PyTorch", backends=("mpi", "gloo", "nccl"))
_CHAINER = Kind(name="Chainer", module=_DNN, framework="Chainer", backends=("mpi",))
_SKLEARN = Kind(
    name="SKLearn", module="azureml.train.sklearn", framework="Scikit-learn", backends=()
)


class FrameworkEstimator(MMLBaseEstimator):
    """An estimator that installs a framework, in a version that it knows."""

    FRAMEWORK_NAME: ClassVar[str]
    DEFAULT_VERSION: ClassVar[str]

    @property
    def framework_version(self) -> str:
        """The framework's version that was asked for, or the default."""
        return self._framework_version

    @classmethod
    def get_supported_versions(cls) -> list[str]:
        """The values that framework_version may have."""
        return supported_versions(cls.FRAMEWORK_NAME)


class TensorFlow(FrameworkEstimator):
    """A script with TensorFlow; with MPI, Horovod is there, too."""

    FRAMEWORK_NAME = "TensorFlow"
    DEFAULT_VERSION = FRAMEWORKS["TensorFlow"].default

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
        worker_count: int = 1,
        parameter_server_count: int = 1,
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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        arguments = Arguments.of(locals())
        super().__init__(source_directory, kind=_TENSORFLOW, arguments=arguments)


class PyTorch(FrameworkEstimator):
    """A script with PyTorch; with MPI, Horovod is there, too."""

    FRAMEWORK_NAME = "PyTorch"
    DEFAULT_VERSION = FRAMEWORKS["PyTorch"].default

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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        arguments = Arguments.of(locals())
        super().__init__(source_directory, kind=_PYTORCH, arguments=arguments)


class Chainer(FrameworkEstimator):
    """A script with Chainer; with MPI, ChainerMN can be used."""

    FRAMEWORK_NAME = "Chainer"
    DEFAULT_VERSION = FRAMEWORKS["Chainer"].default

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
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        arguments = Arguments.of(locals())
        super().__init__(source_directory, kind=_CHAINER, arguments=arguments)


class SKLearn(FrameworkEstimator):
    """A script with scikit-learn, in one process."""

    FRAMEWORK_NAME = "Scikit-learn"
    DEFAULT_VERSION = FRAMEWORKS["Scikit-learn"].default

    def __init__(
        self,
        source_directory: _Path,
        *,
        compute_target: object = None,
        vm_size: str | None = None,
        vm_priority: str | None = None,
        entry_script: str | None = None,
        script_params: Mapping[str, object] | None = None,
        use_docker: bool = True,
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
        shm_size: str | None = None,
        resume_from: object = None,
        max_run_duration_seconds: int | None = None,
        framework_version: str | None = None,
        _enable_optimized_mode: bool = False,
        _disable_validation: bool = True,
        _show_lint_warnings: bool = False,
        _show_package_warnings: bool = False,
    ) -> None:
        arguments = Arguments.of(locals())
        super().__init__(source_directory, kind=_SKLEARN, arguments=arguments)
