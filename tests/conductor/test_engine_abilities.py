"""What an engine can do is asked when a run is submitted: every combination, and the words."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import computes
from runyard.conductor.node_builder import NodeBuilder, PlainBuilder, builders_for
from runyard.domain.compute import AttachSpec, NodeResources
from runyard.domain.data import DataInput, DataOutput, InputMode
from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import Unsupported
from runyard.domain.runs import LauncherSpec, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.engines.base import Capabilities
from runyard.stores import open_store
from runyard.stores.base import Store
from runyard.testing.fake_builder import FakeBuilder

NOW = datetime(2026, 11, 15, tzinfo=UTC)
WORKSPACE = WorkspaceRecord(id="w1", name="ws", created=NOW)
SCRIPT = ScriptSpec(
    arguments=("train.py",), snapshot="0" * 64, environment=EnvironmentSpec(name="e"), target="big"
)


def spec(**fields: object) -> EnvironmentSpec:
    return msgspec.structs.replace(EnvironmentSpec(name="e"), **fields)


PLAIN = {
    "packages": spec(pip=("numpy",)),
    "any container": spec(docker=True, shm_size="2g"),
    "conda of PyPI": spec(conda=("numpy=1.18", "python=3.8", "pip")),
    "a Python of the nodes": spec(user_managed=True, pip=("horovod",), conda=("gcc",)),
}
IMAGES = {
    "an image": spec(base_image="ubuntu"),
    "an image, said twice": spec(docker=True, base_image="ubuntu"),
    "a Dockerfile": spec(base_dockerfile="FROM x"),
    "an image for an own Python": spec(user_managed=True, base_image="ubuntu"),
}
NEEDS_DISK = {
    "Horovod": (spec(pip=("horovod==0.28.1",)), "Horovod has to be compiled"),
    "Horovod of conda": (spec(conda=("horovod=0.28",)), "Horovod has to be compiled"),
    "conda alone": (spec(conda=("gcc", "numpy")), "of its conda packages PyPI does not have gcc"),
    "a file": (spec(pip=("/wheels/a-1.0-py3-none-any.whl",)), "is a file of the server"),
    "a file by URL": (spec(pip=("a @ file:///wheels/a.whl",)), "is a file of the server"),
}
ENVIRONMENTS = {**PLAIN, **IMAGES, **{name: one for name, (one, _) in NEEDS_DISK.items()}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    store.records.insert(WORKSPACE)
    yield store
    store.close()


def refusal(store: Store, script: ScriptSpec, can: Capabilities) -> str:
    """What is said of a run on 'big'; empty: it is taken."""
    try:
        computes.check_target(store, WORKSPACE, script, lambda engine: can)
    except Unsupported as error:
        return error.what if error.why and error.fix else "it does not say why, and what to do"
    return ""


def expected(name: str, nodes: int, gpus: int, can: Capabilities) -> str:
    if nodes > 1 and not can.multi_node:
        return f"cannot have {nodes} nodes on 'big'"
    if gpus and not can.gpus:
        return "'big' cannot give its nodes 1 GPU."
    has_images = can.shared_folder and can.containers
    if name in IMAGES and not has_images:
        return "'e' cannot be used there: it is a container of an image"
    return NEEDS_DISK[name][1] if name in NEEDS_DISK and not can.shared_folder else ""


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_combination_is_taken_or_refused_in_words(store: Store, name: str, gpus: int) -> None:
    attached = AttachSpec(kind="slurm", resources=NodeResources(gpus=gpus))
    computes.attach_compute(store, WORKSPACE, "big", attached, b"secret", NOW)
    flags = ("multi_node", "one_machine", "containers", "shared_folder", "gpus", "autoscale")
    for chosen in product([False, True], repeat=len(flags)):
        can = Capabilities(**dict(zip(flags, chosen, strict=True)))
        for nodes in (1, 2):
            launcher = LauncherSpec(kind="mpi", nodes=nodes)
            script = msgspec.structs.replace(
                SCRIPT, environment=ENVIRONMENTS[name], launcher=launcher
            )
            words = expected(name, nodes, gpus, can)
            said = refusal(store, script, can)
            assert bool(words) == bool(said), (can, nodes, said)
            assert words in said, (can, nodes)


def test_data_needs_no_disk_of_the_servers(store: Store) -> None:
    # Inputs are fetched by HTTP, a mount as links to what was fetched; outputs are sent by HTTP.
    computes.attach_compute(store, WORKSPACE, "big", AttachSpec(kind="ray"), b"secret", NOW)
    script = msgspec.structs.replace(
        SCRIPT,
        launcher=LauncherSpec(kind="pytorch", nodes=2),
        inputs=(DataInput(name="a", mode=InputMode.MOUNT, dataset="d"),),
        outputs=(DataOutput(name="b", datastore="workspaceblobstore", path="x"),),
    )
    assert refusal(store, script, Capabilities(multi_node=True)) == ""


def test_who_builds_follows_from_what_nodes_have() -> None:
    here = [FakeBuilder("e")]
    shared = Capabilities(shared_folder=True)
    (plain,) = builders_for(shared, here)
    assert isinstance(plain, PlainBuilder)
    assert isinstance(builders_for(Capabilities(containers=True), here)[0], NodeBuilder)
    able = Capabilities(shared_folder=True, containers=True)
    assert builders_for(able, here) is here


def test_a_wish_for_any_container_is_met_without_one_where_there_are_none() -> None:
    here = FakeBuilder("e")
    here.finish.set()
    plain = PlainBuilder([here])
    wished, bare = spec(docker=True, shm_size="2g"), spec()
    assert plain.accepts(wished)
    assert plain.key(wished) == here.key(bare)
    assert plain.build(wished, print).key == here.key(bare)
    assert plain.ready(wished) == here.ready(bare)
