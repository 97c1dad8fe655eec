"""Plans and environments for nodes that see nothing of the server's disk."""

import json
from datetime import UTC, datetime

import msgspec
import pytest

from runyard.conductor.node_builder import NodeBuilder
from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import Unsupported
from runyard.domain.runs import LauncherSpec, RunRecord, RunSpec, ScriptSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.environments.node_packages import find_packages
from runyard.planning.environments import IndexOptions, PackageSource
from runyard.planning.job import Surroundings, plan_job
from runyard.planning.node_environments import spec_for_nodes
from runyard.testing.fake_builder import FakeBuilder

NOW = datetime(2026, 11, 15, tzinfo=UTC)
AROUND = Surroundings(
    url="http://head:8000",
    address_file="/home/server.json",
    token="t",
    agent_token="a",
    runtime="digest",
    blobs="/home/blobs",
    grace_seconds=1,
    sample_seconds=1,
    cache="/home/cache",
    mounter=("/home/python", "-m", "mount"),
    shared_folder=False,
    packages=PackageSource(
        options=IndexOptions(index_url="https://mirror/simple"), variables={"HTTP_PROXY": "p"}
    ),
)


def planned(spec: EnvironmentSpec, nodes: int = 1, **around: object) -> dict[str, object]:
    script = ScriptSpec(
        arguments=("train.py",),
        snapshot="0" * 64,
        environment=spec,
        launcher=LauncherSpec(kind="pytorch", nodes=nodes),
    )
    use = EnvironmentUse(
        key="k1",
        interpreter="/home/environments/k1/bin/python",
        python="3.11.1",
        lock=("numpy==2.0",),
    )
    run = RunRecord(
        id="run",
        uid="u",
        spec=RunSpec(workspace="ws", experiment="exp", script=script),
        created=NOW,
        environment=use,
    )
    workspace = WorkspaceRecord(id="w", name="ws", created=NOW)
    plan = plan_job(run, workspace, (), msgspec.structs.replace(AROUND, **around))
    found: dict[str, object] = json.loads(plan)
    return found


def test_a_node_that_shares_nothing_is_told_no_path_of_the_servers() -> None:
    plan = planned(EnvironmentSpec(name="mine", pip=("numpy",)), nodes=2)
    assert "/home" not in json.dumps(plan)
    assert plan["board"] == "server"
    assert plan["environment"] == {
        "key": "k1",
        "name": "mine",
        "python": "3.11.1",
        "lock": ["numpy==2.0"],
        "options": {
            "index_url": "https://mirror/simple",
            "extra_index_urls": [],
            "find_links": [],
            "no_index": False,
            "prerelease": False,
            "trusted_hosts": [],
        },
        "variables": {"HTTP_PROXY": "p"},
        "user_managed": False,
        "interpreter": "python",
    }


def test_a_node_that_shares_the_disk_is_told_where_things_are() -> None:
    plan = planned(EnvironmentSpec(name="mine"), shared_folder=True)
    assert plan["interpreter"] == "/home/environments/k1/bin/python"
    assert plan["blobs"] == "/home/blobs"
    assert "environment" not in plan


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (EnvironmentSpec(name="e", base_image="ubuntu"), "container of an image"),
        (EnvironmentSpec(name="e", base_dockerfile="FROM x"), "container of an image"),
        (EnvironmentSpec(name="e", pip=("horovod==0.28.1",)), "Horovod has to be compiled"),
    ],
)
def test_what_nodes_cannot_make_is_refused_in_words(spec: EnvironmentSpec, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        spec_for_nodes(spec)
    assert caught.value.fix


def test_a_wish_for_any_container_is_left_away() -> None:
    spec = EnvironmentSpec(name="e", docker=True, shm_size="2g", pip=("numpy",))
    assert spec_for_nodes(spec) == EnvironmentSpec(name="e", pip=("numpy",))


def test_an_interpreter_of_the_nodes_is_not_looked_for_here() -> None:
    builder = NodeBuilder([])
    spec = EnvironmentSpec(name="e", user_managed=True, interpreter="/opt/site/bin/python")
    ready = builder.ready(spec)
    assert ready is not None
    assert ready.interpreter == "/opt/site/bin/python"
    assert builder.build(spec, print) == ready


def test_everything_else_is_built_here_first_for_its_lock() -> None:
    here = FakeBuilder("e")
    here.finish.set()
    builder, lines = NodeBuilder([here]), list[str]()
    spec = EnvironmentSpec(name="e", docker=True)
    use = builder.build(spec, lines.append)
    assert (use.key, here.builds) == ("e", 1)
    assert builder.ready(spec) is None
    assert "the nodes install the same" in lines[0]


def test_nodes_are_told_what_pip_is_told_here() -> None:
    spec = EnvironmentSpec(name="e", pip=("numpy", "--extra-index-url https://me:pw@host/simple"))
    environ = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "https://mirror/simple",
        "PIP_PROXY": "proxy:3128",
    }
    found = find_packages(spec, environ)
    assert found.options.index_url == "https://mirror/simple"
    assert found.options.extra_index_urls == ("https://me:pw@host/simple",)
    assert found.variables["HTTPS_PROXY"] == "http://proxy:3128"
