"""How an estimator's processes are laid over nodes: v1's older classes and words for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runyard.sdk.distributed import (
    DistributedConfiguration,
    MpiConfiguration,
    PyTorchConfiguration,
    TensorflowConfiguration,
    at_least,
)
from runyard.sdk.element import closed
from runyard.sdk.exceptions import RunConfigurationException, TrainingException, error_text

if TYPE_CHECKING:
    from runyard.sdk.estimators import Arguments


@closed
@dataclass
class Mpi:
    """Processes started by MPI; v1's older name of `MpiConfiguration`."""

    process_count_per_node: int = 1


@closed
@dataclass
class ParameterServer:
    """Workers and parameter servers; v1's older name of `TensorflowConfiguration`."""

    worker_count: int = 1
    parameter_server_count: int = 1


@closed
@dataclass
class Gloo:
    """Processes that meet through torch.distributed with Gloo."""


@closed
@dataclass
class Nccl:
    """Processes that meet through torch.distributed with NCCL."""


# What distributed_backend= calls them.
_BACKENDS = {
    "mpi": (Mpi, MpiConfiguration),
    "ps": (ParameterServer, TensorflowConfiguration),
    "gloo": (Gloo, PyTorchConfiguration),
    "nccl": (Nccl, PyTorchConfiguration),
}

ALL_BACKENDS = tuple(_BACKENDS)


def plan_distribution(
    arguments: "Arguments", allowed: tuple[str, ...]
) -> DistributedConfiguration | None:
    """The configuration that the arguments describe; None for a single process. Pure."""
    try:
        nodes = at_least("node_count", arguments.node_count, 1)
        per_node = at_least("process_count_per_node", arguments.process_count_per_node, 1)
    except RunConfigurationException as error:
        raise TrainingException(error.message, error) from None
    way = arguments.distributed_training
    if arguments.distributed_backend is not None:
        older = _way_of(arguments, allowed)
        way = older if way is None else way
    if way is None:
        _check_single(arguments, allowed)
        return None
    if not isinstance(way, tuple(kind for name in allowed for kind in _BACKENDS[name])):
        raise TrainingException(
            error_text(
                f"distributed_training cannot be {_shown(way)} here.",
                why=f"This estimator takes: {', '.join(_ways(allowed))}.",
                fix=f"Write distributed_training={_ways(allowed)[0]}.",
            )
        )
    return _configuration(way, nodes, per_node)


def _configuration(way: object, nodes: int, per_node: int) -> DistributedConfiguration:
    match way:
        case Mpi() | MpiConfiguration():
            own_nodes = way.node_count if isinstance(way, MpiConfiguration) else 1
            # v1 lets the count be said in two places, and its pages say 1 in one of them.
            return MpiConfiguration(
                per_node if way.process_count_per_node == 1 else way.process_count_per_node,
                own_nodes if nodes == 1 else nodes,
            )
        case ParameterServer() | TensorflowConfiguration():
            return TensorflowConfiguration(way.worker_count, way.parameter_server_count)
        case PyTorchConfiguration():
            nodes = way.node_count if nodes == 1 else nodes
            count = way.process_count or nodes * per_node
            return PyTorchConfiguration(way.communication_backend, count, nodes)
        case _:
            backend = "Gloo" if isinstance(way, Gloo) else "Nccl"
            return PyTorchConfiguration(backend, nodes * per_node, nodes)


def _way_of(arguments: "Arguments", allowed: tuple[str, ...]) -> object:
    name = arguments.distributed_backend
    match name.lower() if isinstance(name, str) and name.lower() in allowed else None:
        case "mpi":
            return Mpi(arguments.process_count_per_node)
        case "ps":
            return ParameterServer(arguments.worker_count, arguments.parameter_server_count)
        case "gloo":
            return Gloo()
        case "nccl":
            return Nccl()
        case _:
            known = ", ".join(repr(one) for one in allowed)
            raise TrainingException(
                error_text(
                    f"distributed_backend={name!r} is not supported by this estimator.",
                    why=f"It takes: {known or 'none, it trains in one process'}.",
                    fix=f"Write distributed_training={_ways(allowed)[0]}." if allowed else "",
                )
            )


def _check_single(arguments: "Arguments", allowed: tuple[str, ...]) -> None:
    """`TrainingException` if several processes are asked for, and not how they find each other."""
    counts = ("node_count", "process_count_per_node")
    several = [name for name in counts if getattr(arguments, name) != 1]
    if several:
        raise TrainingException(
            error_text(
                f"{several[0]}={getattr(arguments, several[0])} is given without "
                "distributed_training.",
                why="Several processes need a way to find each other.",
                fix=f"Add distributed_training={' or '.join(_ways(allowed))}.",
            )
        )


def _ways(allowed: tuple[str, ...]) -> list[str]:
    return [f"{kind.__name__}()" for kind in dict.fromkeys(_BACKENDS[name][1] for name in allowed)]


def _shown(way: object) -> str:
    if isinstance(way, type):
        return f"the class {way.__name__} itself"
    return f"of type {type(way).__name__}"
