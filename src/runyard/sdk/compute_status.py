"""The status of a cluster in v1's shape."""

from datetime import datetime

from runyard.domain.compute import ComputeRecord, NodeState
from runyard.sdk.compute_settings import ScaleSettings

SUCCEEDED = "Succeeded"  # v1's provisioning state of a cluster that can be used: ours at once


class AmlComputeNodeStateCounts:
    """How many nodes are in each state."""

    def __init__(self, record: ComputeRecord) -> None:
        states = [node.state for node in record.nodes]
        self.idle_node_count = states.count(NodeState.IDLE)
        self.leaving_node_count = states.count(NodeState.LEAVING)
        self.preempted_node_count = 0
        self.preparing_node_count = states.count(NodeState.PREPARING)
        self.running_node_count = states.count(NodeState.RUNNING)
        self.unusable_node_count = states.count(NodeState.UNUSABLE)

    def serialize(self) -> dict[str, int]:
        """The counts under v1's keys."""
        return {
            "preparingNodeCount": self.preparing_node_count,
            "runningNodeCount": self.running_node_count,
            "idleNodeCount": self.idle_node_count,
            "unusableNodeCount": self.unusable_node_count,
            "leavingNodeCount": self.leaving_node_count,
            "preemptedNodeCount": self.preempted_node_count,
        }


class AmlComputeStatus:
    """A cluster at the moment it was looked at."""

    def __init__(self, record: ComputeRecord) -> None:
        self.allocation_state = str(record.allocation)
        self.allocation_state_transition_time = record.allocation_since
        self.creation_time = record.created
        self.current_node_count = len(record.nodes)
        self.errors: list[object] | None = None
        self.modified_time = record.modified
        self.node_state_counts = AmlComputeNodeStateCounts(record)
        self.provisioning_state = SUCCEEDED
        self.provisioning_state_transition_time: datetime | None = None
        self.scale_settings = ScaleSettings(record.min_nodes, record.max_nodes, record.idle_seconds)
        self.target_node_count = record.target_nodes
        self.vm_priority = "LowPriority" if record.priority == "lowpriority" else "Dedicated"
        self.vm_size = record.size.name.upper()

    def serialize(self) -> dict[str, object]:
        """The status under v1's keys."""
        return {
            "currentNodeCount": self.current_node_count,
            "targetNodeCount": self.target_node_count,
            "nodeStateCounts": self.node_state_counts.serialize(),
            "allocationState": self.allocation_state,
            "allocationStateTransitionTime": self.allocation_state_transition_time.isoformat(),
            "errors": self.errors,
            "creationTime": self.creation_time.isoformat(),
            "modifiedTime": self.modified_time.isoformat(),
            "provisioningState": self.provisioning_state,
            "provisioningStateTransitionTime": None,
            "scaleSettings": self.scale_settings.serialize(),
            "vmPriority": self.vm_priority,
            "vmSize": self.vm_size,
        }

    def __repr__(self) -> str:
        return f"AmlComputeStatus({self.serialize()})"
