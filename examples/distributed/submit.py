"""Train on two nodes, in any of these ways:

    python submit.py pytorch-ddp
    python submit.py mpi --processes-per-node 2

The nodes are those of an AmlCompute; on one machine they share it. The workspace is the one that
`runyard init` made in this folder.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from azureml.core import Environment, Experiment, Run, ScriptRunConfig, Workspace
from azureml.core.compute import AmlCompute, ComputeTarget
from azureml.core.compute_target import ComputeTargetException
from azureml.core.runconfig import (
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
)

HERE = Path(__file__).parent
Processes = MpiConfiguration | PyTorchConfiguration | TensorflowConfiguration


def pytorch(nodes: int, per_node: int) -> Processes:
    """Processes that meet through torch.distributed."""
    return PyTorchConfiguration("Gloo", process_count=nodes * per_node, node_count=nodes)


def mpi(nodes: int, per_node: int) -> Processes:
    """Ranks that MPI starts."""
    return MpiConfiguration(process_count_per_node=per_node, node_count=nodes)


def workers(nodes: int, per_node: int) -> Processes:
    """Workers that know each other by TF_CONFIG."""
    return TensorflowConfiguration(worker_count=nodes * per_node, parameter_server_count=0)


def workers_and_server(nodes: int, per_node: int) -> Processes:
    """The same with a server, which holds the weights."""
    return TensorflowConfiguration(worker_count=nodes * per_node, parameter_server_count=1)


KINDS: dict[str, Callable[[int, int], Processes]] = {
    "pytorch-ddp": pytorch,
    "tensorflow-multiworker": workers,
    "tensorflow-parameter-server": workers_and_server,
    "tensorflow-1-parameter-server": workers_and_server,
    "mpi": mpi,
    "horovod": mpi,
}


def cluster(ws: Workspace, nodes: int) -> ComputeTarget:
    """A cluster of that many nodes; made the first time."""
    name = f"cpu-{nodes}"
    try:
        return ComputeTarget(workspace=ws, name=name)
    except ComputeTargetException:
        size = AmlCompute.provisioning_configuration(vm_size="STANDARD_D2_V2", max_nodes=nodes)
        made = ComputeTarget.create(ws, name, size)
        made.wait_for_completion(show_output=True)
        return made


def configure(ws: Workspace, kind: str, nodes: int, per_node: int) -> ScriptRunConfig:
    """What is to be run: the folder of that kind."""
    folder = HERE / kind
    env = Environment.from_conda_specification(kind, str(folder / "conda_dependencies.yml"))
    # Spares us notices of TensorFlow.
    env.environment_variables = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    src = ScriptRunConfig(
        source_directory=str(folder),
        script="train.py",
        compute_target=cluster(ws, nodes),
        environment=env,
        distributed_job_config=KINDS[kind](nodes, per_node),
    )
    src.run_config.node_count = nodes  # TensorFlow's workers would each have a node of their own
    if kind == "pytorch-ddp":
        src.arguments = [
            *("--dist-backend", "gloo"),
            *("--dist-url", "$AZ_BATCHAI_PYTORCH_INIT_METHOD"),
            *("--rank", "$AZ_BATCHAI_TASK_INDEX"),
            *("--world-size", nodes * per_node),
        ]
    return src


def main() -> Run:
    """Submit, and follow to the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--processes-per-node", type=int, default=1)
    args = parser.parse_args()
    ws = Workspace.from_config()
    src = configure(ws, args.kind, args.nodes, args.processes_per_node)
    run = Experiment(ws, args.kind).submit(src)
    run.wait_for_completion(show_output=True)
    losses = run.get_metrics()["loss"]
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}; logs of the processes:")
    for name in sorted(run.get_file_names()):
        if name.startswith("azureml-logs/70_driver_log"):
            print(" ", name)
    return run


if __name__ == "__main__":
    main()
