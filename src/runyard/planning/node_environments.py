"""Environments on nodes that do not see the server's disk: what they can be. Pure."""

import msgspec

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported
from runyard.planning.horovod import is_horovod

_ELSEWHERE = "The nodes of this compute target do not see the server's disk, and make it themselves"


def spec_for_nodes(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The spec as such nodes can make it; `Unsupported` in words if they cannot.

    That an environment is to be in some container, as v1's estimators ask for, is no wish for a
    certain image: it comes without one.
    """
    if spec.base_image or spec.base_dockerfile:
        raise Unsupported(
            f"Environment '{spec.name}' cannot be used there: it is a container of an image.",
            why=f"{_ELSEWHERE}: packages and a Python, no images.",
            fix="Leave the base image away, or use nodes that share the server's disk.",
        )
    if any(is_horovod(line) for line in spec.pip):
        raise Unsupported(
            f"Environment '{spec.name}' cannot be used there: Horovod has to be compiled.",
            why=f"{_ELSEWHERE}, from packages that are ready.",
            fix="Install Horovod on the nodes and name their Python with "
            "python.user_managed_dependencies, or use nodes that share the server's disk.",
        )
    return msgspec.structs.replace(spec, docker=False, docker_arguments=(), shm_size=None)
