"""Routes of compute targets: look, make, change the scale, remove."""

from runyard.conductor import computes, runs
from runyard.domain.compute import ComputePatch, ComputeRecord, ComputeSpec, VmSize
from runyard.server.platform import utc_now
from runyard.server.routing import Call, NoQuery


def list_sizes(call: Call[None, NoQuery]) -> list[VmSize]:
    """The sizes that nodes can have."""
    return computes.list_sizes()


def list_computes(call: Call[None, NoQuery]) -> list[ComputeRecord]:
    """All compute targets of a workspace with their nodes, oldest first."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    return computes.list_computes(store, workspace)


def get_compute(call: Call[None, NoQuery]) -> ComputeRecord:
    """One compute target with its nodes."""
    store = call.platform.store
    workspace = runs.load_workspace(store, call.params["workspace"])
    return computes.load_compute(store, workspace, call.params["compute"])


def put_compute(call: Call[ComputeSpec, NoQuery]) -> ComputeRecord:
    """Make a compute target; one of that name and size gets the new scale."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    record = computes.create_compute(
        platform.store, workspace, call.params["compute"], call.body, platform.machine, utc_now()
    )
    platform.conductor.wake()
    return record


def patch_compute(call: Call[ComputePatch, NoQuery]) -> ComputeRecord:
    """Change the scale of a compute target."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    record = computes.update_compute(
        platform.store, workspace, call.params["compute"], call.body, platform.machine, utc_now()
    )
    platform.conductor.wake()
    return record


def delete_compute(call: Call[None, NoQuery]) -> None:
    """Remove a compute target that no unfinished run needs."""
    platform = call.platform
    workspace = runs.load_workspace(platform.store, call.params["workspace"])
    computes.delete_compute(platform.store, workspace, call.params["compute"])
    platform.conductor.wake()
