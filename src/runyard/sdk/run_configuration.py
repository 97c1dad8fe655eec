"""`RunConfiguration`: all settings of a run, in v1's sections."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runyard.domain.runs import LOCAL, LauncherSpec
from runyard.sdk.distributed import (
    BACKENDS,
    DistributedConfiguration,
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
    at_least,
    check_process_count,
)
from runyard.sdk.element import closed
from runyard.sdk.exceptions import RunConfigurationException, error_text, user_error
from runyard.sdk.ignored_sections import (
    AmlComputeConfiguration,
    HdiConfiguration,
    KubernetesComputeConfiguration,
    ParallelTaskConfiguration,
    SparkConfiguration,
)

if TYPE_CHECKING:
    from runyard.sdk.conda_dependencies import CondaDependencies
    from runyard.sdk.environment import Environment


def target_name(target: object | None) -> str:
    """The name of a compute target given as an object, a name, or not at all."""
    if target is None:
        return LOCAL
    name = target if isinstance(target, str) else getattr(target, "name", None)
    if not isinstance(name, str) or not name:
        raise user_error(
            f"{target!r} is not a compute target.",
            fix="Pass a ComputeTarget or its name, or leave it out for 'local'.",
        )
    return name


FRAMEWORKS = ("Python", "PyTorch", "TensorFlow", "PySpark", "Cntk")
COMMUNICATORS = ("None", "Mpi", "IntelMpi", "OpenMpi", "ParameterServer", "Gloo", "Nccl")
_MPI = ("Mpi", "IntelMpi", "OpenMpi")


@closed
@dataclass
class DockerConfiguration:
    """Whether the job runs in a container, and how that is started."""

    use_docker: bool = False
    shared_volumes: bool = True
    arguments: list[str] | None = None
    shm_size: str | None = None


@closed
@dataclass
class HistoryConfiguration:
    """What is kept of a run."""

    output_collection: bool = True
    snapshot_project: bool = True
    directories_to_watch: list[str] = field(default_factory=lambda: ["logs"])


@closed
class RunConfiguration:
    """The settings of a run. An attribute it does not have is an `AttributeError`."""

    script: str | None
    arguments: list[object]
    command: str | list[object] | None
    framework: str
    communicator: str
    max_run_duration_seconds: int | None
    max_restarts: int
    environment_variables: dict[str, str]
    mpi: MpiConfiguration
    tensorflow: TensorflowConfiguration
    pytorch: PyTorchConfiguration
    docker: DockerConfiguration
    history: HistoryConfiguration
    spark: SparkConfiguration
    hdi: HdiConfiguration
    amlcompute: AmlComputeConfiguration
    kubernetescompute: KubernetesComputeConfiguration
    paralleltask: ParallelTaskConfiguration
    identity: object | None
    credential_passthrough: bool
    services: dict[str, object]
    datacaches: list[object] | None
    data: dict[str, object]
    data_references: dict[str, object]
    output_data: dict[str, object]
    job_name: str | None
    priority: int | None
    source_directory_data_store: str | None
    auto_prepare_environment: bool
    _target: str
    _node_count: int | None  # None: what the distributed configuration says
    _environment: "Environment | None"
    _name: str | None

    def __init__(
        self,
        script: str | None = None,
        arguments: Sequence[object] | None = None,
        framework: str | None = None,
        communicator: str | None = None,
        conda_dependencies: "CondaDependencies | None" = None,
        _history_enabled: bool | None = None,
        _path: str | None = None,
        _name: str | None = None,
        command: str | list[object] | None = None,
    ) -> None:
        self.script = script
        self.arguments = list(arguments or [])
        self.command = command
        self.target = LOCAL
        self.framework = framework or "Python"
        self.communicator = communicator or "None"
        self._node_count = None
        self.max_run_duration_seconds = None
        self.max_restarts = 0
        self.environment_variables = {}
        self.mpi = MpiConfiguration()
        self.tensorflow = TensorflowConfiguration()
        self.pytorch = PyTorchConfiguration()
        self.docker = DockerConfiguration()
        self.history = HistoryConfiguration()
        self.spark = SparkConfiguration()
        self.hdi = HdiConfiguration()
        self.amlcompute = AmlComputeConfiguration()
        self.kubernetescompute = KubernetesComputeConfiguration()
        self.paralleltask = ParallelTaskConfiguration()
        self.identity = None
        self.credential_passthrough = False
        self.services = {}
        self.datacaches = None
        self.data = {}
        self.data_references = {}
        self.output_data = {}
        self.job_name = None
        self.priority = None
        self.source_directory_data_store = None
        self.auto_prepare_environment = True
        self._environment = None
        self._name = _name
        if conda_dependencies is not None:
            self.environment.python.conda_dependencies = conda_dependencies

    @property
    def prepare_environment(self) -> bool:
        """v1's first name of `auto_prepare_environment`."""
        return self.auto_prepare_environment

    @prepare_environment.setter
    def prepare_environment(self, value: bool) -> None:
        self.auto_prepare_environment = value

    @property
    def target(self) -> str:
        """The name of the compute target; it may be set to the target itself."""
        return self._target

    @target.setter
    def target(self, target: object) -> None:
        self._target = target_name(target)

    @property
    def node_count(self) -> int:
        """How many nodes the run takes: what was set here, or what its processes ask for."""
        if self._node_count is not None:
            return self._node_count
        communicator = _spelled(str(self.communicator), COMMUNICATORS)
        if communicator in _MPI:
            return self.mpi.node_count
        if communicator == "ParameterServer":
            return self.tensorflow.worker_count
        return self.pytorch.node_count if communicator.lower() in BACKENDS else 1

    @node_count.setter
    def node_count(self, count: int) -> None:
        self._node_count = count

    @property
    def environment(self) -> "Environment":
        """The environment of the run. Reading it makes one of v1's defaults to be filled in."""
        if self._environment is None:
            from runyard.sdk.environment import Environment

            self._environment = Environment("project")
        return self._environment

    @environment.setter
    def environment(self, environment: "Environment | None") -> None:
        self._environment = environment

    def use(self, distributed: DistributedConfiguration) -> None:
        """Take over one of the three ways to start several processes, and its number of nodes."""
        self._node_count = None
        match distributed:
            case MpiConfiguration():
                self.framework, self.communicator = "Python", "IntelMpi"
                self.mpi = distributed
            case TensorflowConfiguration():
                self.framework, self.communicator = "TensorFlow", "ParameterServer"
                self.tensorflow = distributed
            case PyTorchConfiguration():
                self.framework = "PyTorch"
                self.communicator = distributed.communication_backend.capitalize()
                self.pytorch = distributed

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        separate_environment_yaml: bool = False,
    ) -> None:
        """Write NAME.runconfig below `path`/.azureml, or `path` itself if that names a file."""
        import yaml

        from runyard.sdk.run_definition import render_configuration

        file = runconfig_file(path, name or self._name or self.target)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(render_configuration(self), sort_keys=False), "utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str], name: str | None = None) -> "RunConfiguration":
        """Read a .runconfig file, in YAML or JSON, written by `save` or by v1."""
        import yaml

        from runyard.sdk.environment_files import check_yaml
        from runyard.sdk.run_definition import parse_configuration

        file = runconfig_file(path, name or LOCAL)
        try:
            text = file.read_text("utf-8")
            check_yaml(yaml.parse(text, Loader=yaml.SafeLoader), str(file))
            data = yaml.safe_load(text)
        except OSError as error:
            raise user_error(
                f"The run configuration '{file}' cannot be read.", why=f"{error.strerror}."
            ) from None
        except yaml.YAMLError as error:
            raise user_error(
                f"The run configuration '{file}' is neither YAML nor JSON.", why=f"{error}"
            ) from None
        if not isinstance(data, dict):
            raise user_error(f"The run configuration '{file}' holds no settings.")
        return parse_configuration(data)

    @staticmethod
    def delete(path: str | os.PathLike[str], name: str) -> None:
        """Remove a .runconfig file."""
        runconfig_file(path, name).unlink(missing_ok=True)

    def __repr__(self) -> str:
        return (
            f"RunConfiguration(script={self.script!r}, target={self.target!r}, "
            f"framework={self.framework!r}, communicator={self.communicator!r})"
        )


def runconfig_file(path: str | os.PathLike[str] | None, name: str) -> Path:
    """Which file `save` and `load` mean: a file, or NAME.runconfig in the folder's .azureml."""
    folder = Path(os.fspath(path) if path is not None else ".").expanduser()
    if folder.is_file() or folder.suffix in (".runconfig", ".yml", ".yaml", ".json"):
        return folder
    places = [folder / below / f"{name}.runconfig" for below in (".azureml", "aml_config", "")]
    return next((file for file in places if file.is_file()), places[0])


def plan_launcher(config: RunConfiguration) -> LauncherSpec:
    """How the processes of such a run are laid over nodes."""
    # Checked again here: attributes may have been set since.
    workers = at_least("worker_count", config.tensorflow.worker_count, 1)
    nodes = at_least("node_count", config.node_count, 1)
    framework = _spelled(str(config.framework), FRAMEWORKS)
    communicator = _spelled(str(config.communicator), COMMUNICATORS)
    if communicator not in COMMUNICATORS or framework not in FRAMEWORKS:
        raise RunConfigurationException(
            error_text(
                f"framework={framework!r} with communicator={communicator!r} is not known.",
                why=f"Frameworks: {', '.join(FRAMEWORKS)}. "
                f"Communicators: {', '.join(COMMUNICATORS)}.",
                fix="Use distributed_job_config=MpiConfiguration(), TensorflowConfiguration() "
                "or PyTorchConfiguration().",
            )
        )
    if communicator in _MPI:
        per_node = at_least("process_count_per_node", config.mpi.process_count_per_node, 1)
        return LauncherSpec(
            kind="mpi", nodes=nodes, processes_per_node=per_node, workers=nodes * per_node
        )
    if communicator == "ParameterServer":
        servers = config.tensorflow.parameter_server_count
        return LauncherSpec(
            kind="tensorflow",
            nodes=nodes,
            workers=workers,
            parameter_servers=at_least("parameter_server_count", servers, 0),
        )
    if communicator.lower() in BACKENDS:
        processes = check_process_count(config.pytorch.process_count, nodes)
        # Nccl is the default of both: who says Gloo means it.
        said = {communicator.lower(), str(config.pytorch.communication_backend).lower()}
        return LauncherSpec(
            kind="pytorch",
            nodes=nodes,
            processes_per_node=processes // nodes,
            workers=processes,
            backend="gloo" if "gloo" in said else "nccl",
        )
    return LauncherSpec(nodes=nodes)


def _spelled(name: str, known: Sequence[str]) -> str:
    """A name as we spell it; v1 did not mind capitals, and its notebooks say 'python'."""
    return next((one for one in known if one.lower() == name.lower()), name)
