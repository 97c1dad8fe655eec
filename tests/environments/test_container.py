"""What container a spec gets, and what happens where it can have none."""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.environments import EnvironmentSpec
from runyard.domain.errors import EngineFailed, Unsupported
from runyard.environments import open_builders
from runyard.environments.base import builder_for
from runyard.environments.container import ContainerBuilder
from runyard.environments.container_engines import describe_engine
from runyard.environments.container_plan import (
    Engine,
    Inside,
    Mode,
    base_images,
    docker_options,
    remove_command,
    run_prefix,
    user_options,
    why_not,
)
from runyard_runtime import contained, launch

DOCKER = Engine(kind="docker", command=("docker",))
INSIDE = Inside(
    image="sha256:1", path="/bin", interpreter="/envs/k/bin/python", mounts=("/envs/k",)
)
RETIRED = "mcr.microsoft.com/azureml/openmpi3.1.2-ubuntu18.04:20210101"


def spec(**fields: Any) -> EnvironmentSpec:
    return EnvironmentSpec(**{"name": "test", **fields})


@pytest.mark.parametrize(
    ("wanted", "mode", "words"),
    [
        (spec(base_image="python:3.11"), "auto", ""),
        (spec(base_image="python:3.11"), "never", "never"),
        (spec(docker=True), "auto", "nobody chose an image"),
        (spec(docker=True), "require", ""),
        (spec(base_image=RETIRED), "auto", "retired"),
        (spec(base_image=RETIRED), "require", ""),
        (spec(base_dockerfile=f"FROM {RETIRED}\nRUN true"), "auto", "retired"),
        (spec(base_dockerfile="FROM debian"), "auto", ""),
    ],
)
def test_some_containers_are_not_even_tried(
    wanted: EnvironmentSpec, mode: Mode, words: str
) -> None:
    why = why_not(wanted, mode)
    assert words in why
    assert bool(why) == bool(words)


def test_the_images_a_dockerfile_starts_from() -> None:
    text = """
    ARG V=1
    FROM --platform=linux/amd64 debian:12 AS Base
    FROM base
    FROM scratch
    FROM python:${V}
    from ubuntu
    """
    assert base_images(text) == ["debian:12", "ubuntu"]


def test_limits_are_passed_on_in_one_spelling() -> None:
    given = [
        "--memory=4g",
        "--cpus",
        "2",
        "-m 8g",
        "-e 'A=b c'",
        "--gpus all",
        "--rm",
        "--ipc=host",
    ]
    assert docker_options(given) == ("--memory=4g", "--cpus=2", "--memory=8g", "--env=A=b c")


@pytest.mark.parametrize(
    "bad", ["--privileged", "-v /:/host", "--cap-add=ALL", "--device /dev/sda"]
)
def test_what_would_reach_beyond_the_container_is_refused(bad: str) -> None:
    with pytest.raises(Unsupported, match="cannot be passed on"):
        docker_options([bad])


def test_whom_the_processes_inside_are() -> None:
    assert user_options(DOCKER, 0, 0) == ("--user=0:0",)
    assert "--user=1000:100" in user_options(DOCKER, 1000, 100)
    rootless = Engine(kind="docker", command=("docker",), rootless=True)
    assert user_options(rootless, 1000, 100) == ("--user=0:0",), "its root is the user outside"
    podman = Engine(kind="podman", command=("podman",), rootless=True)
    assert user_options(podman, 1000, 100)[:2] == ("--userns=keep-id", "--user=1000:100")


def test_gpus_and_shared_memory_are_the_machines_unless_said_otherwise() -> None:
    gpu = Engine(kind="docker", command=("docker",), gpus=("--gpus=all",))
    words = run_prefix(gpu, INSIDE, spec(), 0, 0)
    assert "--gpus=all" in words
    assert "--ipc=host" in words
    words = run_prefix(gpu, INSIDE, spec(shm_size="8g"), 0, 0)
    assert "--shm-size=8g" in words
    assert "--ipc=host" not in words
    words = run_prefix(gpu, INSIDE, spec(docker_arguments=("--shm-size 2g",)), 0, 0)
    assert "--ipc=host" not in words


def test_a_rank_starts_in_its_container_and_its_secrets_stay_off_the_command_line() -> None:
    job = {
        "run_id": "r",
        "token": "hush",
        "workspace": "w",
        "experiment": "e",
        "url": "http://127.0.0.1",
        "runtime": "/the/runtime",
        "launcher": {"kind": "single"},
        "interpreter": INSIDE.interpreter,
        "arguments": ["train.py"],
        "variables": {"KEY": "hush", "PATH": "/mine"},
        "prefix": run_prefix(DOCKER, INSIDE, spec(), 7, 8),
        "remove": remove_command(DOCKER),
        "cache": "/the/cache",
    }
    base = {"PATH": "/usr/bin", "HOME": "/home/me", "https_proxy": "p"}
    (rank,) = launch.plan(job, "/jobs/j", [launch.Host("127.0.0.1", "here", ())], base, True, "j-1")
    assert "hush" not in " ".join(rank.argv)
    assert rank.env["KEY"] == "hush"
    assert rank.argv[-2:] == [INSIDE.interpreter, "train.py"]
    for word in (
        "--name=runyard-j-1-0",
        "--mount=type=bind,source=/jobs/j,target=/jobs/j",
        "--mount=type=bind,source=/the/runtime,target=/the/runtime,readonly",
        "--mount=type=bind,source=/the/cache,target=/the/cache",
        "--mount=type=bind,source=/envs/k,target=/envs/k,readonly",
        "--workdir=/jobs/j/work",
        "--env=KEY",
        "--env=PATH",
        "--env=AZUREML_RUN_TOKEN",
        "--env=https_proxy",
        "--env=PATH=/envs/k/bin:/bin",
    ):
        assert word in rank.argv
    assert "--env=HOME" not in rank.argv, "the image has its own"
    assert not [word for word in rank.argv if "{" in word]


def test_without_a_container_nothing_stands_before_the_command() -> None:
    assert contained.wrap({"runtime": "/r"}, "/j", "n", {}, ["python", "x"]) == ["python", "x"]
    contained.remove({}, "marker", [0])


@pytest.mark.parametrize(
    ("told", "variables", "kind"),
    [
        ({"ServerVersion": "20.10"}, {}, "docker"),
        ({"ServerErrors": ["cannot connect"]}, {}, None),
        ({"ServerVersion": "20.10"}, {"DOCKER_HOST": "tcp://elsewhere:2375"}, None),
        ({"ServerVersion": "20.10"}, {"DOCKER_HOST": "unix:///run/d.sock"}, "docker"),
        ({"host": {"security": {"rootless": True}}}, {}, "podman"),
        ({"host": {"serviceIsRemote": True}}, {}, None),
        ([], {}, None),
    ],
)
def test_only_an_engine_of_this_machine_will_do(
    told: object, variables: dict[str, str], kind: str | None
) -> None:
    engine = describe_engine("/usr/bin/docker", told, variables)
    assert (engine and engine.kind) == kind
    if engine is not None and variables:
        assert "DOCKER_HOST=unix:///run/d.sock" in engine.command


# ---- without a container ----------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, offline: dict[str, str]) -> dict[str, str]:
    """A machine whose docker answers, has no image, and hangs when it is to pull one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "docker"
    script.write_text(
        f"""#!{sys.executable}
import sys, time
with open({str(tmp_path / "asked")!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "info":
    print('{{"ServerVersion": "1"}}')
elif sys.argv[1] == "pull":
    print("Trying ...", flush=True)
    time.sleep(600)
else:
    sys.exit(1)
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {**offline, "PATH": f"{folder}:{os.path.dirname(sys.executable)}"}


def open_container_builder(
    tmp_path: Path, environ: dict[str, str], mode: Mode = "auto"
) -> ContainerBuilder:
    (builder,) = [
        one
        for one in open_builders(tmp_path / "environments", environ, mode)
        if isinstance(one, ContainerBuilder)
    ]
    return builder


@pytest.mark.parametrize("image", [None, RETIRED])
def test_retired_images_cost_no_time_and_stop_nobody(
    tmp_path: Path, fake: dict[str, str], image: str | None
) -> None:
    builder = open_container_builder(tmp_path, fake)
    wanted = spec(docker=True, base_image=image, pip=("tiny",))
    lines: list[str] = []
    use = builder.build(wanted, lines.append)
    assert use.lock == ("tiny==2.0",)
    assert use.prefix == ()
    assert "without a container" in use.notes[0]
    assert use.notes[0] in lines
    assert builder.ready(wanted) == use
    assert not (tmp_path / "asked").exists(), "docker was not even asked"


def test_a_registry_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, fake: dict[str, str]
) -> None:
    others = open_builders(tmp_path / "environments", fake)[1:]
    builder = ContainerBuilder(tmp_path / "environments", fake, "auto", others, pull_seconds=0.5)
    wanted = spec(base_image="python:3.11", pip=("tiny",))
    use = builder.build(wanted, print)
    assert "no answer within 0.5 seconds" in use.notes[0]
    assert builder.ready(wanted) == use
    assert (tmp_path / "asked").read_text().count("pull python:3.11") == 1


def test_without_an_engine_the_run_goes_on_and_says_so(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    bare = {**offline, "PATH": os.path.dirname(sys.executable)}
    wanted = spec(base_image="python:3.11", user_managed=True, interpreter=sys.executable)
    use = open_container_builder(tmp_path, bare).build(wanted, print)
    assert use.interpreter == sys.executable
    assert "there is no docker and there is no podman" in use.notes[0]


def test_require_insists(tmp_path: Path, offline: dict[str, str]) -> None:
    bare = {**offline, "PATH": os.path.dirname(sys.executable)}
    builder = open_container_builder(tmp_path, bare, "require")
    with pytest.raises(EngineFailed) as failure:
        builder.build(spec(docker=True, pip=("tiny",)), print)
    assert "there is no docker" in failure.value.why
    assert "RUNYARD_CONTAINERS=auto" in failure.value.fix


def test_never_means_never(tmp_path: Path, fake: dict[str, str]) -> None:
    builder = open_container_builder(tmp_path, fake, "never")
    use = builder.build(spec(base_image="python:3.11", pip=("tiny",)), print)
    assert use.prefix == ()
    assert not (tmp_path / "asked").exists()


def test_specs_without_a_word_of_containers_go_elsewhere(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    builders = open_builders(tmp_path, offline)
    assert not isinstance(builder_for(spec(pip=("tiny",)), builders), ContainerBuilder)
    assert isinstance(builder_for(spec(docker=True), builders), ContainerBuilder)


def test_specs_that_differ_in_limits_do_not_share_a_key(
    tmp_path: Path, offline: dict[str, str]
) -> None:
    builder = open_container_builder(tmp_path, offline)
    one = spec(base_image="a", pip=("tiny",))
    assert builder.key(one) == builder.key(spec(name="other", base_image="a", pip=("tiny",)))
    limited = spec(base_image="a", pip=("tiny",), docker_arguments=("--cpus=1",))
    assert builder.key(one) != builder.key(limited)


def test_a_failed_removal_is_nothing(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:])); sys.exit(1)"
    job = {"remove": [sys.executable, "-c", script, str(tmp_path / "said"), "rm", "--force"]}
    contained.remove(job, "mark", [0, 1])
    assert (tmp_path / "said").read_text() == "rm --force runyard-mark-0 runyard-mark-1"
    contained.remove({"remove": ["/no/such/program"]}, "mark", [0])


def test_docker_arguments_with_an_open_quote_are_refused_in_words() -> None:
    with pytest.raises(Unsupported, match="cannot be read"):
        docker_options(["-e 'A"])
