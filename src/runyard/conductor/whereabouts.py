"""Where runs work, as their clusters tell it: the hosts, and the cluster's own name for the job."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import msgspec

from runyard.conductor import runs
from runyard.conductor.changes import Changes
from runyard.conductor.engine_book import Job
from runyard.conductor.pools import Pools
from runyard.domain.compute import NodeUse
from runyard.domain.runs import RunRecord
from runyard.engines.base import JobStatus
from runyard.planning.job import job_key
from runyard.stores.base import Store


class Whereabouts:
    """Keeps them in the nodes of targets and in the runs, where they stay. For one thread."""

    def __init__(self, store: Store, pools: Pools, changes: Changes) -> None:
        self._store = store
        self._pools = pools
        self._changes = changes
        self._known: dict[str, tuple[Job, str, Sequence[str]]] = {}
        self._late: dict[Job, str] = {}

    def see(self, found: Mapping[str, tuple[Job, JobStatus]]) -> None:
        """Keep what is new of those runs, each with its job and how that is."""
        self._pools.name_hosts({id: one.hosts for id, (_, one) in found.items() if one.hosts})
        before, self._known = self._known, {}
        for run_id, (job, status) in found.items():
            said = self._known[run_id] = (job, status.name, status.hosts)
            if said != before.get(run_id) and (status.name or status.hosts):
                self._keep(run_id, job, status)

    def expect(self, job: Job, run_id: str) -> None:
        """A run is over whose cluster may not have said yet where it was."""
        self._late[job] = run_id

    def see_late(self, job: Job, status: JobStatus) -> None:
        """Keep what is heard of the job of a run that is over, once."""
        run_id = self._late.pop(job, None)
        if run_id is not None and (status.name or status.hosts):
            self._keep(run_id, job, status)

    def _keep(self, run_id: str, job: Job, status: JobStatus) -> None:
        def how(run: RunRecord) -> RunRecord:
            if job_key(run) != job.id:
                return run  # that was an earlier attempt
            nodes = placed(run.nodes, status.hosts)
            name = status.name or run.cluster_job
            return msgspec.structs.replace(run, nodes=nodes, cluster_job=name)

        runs.change(self._store, run_id, how)
        self._changes.notify(run_id)


def placed(nodes: Sequence[NodeUse], hosts: Sequence[str]) -> tuple[NodeUse, ...]:
    """The nodes with the hosts they are on, as far as both are known."""
    pairs = zip_longest(nodes, hosts[: len(nodes)], fillvalue="")
    return tuple(
        msgspec.structs.replace(node, host=host) if host else node
        for node, host in pairs
        if isinstance(node, NodeUse)
    )
