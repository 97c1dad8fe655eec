"""`RayCompute` and `SlurmCompute`: clusters that exist already, attached as compute targets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from runyard.domain.compute import AttachSpec, ComputeRecord, NodeResources
from runyard.sdk.compute import ComputeTarget
from runyard.sdk.exceptions import ComputeTargetException

if TYPE_CHECKING:
    from runyard.sdk.workspace import Workspace


class ClusterAttachConfiguration:
    """How a cluster is reached and used: what `ComputeTarget.attach` takes."""

    def __init__(
        self,
        kind: str,
        options: Mapping[str, str | bool | None],
        secrets: Mapping[str, str | None],
        *,
        max_nodes: int | None,
        resources: NodeResources,
        description: str | None,
        tags: Mapping[str, str | None] | None,
    ) -> None:
        self._spec = AttachSpec(
            kind=kind,
            options={name: _text(value) for name, value in options.items() if value is not None},
            secrets={name: value for name, value in secrets.items() if value},
            max_nodes=max_nodes,
            resources=resources,
            description=description or "",
            tags=dict(tags or {}),
        )

    def to_spec(self) -> AttachSpec:
        """What the server is asked for."""
        return self._spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._spec.kind}, {self._spec.options})"


class AttachedCompute(ComputeTarget):
    """A cluster that exists without Runyard. It gives nodes to runs when it has them free."""

    _compute_type = "Attached"

    @property
    def options(self) -> dict[str, str]:
        """How the cluster is reached, without what opens it."""
        engine = self._record.engine
        return {} if engine is None else dict(engine.options)

    @property
    def max_nodes(self) -> int | None:
        """How many nodes runs take at once; None: as many as the cluster gives."""
        return self._record.max_nodes

    def wait_for_completion(
        self, show_output: bool = False, is_delete_operation: bool = False
    ) -> None:
        """Return at once: what is attached can be used."""

    def get_status(self) -> str:
        """v1's word for a target that can be used."""
        self.refresh_state()
        return self.provisioning_state

    def detach(self, *, force: bool = False) -> None:
        """Stop using the cluster, which stays as it is; refused while unfinished runs are on it.

        `force` gives those up, for a cluster that does not come back: they are canceled here, and
        what is left of them there is ended should it be reached again.
        """
        self._remove(force=force)

    def delete(self) -> None:
        """Refuse: what was attached is detached."""
        raise ComputeTargetException(
            f"Delete is not supported for {self.type} object. Try to use detach instead."
        )


class RayCompute(AttachedCompute):
    """A Ray cluster, reached through its Jobs API."""

    _compute_type = "Ray"

    @staticmethod
    def attach_configuration(
        address: str,
        token: str | None = None,
        *,
        max_nodes: int | None = None,
        cores: int | None = None,
        memory_gb: float | None = None,
        gpus: int | None = None,
        autoscale: bool | None = None,
        place_seconds: float | None = None,
        server_url: str | None = None,
        server_seconds: float | None = None,
        python: str | None = None,
        node_folder: str | None = None,
        node_environments: str | None = None,
        description: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> ClusterAttachConfiguration:
        """How to use a Ray cluster: where its dashboard answers, and the token it asks for.

        `cores`, `memory_gb` and `gpus` are what each node of a run is given; `max_nodes` is how
        many runs take at once, by default as many as Ray gives. `autoscale`: Ray can grow, so a
        group that fits nowhere now is waited for, `place_seconds` at most. `server_url` is where
        nodes reach the server, which a node that comes up tries for `server_seconds`; `python` is
        the interpreter on them that starts things, `node_folder` where they keep what they fetch,
        and `node_environments` where they make environments, if that is a folder they share.
        """
        return ClusterAttachConfiguration(
            "ray",
            {
                "address": address,
                "autoscale": autoscale,
                "place_seconds": None if place_seconds is None else f"{place_seconds:g}",
                "url": server_url,
                "server_seconds": None if server_seconds is None else f"{server_seconds:g}",
                "python": python,
                "node_folder": node_folder,
                "environments": node_environments,
            },
            {"token": token},
            max_nodes=max_nodes,
            resources=NodeResources(cores=cores, memory_gb=memory_gb, gpus=gpus),
            description=description,
            tags=tags,
        )


class SlurmCompute(AttachedCompute):
    """A Slurm cluster, reached through its own programs on the server's machine."""

    _compute_type = "Slurm"

    @staticmethod
    def attach_configuration(
        partition: str | None = None,
        account: str | None = None,
        *,
        qos: str | None = None,
        time_limit: str | None = None,
        arguments: str | None = None,
        shared_folder: bool | None = None,
        max_nodes: int | None = None,
        cores: int | None = None,
        memory_gb: float | None = None,
        gpus: int | None = None,
        python: str | None = None,
        node_folder: str | None = None,
        node_environments: str | None = None,
        config_file: str | None = None,
        mpi: str | None = None,
        description: str | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> ClusterAttachConfiguration:
        """How to use a Slurm cluster; what is not given, Slurm decides.

        `arguments` are further ones of `sbatch`. `shared_folder=False`: the nodes do not see the
        server's home folder, and fetch everything by HTTP. `mpi`: `srun --mpi=…` with that plugin
        starts the ranks of MPI, by default their own mpirun. The rest is as in `RayCompute`.
        """
        return ClusterAttachConfiguration(
            "slurm",
            {
                "partition": partition,
                "account": account,
                "qos": qos,
                "time_limit": time_limit,
                "arguments": arguments,
                "shared": shared_folder,
                "python": python,
                "folder": node_folder,
                "environments": node_environments,
                "conf": config_file,
                "mpi": mpi,
            },
            {},
            max_nodes=max_nodes,
            resources=NodeResources(cores=cores, memory_gb=memory_gb, gpus=gpus),
            description=description,
            tags=tags,
        )


_KINDS: dict[str, type[AttachedCompute]] = {"ray": RayCompute, "slurm": SlurmCompute}


def attached_target(workspace: "Workspace", record: ComputeRecord) -> AttachedCompute:
    """The handle of an attached cluster."""
    kind = record.engine.kind if record.engine is not None else ""
    target: AttachedCompute = object.__new__(_KINDS.get(kind, AttachedCompute))
    target.workspace = workspace
    target._record = record
    return target


def _text(value: str | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
