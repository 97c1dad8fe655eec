"""v1's `runDefinition`: the settings of a run as a dictionary, and back. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.sdk.data_reference import DataReferenceConfiguration
from runyard.sdk.distributed import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)
from runyard.sdk.run_configuration import (
    DockerConfiguration,
    HistoryConfiguration,
    RunConfiguration,
)
from runyard.sdk.run_data import (
    RunData,
    plan_references,
    render_data,
    render_output_data,
    render_references,
)


def render_definition(
    config: RunConfiguration,
    *,
    script: str | None,
    command: str | None,
    arguments: Sequence[str],
    environment: EnvironmentSpec,
    data: RunData = RunData(),
) -> dict[str, object]:
    """What `run.get_details()['runDefinition']` shows."""
    return {
        "script": script,
        "command": command or "",
        "useAbsolutePath": False,
        "arguments": list(arguments),
        "sourceDirectoryDataStore": config.source_directory_data_store,
        "framework": config.framework,
        "communicator": config.communicator,
        "target": config.target,
        "dataReferences": render_references(data),
        "data": render_data(data),
        "outputData": render_output_data(data),
        "datacaches": [],
        "jobName": config.job_name,
        "maxRunDurationSeconds": config.max_run_duration_seconds,
        # A key that v1 does not have, so only where it is asked for.
        **({"maxRestarts": config.max_restarts} if config.max_restarts else {}),
        "nodeCount": config.node_count,
        "priority": config.priority,
        "credentialPassthrough": False,
        "identity": None,
        "environment": render_environment(environment),
        "history": {
            "outputCollection": config.history.output_collection,
            "directoriesToWatch": list(config.history.directories_to_watch),
            "enableMLflowTracking": False,
            "snapshotProject": config.history.snapshot_project,
        },
        "spark": {"configuration": dict(config.spark.configuration)},
        "parallelTask": {},
        "amlCompute": {},
        "tensorflow": {
            "workerCount": config.tensorflow.worker_count,
            "parameterServerCount": config.tensorflow.parameter_server_count,
        },
        "mpi": {"processCountPerNode": config.mpi.process_count_per_node},
        "pyTorch": {
            "communicationBackend": config.pytorch.communication_backend,
            "processCount": config.pytorch.process_count,
        },
        "hdi": {"yarnDeployMode": config.hdi.yarn_deploy_mode},
        "docker": {
            "useDocker": config.docker.use_docker,
            "sharedVolumes": config.docker.shared_volumes,
            "shmSize": config.docker.shm_size,
            "arguments": list(config.docker.arguments or []),
        },
        "environmentVariables": dict(config.environment_variables),
    }


def render_environment(spec: EnvironmentSpec) -> dict[str, object]:
    """An environment in the shape it has inside a run definition."""
    python = [f"python={spec.python}"] if spec.python else []
    conda: list[object] = [*python, *spec.conda]
    if spec.pip:
        conda.append({"pip": list(spec.pip)})
    return {
        "name": spec.name,
        "version": spec.version,
        "python": {
            "interpreterPath": spec.interpreter,
            "userManagedDependencies": spec.user_managed,
            "condaDependencies": {
                "name": "project_environment",
                "channels": list(spec.channels),
                "dependencies": conda,
            },
            "baseCondaEnvironment": None,
        },
        "environmentVariables": dict(spec.variables),
        "docker": {
            "enabled": spec.docker,
            "baseImage": spec.base_image,
            "baseDockerfile": spec.base_dockerfile,
        },
        "spark": {"repositories": [], "packages": [], "precachePackages": True},
    }


def render_configuration(config: RunConfiguration) -> dict[str, object]:
    """What a .runconfig file holds."""
    environment = config._environment
    spec = environment.to_spec() if environment is not None else None
    data = render_definition(
        config,
        script=config.script,
        command=config.command if isinstance(config.command, str) else None,
        arguments=[str(argument) for argument in config.arguments],
        environment=spec or EnvironmentSpec(name="project"),
        data=plan_references(config.data_references),
    )
    if isinstance(config.command, list):
        data["command"] = [str(word) for word in config.command]
    if spec is None:
        del data["environment"]
    built: dict[str, object] = msgspec.to_builtins(data)
    return built


def parse_configuration(data: Mapping[str, Any]) -> RunConfiguration:
    """The settings in a .runconfig file; keys that mean nothing here are passed over."""
    config = RunConfiguration(
        script=data.get("script"),
        arguments=data.get("arguments") or [],
        framework=data.get("framework"),
        communicator=str(data.get("communicator") or "None"),
        command=data.get("command") or None,
    )
    config.target = data.get("target") or config.target
    if data.get("nodeCount"):
        config.node_count = data["nodeCount"]
    config.max_run_duration_seconds = data.get("maxRunDurationSeconds")
    config.max_restarts = data.get("maxRestarts") or 0
    config.job_name = data.get("jobName")
    config.environment_variables = dict(data.get("environmentVariables") or {})
    config.data_references = {
        str(name): parse_reference(one) for name, one in (data.get("dataReferences") or {}).items()
    }
    if data.get("environment"):
        from runyard.sdk.environment import Environment

        config.environment = Environment.deserialize_from_dict(data["environment"])
    mpi = data.get("mpi") or {}
    config.mpi = MpiConfiguration(mpi.get("processCountPerNode") or 1, config.node_count)
    tensorflow = data.get("tensorflow") or {}
    config.tensorflow = TensorflowConfiguration(
        tensorflow.get("workerCount", 1), tensorflow.get("parameterServerCount", 1)
    )
    torch = data.get("pyTorch") or data.get("pytorch") or {}
    config.pytorch = PyTorchConfiguration(
        torch.get("communicationBackend") or "nccl", torch.get("processCount"), config.node_count
    )
    docker = data.get("docker") or {}
    config.docker = DockerConfiguration(
        use_docker=bool(docker.get("useDocker")),
        shared_volumes=docker.get("sharedVolumes", True),
        arguments=docker.get("arguments") or None,
        shm_size=docker.get("shmSize"),
    )
    history = data.get("history") or {}
    config.history = HistoryConfiguration(
        output_collection=history.get("outputCollection", True),
        snapshot_project=history.get("snapshotProject", True),
        directories_to_watch=list(history.get("directoriesToWatch") or ["logs"]),
    )
    return config


def parse_reference(data: Mapping[str, Any]) -> DataReferenceConfiguration:
    """A data reference in a .runconfig file."""
    return DataReferenceConfiguration(
        datastore_name=data.get("dataStoreName"),
        mode=str(data.get("mode") or "mount").lower(),
        path_on_datastore=data.get("pathOnDataStore"),
        path_on_compute=data.get("pathOnCompute"),
        overwrite=bool(data.get("overwrite")),
    )
