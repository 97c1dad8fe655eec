"""What every process of a job is told to run, and with which variables."""

import os

import pytest

from runyard_runtime import launch, wire

JOB = {
    "run_id": "r1",
    "token": "secret",
    "agent_token": "the agent's alone",
    "workspace": "ws",
    "experiment": "exp",
    "subscription_id": "sub",
    "resource_group": "group",
    "url": "http://127.0.0.1:1",
    "address_file": "/home/address.json",
    "launcher": {"kind": "single"},
    "interpreter": "/envs/one/bin/python",
    "arguments": ["train.py", "--lr", "0.01"],
    "is_command": False,
    "variables": {},
    "runtime": "/runtime",
}
HOST = launch.Host("127.0.0.1", "here", ())
BASE = {"PATH": "/usr/bin", "HOME": "/home/me"}


def only(**changes: object) -> launch.Process:
    processes: list[launch.Process] = launch.plan(
        {**JOB, **changes}, "/jobs/k", [HOST], BASE, virtual_env=True, marker="k-1"
    )
    assert len(processes) == 1
    return processes[0]


def test_a_script_is_run_by_the_environments_interpreter() -> None:
    process = only()
    assert process.argv == ["/envs/one/bin/python", "train.py", "--lr", "0.01"]
    assert (process.node, process.rank, process.local_rank) == (0, 0, 0)


def test_v1s_variables_are_there() -> None:
    env = only().env
    assert env["AZUREML_RUN_ID"] == "r1"
    assert env["AZUREML_RUN_TOKEN"] == "secret"
    assert int(env["AZUREML_RUN_TOKEN_EXPIRY"]) > 2_000_000_000
    assert env["AZUREML_ARM_WORKSPACE_NAME"] == "ws"
    assert env["AZUREML_ARM_PROJECT_NAME"] == "exp"
    assert env["AZUREML_SERVICE_ENDPOINT"] == "http://127.0.0.1:1"
    assert env["AZUREML_OUTPUT_DIRECTORY"] == "/jobs/k/work/outputs"
    assert env[wire.JOB_DIR] == "/jobs/k"
    assert env[wire.JOB_KEY] == "k-1"
    assert env[wire.RANK] == "0"
    assert env[wire.ADDRESS_FILE] == "/home/address.json"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert wire.SECONDARY_INSTANCE not in env


def test_the_agents_token_is_not_for_the_ranks() -> None:
    process = only(prefix=["docker", "run", "{variables}"], remove=["docker", "rm"])
    assert "secret" in process.env.values()
    assert "the agent's alone" not in f"{process.argv} {process.env}"


def test_the_environments_programs_come_first() -> None:
    env = only(variables={"PATH": "/mine"}).env
    assert env["PATH"] == "/envs/one/bin" + os.pathsep + "/mine"
    assert env["VIRTUAL_ENV"] == "/envs/one"


def test_our_modules_come_first_and_the_source_tree_last() -> None:
    env = only(variables={"PYTHONPATH": "/lib/mine"}).env
    assert env["PYTHONPATH"].split(os.pathsep) == [
        "/runtime",
        "/runtime/runyard_runtime/shims",
        "/lib/mine",
        "/jobs/k/work",
    ]


def test_users_variables_win_over_the_machines_but_not_over_the_runs_own() -> None:
    env = only(variables={"HOME": "/other", "PYTHONUNBUFFERED": "", "AZUREML_RUN_ID": "forged"}).env
    assert env["HOME"] == "/other"
    assert env["PYTHONUNBUFFERED"] == ""
    assert env["AZUREML_RUN_ID"] == "r1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$DATA/x", "/data/x"),
        ("${DATA}x", "/datax"),
        ("$NOT_THERE ${NOR_THIS}", "$NOT_THERE ${NOR_THIS}"),
        ("$RUNYARD_RANK", "0"),
        ("100$", "100$"),
        ("$ {x}", "$ {x}"),
    ],
)
def test_known_variables_are_put_into_arguments(text: str, expected: str) -> None:
    assert only(arguments=["a.py", text], variables={"DATA": "/data"}).argv[2] == expected


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        (["python", "a.py", "two words"], ["python", "a.py", "two words"]),
        (["python a.py --x $HOME | tee log"], ["/bin/sh", "-c", "python a.py --x $HOME | tee log"]),
        (["nvidia-smi"], ["nvidia-smi"]),
        (["./tool", "$HOME"], ["./tool", "/home/me"]),
    ],
)
def test_a_command_is_run_as_it_is(arguments: list[str], argv: list[str]) -> None:
    assert only(arguments=arguments, is_command=True).argv == argv


def test_an_unknown_launcher_is_named_with_those_there_are() -> None:
    with pytest.raises(launch.UnknownLauncher, match=r"no launcher 'smoke'; .* single"):
        only(launcher={"kind": "smoke"})


@pytest.mark.parametrize(
    ("share", "threads", "gpus"),
    [
        ({}, None, None),
        ({"cores": [4], "gpus": [["2", "3"]]}, "4", "2,3"),
        ({"cores": [4], "gpus": [[]]}, "4", ""),
    ],
)
def test_ranks_are_kept_to_the_share_of_their_node(
    share: dict[str, object], threads: str | None, gpus: str | None
) -> None:
    env = only(**share).env
    assert env.get("OMP_NUM_THREADS") == threads
    assert env.get("CUDA_VISIBLE_DEVICES") == gpus


def test_the_users_own_number_of_threads_wins() -> None:
    assert only(cores=[4], variables={"OMP_NUM_THREADS": "1"}).env["OMP_NUM_THREADS"] == "1"
