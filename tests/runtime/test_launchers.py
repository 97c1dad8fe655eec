"""How processes are laid over nodes, and what each is told of the others."""

import json

import pytest

from runyard_runtime import launch, wire

HOSTS = [
    launch.Host("10.0.0.1", "one", (20001, 20002, 20003, 20004)),
    launch.Host("10.0.0.2", "two", (20011, 20012, 20013, 20014)),
    launch.Host("10.0.0.3", "three", (20021, 20022, 20023, 20024)),
]
JOB = {
    "run_id": "r1",
    "token": "secret",
    "workspace": "ws",
    "experiment": "exp",
    "url": "http://127.0.0.1:1",
    "attempt": 2,
    "interpreter": "/envs/one/bin/python",
    "arguments": ["train.py"],
    "runtime": "/runtime",
}


def planned(
    kind: str, hosts: object = None, *, job: object = (), **numbers: object
) -> list[launch.Process]:
    launcher = {"kind": kind, **numbers}
    there = HOSTS[: int(str(numbers.get("nodes", 1)))] if hosts is None else hosts
    processes: list[launch.Process] = launch.plan(
        {**JOB, "launcher": launcher, **dict(job)},  # type: ignore[call-overload]
        "/jobs/k",
        there,
        {"PATH": "/usr/bin"},
    )
    return processes


def told(processes: list[launch.Process], *names: str) -> list[tuple[str | None, ...]]:
    return [tuple(one.env.get(name) for name in names) for one in processes]


def places(processes: list[launch.Process]) -> list[tuple[int, int, int]]:
    return [(one.node, one.rank, one.local_rank) for one in processes]


def logs(processes: list[launch.Process]) -> list[str]:
    return [one.log.replace("azureml-logs/70_driver_log", "") for one in processes]


# Ranks that are all alike: MPI and PyTorch.


@pytest.mark.parametrize("kind", ["mpi", "pytorch"])
@pytest.mark.parametrize(
    ("nodes", "per_node", "expected"),
    [
        (1, 1, [(0, 0, 0)]),
        (1, 3, [(0, 0, 0), (0, 1, 1), (0, 2, 2)]),
        (3, 1, [(0, 0, 0), (1, 1, 0), (2, 2, 0)]),
        (2, 2, [(0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1)]),
    ],
)
def test_ranks_are_numbered_node_by_node(
    kind: str, nodes: int, per_node: int, expected: list[tuple[int, int, int]]
) -> None:
    processes = planned(kind, nodes=nodes, processes_per_node=per_node)
    assert places(processes) == expected
    assert not any(one.serves for one in processes)
    lone = len(expected) == 1
    assert logs(processes) == [".txt" if lone else f"_{rank}.txt" for _, rank, _ in expected]
    assert told(processes, wire.RANK) == [(str(rank),) for _, rank, _ in expected]
    seconds = [None if rank == 0 else "True" for _, rank, _ in expected]
    assert told(processes, wire.SECONDARY_INSTANCE) == [(one,) for one in seconds]


def test_mpi_sets_what_both_families_of_mpi_set() -> None:
    processes = planned("mpi", nodes=2, processes_per_node=2)
    place = [("0", "4", "0", "2"), ("1", "4", "1", "2"), ("2", "4", "0", "2"), ("3", "4", "1", "2")]
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    assert told(processes, *("OMPI_COMM_WORLD_" + one for one in names)) == place
    intel = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    assert told(processes, *intel) == place
    assert told(processes, "AZUREML_CR_NODE_RANK") == [("0",), ("0",), ("1",), ("1",)]


def test_mpi_names_the_master_and_all_nodes_in_v1s_variables() -> None:
    env = planned("mpi", nodes=2)[1].env
    assert env["AZ_BATCH_MASTER_NODE"] == "10.0.0.1:20001"
    assert env["AZ_BATCHAI_MPI_MASTER_NODE"] == "10.0.0.1"
    assert env["AZ_BATCHAI_JOB_MASTER_NODE_IP"] == "10.0.0.1"
    assert env["AZ_BATCH_HOST_LIST"] == "10.0.0.1,10.0.0.2"
    assert env["AZ_BATCH_NODE_LIST"] == "10.0.0.1;10.0.0.2"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20001")


def test_pytorch_sets_v1s_variables_and_torchruns() -> None:
    processes = planned("pytorch", nodes=2, processes_per_node=2, backend="gloo")
    assert told(processes, "RANK", "LOCAL_RANK", "NODE_RANK", "AZ_BATCHAI_TASK_INDEX") == [
        ("0", "0", "0", "0"),
        ("1", "1", "0", "1"),
        ("2", "0", "1", "2"),
        ("3", "1", "1", "3"),
    ]
    same = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert set(told(processes, *same)) == {("4", "2", "10.0.0.1", "20001")}


@pytest.mark.parametrize(
    ("job", "method"),
    [
        ({}, "file:///jobs/k/rendezvous-2"),
        ({"board": "folder", "attempt": 3}, "file:///jobs/k/rendezvous-3"),
        ({"board": "server"}, "tcp://10.0.0.1:20001"),
    ],
)
def test_pytorch_ranks_meet_in_a_fresh_file_where_they_share_a_folder(
    job: dict[str, object], method: str
) -> None:
    processes = planned("pytorch", nodes=2, job=job)
    assert set(told(processes, "AZ_BATCHAI_PYTORCH_INIT_METHOD")) == {(method,)}


# TensorFlow.


def config_of(process: launch.Process) -> object:
    return json.loads(process.env["TF_CONFIG"])


def test_tf_config_of_workers_has_no_parameter_servers_at_all() -> None:
    processes = planned("tensorflow", nodes=2, workers=2, parameter_servers=0)
    cluster = {"worker": ["10.0.0.1:20001", "10.0.0.2:20011"]}
    assert [config_of(one) for one in processes] == [
        {"cluster": cluster, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        for index in (0, 1)
    ]
    assert told(processes, "AZ_BATCHAI_TASK_TYPE", "AZ_BATCHAI_TASK_INDEX") == [
        ("worker", "0"),
        ("worker", "1"),
    ]
    assert told(processes, "AZUREML_CR_NODE_RANK") == [("0",), ("1",)]
    assert logs(processes) == ["_worker_0.txt", "_worker_1.txt"]


def test_tf_config_with_parameter_servers_names_all_tasks_and_they_come_last() -> None:
    processes = planned("tensorflow", nodes=2, workers=2, parameter_servers=1)
    cluster = {"worker": ["10.0.0.1:20001", "10.0.0.2:20011"], "ps": ["10.0.0.1:20002"]}
    assert config_of(processes[2]) == {
        "cluster": cluster,
        "task": {"type": "ps", "index": 0},
        "environment": "cloud",
    }
    assert places(processes) == [(0, 0, 0), (1, 1, 0), (0, 2, 1)]
    assert [one.serves for one in processes] == [False, False, True]
    assert logs(processes) == ["_worker_0.txt", "_worker_1.txt", "_ps_0.txt"]


@pytest.mark.parametrize(
    ("nodes", "workers", "servers", "on_nodes"),
    [
        (1, 1, 0, [0]),
        (1, 2, 3, [0, 0, 0, 0, 0]),
        (2, 5, 0, [0, 1, 0, 1, 0]),
        (2, 2, 3, [0, 1, 0, 1, 0]),
        (3, 1, 1, [0, 0]),  # two nodes have nothing to do
    ],
)
def test_tasks_go_round_the_nodes_and_none_shares_a_port(
    nodes: int, workers: int, servers: int, on_nodes: list[int]
) -> None:
    numbers = {"nodes": nodes, "workers": workers, "parameter_servers": servers}
    launcher = {"kind": "tensorflow", **numbers}
    needed = [launch.ports_needed(launcher, node) for node in range(nodes)]
    assert needed == [on_nodes.count(node) for node in range(nodes)]
    hosts = [
        launch.Host(f"10.0.0.{node}", "n", tuple(range(20000, 20000 + count)))
        for node, count in enumerate(needed)
    ]
    processes = planned("tensorflow", hosts, **numbers)
    assert [one.node for one in processes] == on_nodes
    cluster = json.loads(processes[0].env["TF_CONFIG"])["cluster"]
    addresses = [address for kind in cluster.values() for address in kind]
    assert len(set(addresses)) == len(addresses) == len(on_nodes)
    assert logs(processes)[0] == (".txt" if len(on_nodes) == 1 else "_worker_0.txt")


# What they have in common.


@pytest.mark.parametrize(
    ("kind", "needed"), [("single", [0, 0]), ("mpi", [1, 0]), ("pytorch", [1, 0])]
)
def test_only_the_master_needs_a_port(kind: str, needed: list[int]) -> None:
    launcher = {"kind": kind, "nodes": 2, "processes_per_node": 4}
    assert [launch.ports_needed(launcher, node) for node in (0, 1)] == needed


@pytest.mark.parametrize(
    ("kind", "argument", "expected"),
    [
        ("pytorch", "${RANK}/$WORLD_SIZE", ["0/2", "1/2"]),
        ("pytorch", "--rank=$AZ_BATCHAI_TASK_INDEX", ["--rank=0", "--rank=1"]),
        ("mpi", "$OMPI_COMM_WORLD_RANK", ["0", "1"]),
        ("tensorflow", "$AZ_BATCHAI_TASK_TYPE", ["worker", "worker"]),
        ("mpi", "$RANK", ["$RANK", "$RANK"]),
    ],
)
def test_variables_in_arguments_are_each_ranks_own(
    kind: str, argument: str, expected: list[str]
) -> None:
    job = {"arguments": ["train.py", argument]}
    processes = planned(kind, job=job, nodes=2, workers=2)
    assert [one.argv[-1] for one in processes] == expected


@pytest.mark.parametrize(
    ("kind", "numbers", "gpus", "expected"),
    [
        # Scripts of these choose by local rank, so every rank sees all of its node.
        ("mpi", {"processes_per_node": 2}, ["4", "5"], ["4,5", "4,5"]),
        ("pytorch", {"processes_per_node": 2}, ["4", "5"], ["4,5", "4,5"]),
        ("pytorch", {"processes_per_node": 2}, [], ["", ""]),
        ("pytorch", {"processes_per_node": 2}, None, [None, None]),
        # TensorFlow takes all it sees, so every worker gets its own, and parameter servers none.
        ("tensorflow", {"workers": 2}, ["4", "5"], ["4", "5"]),
        ("tensorflow", {"workers": 2}, ["4", "5", "6", "7"], ["4,5", "6,7"]),
        ("tensorflow", {"workers": 3}, ["4", "5"], ["4", "4", "5"]),
        ("tensorflow", {"workers": 3}, ["4"], ["4", "4", "4"]),
        ("tensorflow", {"workers": 1, "parameter_servers": 1}, ["4", "5"], ["4,5", ""]),
        ("tensorflow", {"workers": 1, "parameter_servers": 1}, [], ["", ""]),
        ("tensorflow", {"workers": 1, "parameter_servers": 1}, None, [None, ""]),
    ],
)
def test_gpus_are_shared_as_the_framework_wants(
    kind: str, numbers: dict[str, int], gpus: list[str] | None, expected: list[str | None]
) -> None:
    job = {"gpus": None if gpus is None else [gpus]}
    processes = planned(kind, job=job, nodes=1, **numbers)
    assert told(processes, "CUDA_VISIBLE_DEVICES") == [(one,) for one in expected]


def test_ranks_of_a_node_see_its_gpus_and_not_the_other_nodes() -> None:
    processes = planned("mpi", job={"gpus": [["0"], ["1"]]}, nodes=2, processes_per_node=1)
    assert told(processes, "CUDA_VISIBLE_DEVICES") == [("0",), ("1",)]


def test_the_cores_of_a_node_are_divided_among_its_ranks() -> None:
    job = {"cores": [8, 1]}
    processes = planned("tensorflow", job=job, nodes=2, workers=2, parameter_servers=1)
    assert told(processes, "OMP_NUM_THREADS") == [("4",), ("1",), ("4",)]
    job["variables"] = {"OMP_NUM_THREADS": "3"}  # type: ignore[assignment]
    processes = planned("tensorflow", job=job, nodes=2, workers=2, parameter_servers=1)
    assert set(told(processes, "OMP_NUM_THREADS")) == {("3",)}


@pytest.mark.parametrize(
    ("kind", "job", "gloo", "nccl"),
    [
        ("pytorch", {"one_machine": True}, "lo", "lo"),
        ("mpi", {"one_machine": True}, "lo", "lo"),
        ("pytorch", {}, None, None),
        (
            "pytorch",
            {"one_machine": True, "variables": {"GLOO_SOCKET_IFNAME": "eth1"}},
            "eth1",
            "lo",
        ),
        ("single", {"one_machine": True}, None, None),  # a lone process meets nobody of ours
    ],
)
def test_ranks_of_one_machine_meet_on_its_loopback_unless_told_otherwise(
    kind: str, job: dict[str, object], gloo: str | None, nccl: str | None
) -> None:
    processes = planned(kind, job=job, nodes=2)
    assert set(told(processes, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")) == {(gloo, nccl)}


def test_users_variables_stay_but_a_ranks_place_is_not_theirs_to_set() -> None:
    job = {"variables": {"RANK": "7", "MASTER_ADDR": "elsewhere", "NCCL_DEBUG": "INFO"}}
    processes = planned("pytorch", job=job, nodes=2)
    assert told(processes, "RANK", "MASTER_ADDR", "NCCL_DEBUG") == [
        ("0", "10.0.0.1", "INFO"),
        ("1", "10.0.0.1", "INFO"),
    ]


def test_a_single_job_on_several_nodes_is_one_process_on_the_first() -> None:
    processes = planned("single", nodes=3)
    assert places(processes) == [(0, 0, 0)]
    assert logs(processes) == [".txt"]


@pytest.mark.parametrize(
    ("kind", "hosts", "numbers", "words"),
    [
        ("mpi", HOSTS[:1], {"nodes": 2}, "over 2 nodes, but the job has 1"),
        ("tensorflow", HOSTS[:1], {"nodes": 2, "workers": 2}, "over 2 nodes, but the job has 1"),
        ("mpi", HOSTS, {"nodes": 0}, "nodes to be a whole number from 1 on, not 0"),
        ("pytorch", HOSTS, {"processes_per_node": -1}, "processes_per_node .* not -1"),
        ("pytorch", HOSTS, {"processes_per_node": "2"}, "processes_per_node .* not '2'"),
        ("pytorch", HOSTS, {"processes_per_node": True}, "processes_per_node .* not True"),
        ("tensorflow", HOSTS, {"workers": 0}, "workers .* not 0"),
        ("tensorflow", HOSTS, {"parameter_servers": -1}, "parameter_servers .* from 0 on"),
        ("mpi", [launch.Host("10.0.0.1", "one", ())], {}, r"Node 0 \(10.0.0.1\) has 0 ports"),
        ("tensorflow", HOSTS[:1], {"workers": 5}, "has 4 ports"),
    ],
)
def test_what_cannot_be_laid_out_is_said_in_words(
    kind: str, hosts: list[launch.Host], numbers: dict[str, object], words: str
) -> None:
    with pytest.raises(launch.LauncherMismatch, match=words):
        planned(kind, hosts, **numbers)
    assert issubclass(launch.LauncherMismatch, launch.CannotLaunch)


@pytest.mark.parametrize(
    ("backend", "gpus", "machine_has_gpus", "is_warned"),
    [
        ("nccl", [["0"], []], True, True),
        ("nccl", [[], ["0"]], True, False),
        ("nccl", None, False, True),
        ("nccl", None, True, False),
        ("gloo", None, False, False),
        ("", [[], []], False, False),
    ],
)
def test_nccl_without_a_gpu_is_remarked_upon(
    backend: str, gpus: object, machine_has_gpus: bool, is_warned: bool
) -> None:
    job = {"launcher": {"kind": "pytorch", "backend": backend}, "gpus": gpus}
    said = launch.remarks(job, 1, machine_has_gpus)
    assert bool(said) == is_warned
    assert not said or "node 1 has no GPU" in said[0]
