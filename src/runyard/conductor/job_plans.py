"""Makes the plans that agents work by: what a run's job is told, for the engine it goes to."""

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from runyard.conductor import runs
from runyard.domain.compute import Machine, NodeResources
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.files import Manifest, decode_manifest
from runyard.domain.runs import RunRecord
from runyard.domain.tokens import Role, mint
from runyard.engines.base import Capabilities, NodeGroup
from runyard.planning.environments import PackageSource
from runyard.planning.job import Surroundings, job_key, plan_job
from runyard.settings import GIGABYTE, Settings
from runyard.stores.base import Store
from runyard_runtime import bundle, wire

# Mounts an input on this machine. -P: the job's folder must not be where modules come from.
_MOUNTER = (sys.executable, "-P", "-m", "runyard.data.mount")


class JobPlans:
    """Plans jobs for one server. Safe to call from several threads."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        secret: bytes,
        url: Callable[[], str],
        machine: Machine,
    ) -> None:
        self._store = store
        self._settings = settings
        self._secret = secret
        self._url = url
        self._machine = machine
        self.runtime = Path()  # the folder of the runtime bundle, once it is there
        # Where nodes that share nothing get packages; the server says what it is told itself.
        self.find_packages: Callable[[EnvironmentSpec], PackageSource] = lambda spec: (
            PackageSource()
        )
        self._load_manifest = lru_cache(maxsize=64)(self._read_manifest)

    def node_group(
        self, run: RunRecord, can: Capabilities, resources: NodeResources | None = None
    ) -> NodeGroup:
        """The agents of the run's present attempt, for an engine that can do that."""
        assert run.spec.script is not None
        return NodeGroup(
            key=job_key(run),
            nodes=run.spec.script.launcher.nodes,
            plan=self.plan(run, can),
            resources=resources,
        )

    def plan(self, run: RunRecord, can: Capabilities) -> bytes:
        """The plan document; without any path of ours for nodes that do not see our disk."""
        assert run.spec.script is not None
        settings = self._settings
        home = settings.home if can.shared_folder else None
        around = Surroundings(
            url=self._url() if can.one_machine else settings.public_url or self._url(),
            address_file=str(home / "server.json") if home else None,
            token=self._mint(Role.RUN, run),
            agent_token=self._mint(Role.AGENT, run),
            runtime=str(self.runtime) if home else bundle.archive()[0],
            blobs=self._store.blobs.folder() if home else None,
            grace_seconds=settings.grace_seconds,
            group_seconds=settings.group_seconds,
            sample_seconds=settings.sample_seconds,
            cache=str(home / "cache") if home else None,
            cache_bytes=int(settings.cache_gb * GIGABYTE),
            mounter=_MOUNTER if home else (),
            mirrors=settings.mirrors,
            allow_private=settings.allows_private,
            fetch_limit_bytes=settings.fetch_limit_bytes,
            machine=self._machine if can.one_machine else None,
            one_machine=can.one_machine,
            shared_folder=can.shared_folder,
            packages=PackageSource() if home else self.find_packages(run.spec.script.environment),
        )
        workspace = runs.load_workspace(self._store, run.spec.workspace)
        return plan_job(run, workspace, self._load_manifest(run.spec.script.snapshot), around)

    def _mint(self, role: Role, run: RunRecord) -> str:
        return mint(self._secret, role, run.id, wire.NEVER, attempt=run.attempt)

    def _read_manifest(self, snapshot: str) -> Manifest:
        return decode_manifest(b"".join(self._store.blobs.open(snapshot)))
