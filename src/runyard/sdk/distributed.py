"""How the processes of a job are laid over nodes: v1's three configurations."""

from runyard.sdk.element import closed
from runyard.sdk.exceptions import RunConfigurationException, error_text

BACKENDS = ("nccl", "gloo")


@closed
class MpiConfiguration:
    """Processes started by MPI."""

    process_count_per_node: int
    node_count: int

    def __init__(self, process_count_per_node: int = 1, node_count: int = 1) -> None:
        self.process_count_per_node = at_least("process_count_per_node", process_count_per_node, 1)
        self.node_count = at_least("node_count", node_count, 1)


@closed
class TensorflowConfiguration:
    """Workers, and parameter servers where they are wanted, told of each other in TF_CONFIG."""

    worker_count: int
    parameter_server_count: int

    def __init__(self, worker_count: int = 1, parameter_server_count: int = 1) -> None:
        self.worker_count = at_least("worker_count", worker_count, 1)
        self.parameter_server_count = at_least("parameter_server_count", parameter_server_count, 0)


@closed
class PyTorchConfiguration:
    """Processes that meet through torch.distributed."""

    communication_backend: str
    process_count: int | None  # None: one on each node
    node_count: int

    def __init__(
        self,
        communication_backend: str = "Nccl",
        process_count: int | None = None,
        node_count: int = 1,
    ) -> None:
        backend = str(communication_backend).lower()
        if backend not in BACKENDS:
            raise RunConfigurationException(
                error_text(
                    f"{communication_backend!r} is not a communication backend.",
                    why="torch.distributed is started with 'Nccl' or 'Gloo' here.",
                    fix="Use PyTorchConfiguration(communication_backend='Gloo') on CPUs.",
                )
            )
        self.communication_backend = backend
        self.node_count = at_least("node_count", node_count, 1)
        check_process_count(process_count, node_count)
        self.process_count = process_count


DistributedConfiguration = MpiConfiguration | TensorflowConfiguration | PyTorchConfiguration


def at_least(name: str, value: int, least: int) -> int:
    """The value, or an error if it is no whole number or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RunConfigurationException(
            error_text(
                f"{name}={value!r} makes no sense.",
                why=f"It is a whole number, {least} or more.",
                fix=f"Set {name} to such a number.",
            )
        )
    return value


def check_process_count(process_count: int | None, nodes: int) -> int:
    """How many PyTorch processes there are on all nodes together: equally many on each."""
    processes = nodes if process_count is None else at_least("process_count", process_count, 1)
    if processes % nodes:
        raise RunConfigurationException(
            error_text(
                f"{processes} processes cannot be laid evenly over {nodes} nodes.",
                why="Every node runs the same number of processes.",
                fix="Make process_count a multiple of node_count.",
            )
        )
    return processes


def check_distributed(config: object) -> DistributedConfiguration:
    """The configuration, or `RunConfigurationException` if it is of no such class."""
    if isinstance(config, MpiConfiguration | TensorflowConfiguration | PyTorchConfiguration):
        return config
    raise RunConfigurationException(
        error_text(
            f"distributed_job_config cannot be of type {type(config).__name__}.",
            why="It is an MpiConfiguration, a TensorflowConfiguration or a PyTorchConfiguration.",
            fix="Use one of them, made with parentheses: MpiConfiguration(), or leave it out.",
        )
    )
