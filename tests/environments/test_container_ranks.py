"""Ranks in real containers: podman with a store of its own, and a docker daemon of its own.

The image is made here: the running Python, a shell and the libraries of both; no registry needed.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from runyard.domain.environments import EnvironmentSpec, EnvironmentUse
from runyard.domain.errors import EngineFailed
from runyard.engines.base import JobPhase
from runyard.engines.local import LocalEngine
from runyard.environments import open_builders
from runyard.environments.base import builder_for
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    ended,
    job_group,
    lives,
    printed_pids,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until

IMAGE = "runyard-test/python:1"
PYTHON = ".".join(str(part) for part in sys.version_info[:3])
MINOR = ".".join(str(part) for part in sys.version_info[:2])
_LEFT_OUT = {
    *("test", "tests", "idlelib", "lib2to3", "tkinter", "turtledemo", "pydoc_data"),
    *("ensurepip", "site-packages", "dist-packages", "__pycache__"),
}
_CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "{runtime}"
tmp_dir = "{folder}/tmp"
"""
_STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""


def make_image(target: Path) -> Path:
    """A file system with this Python, a shell, and what they are linked to."""
    base, shell = Path(sys.base_prefix), Path("/bin/sh")
    program = base / "bin" / f"python{MINOR}"
    library = base / "lib" / f"python{MINOR}"
    inside: dict[str, Path] = {"bin/sh": shell, f"usr/bin/python{MINOR}": program}
    for parent, folders, names in os.walk(library):
        folders[:] = [
            name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")
        ]
        for name in names:
            inside[str("usr" / (Path(parent) / name).relative_to(base))] = Path(parent) / name
    linked = [str(shell), str(program), uv.find_uv_bin()]
    linked += map(str, (library / "lib-dynload").glob("*.so"))
    told = subprocess.run(["ldd", *linked], capture_output=True, text=True, check=True).stdout
    words = (word for line in told.splitlines() for word in line.split())
    for word in words:
        if word.startswith("/") and not word.endswith(":"):
            inside[word.lstrip("/")] = Path(word)
    with tarfile.open(target, "w") as archive:
        for name, path in inside.items():
            archive.add(path.resolve(), arcname=name)
        link = tarfile.TarInfo("usr/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, f"python{MINOR}"
        archive.addfile(link)
        temporary = tarfile.TarInfo("tmp")
        temporary.type, temporary.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(temporary)
    return target


def call(environ: dict[str, str], *words: str) -> str:
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{words} failed")
    return done.stdout


@pytest.fixture(scope="session")
def image_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_image(tmp_path_factory.mktemp("image") / "python.tar")


@contextlib.contextmanager
def podman(folder: Path) -> Iterator[dict[str, str]]:
    runtime = next((name for name in ("runc", "crun") if shutil.which(name)), "runc")
    (folder / "containers.conf").write_text(_CONTAINERS_CONF.format(folder=folder, runtime=runtime))
    (folder / "storage.conf").write_text(_STORAGE_CONF.format(folder=folder))
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "DOCKER_HOST": f"unix://{folder}/there-is-no-docker",
    }
    try:
        yield environ
    finally:
        for words in (("rm", "--force", "--all"), ("rmi", "--force", "--all")):
            subprocess.run(["podman", *words], env=environ, capture_output=True, check=False)


@contextlib.contextmanager
def docker(folder: Path) -> Iterator[dict[str, str]]:
    socket = f"unix://{folder}/docker.sock"
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "DOCKER_HOST": socket,
    }
    options = ["--storage-driver=overlay2", "--iptables=false", "--bridge=none", f"--host={socket}"]
    options += [f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    options += [f"--pidfile={folder}/pid", "--default-ulimit=nofile=1024:1024"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            ["dockerd", *options], stdout=log, stderr=log, start_new_session=True
        ) as daemon,
    ):
        try:
            wait_until(lambda: (folder / "docker.sock").exists() or daemon.poll() is not None)
            yield environ
        finally:
            daemon.terminate()


@pytest.fixture(scope="session", params=[podman, docker], ids=lambda make: make.__name__)
def engine_environ(request: pytest.FixtureRequest, image_file: Path) -> Iterator[dict[str, str]]:
    """The variables under which an engine answers that has the image."""
    kind = request.param.__name__
    program = {"podman": "podman", "docker": "dockerd"}[kind]
    if os.getuid() != 0 or shutil.which(program) is None:
        pytest.skip(f"no {kind} can be started here: it takes root and an installed {program}")
    # A short path, because sockets are made in it.
    folder = Path(tempfile.mkdtemp(prefix="runyard-engine-"))
    try:
        with request.param(folder) as environ:
            try:
                change = "--change=ENV PATH=/usr/bin:/bin"
                call(environ, kind, "import", change, str(image_file), IMAGE)
                call(environ, kind, "run", "--rm", "--network=host", IMAGE, "/bin/sh", "-c", "true")
            except RuntimeError as error:
                pytest.skip(f"{kind} does not work here: {error}")
            yield {**environ, "ENGINE": kind}
    finally:
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(f"{folder}/"):
                subprocess.run(["umount", "--lazy", line.split()[1]], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def environ(engine_environ: dict[str, str], offline: dict[str, str]) -> dict[str, str]:
    return {**offline, **engine_environ}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "address.json") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(tmp_path / "jobs")
    yield engine
    for job in engine.jobs():
        engine.kill(job)


def build(tmp_path: Path, environ: dict[str, str], spec: EnvironmentSpec) -> EnvironmentUse:
    builders = open_builders(tmp_path / "environments", environ, "require")
    return builder_for(spec, builders).build(spec, print)


def plan_of(use: EnvironmentUse) -> dict[str, Any]:
    return {"interpreter": use.interpreter, "prefix": use.prefix, "remove": use.remove}


def containers(environ: dict[str, str]) -> list[str]:
    return call(environ, environ["ENGINE"], "ps", "--all", "--quiet").split()


def spec(**fields: object) -> EnvironmentSpec:
    return EnvironmentSpec(**{"name": "test", "base_image": IMAGE, **fields})  # type: ignore[arg-type]


def test_the_image_s_own_python_runs_the_script_and_everything_is_kept(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    use = build(tmp_path, environ, spec(user_managed=True, interpreter=sys.executable))
    assert (use.interpreter, use.python) == ("/usr/bin/python3", PYTHON)
    assert any(environ["ENGINE"] in note for note in use.notes)

    code = """
import os, sys
print(sys.prefix, os.getcwd() == os.path.join(os.environ["RUNYARD_JOB_DIR"], "work"))
print("host" if os.path.exists("/usr/bin/apt") else "image")
print(os.environ["SECRET"], repr(os.environ["LINES"]), os.getuid())
from azureml.core import Run
Run.get_context().log("loss", 0.5)
open("outputs/model.bin", "wb").write(b"weights")
sys.exit(3)
"""
    variables = {"SECRET": "hush", "LINES": "one\ntwo"}
    group = job_group(server, code, variables=variables, **plan_of(use))
    assert ended(engine, engine.start(group)).exit_code == 3
    lines = server.log(DRIVER_LOG).splitlines()
    assert lines[0] == "/usr True"
    assert lines[1:] == ["image", f"hush 'one\\ntwo' {os.getuid()}"]
    assert b'"loss"' in server.stream("events", "0.jsonl")
    assert server.file("outputs/model.bin") == b"weights"
    owner = (tmp_path / "jobs" / "job" / "work" / "outputs" / "model.bin").stat().st_uid
    assert owner == os.getuid()
    assert containers(environ) == []


def test_packages_are_installed_for_the_image_and_kept(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    wanted = spec(pip=("user", "azureml-defaults"), python=MINOR)
    use = build(tmp_path, environ, wanted)
    assert use.lock == ("tiny==1.0", "user==1.0")
    code = "import sys, user, tiny\nprint(user.version, tiny.version, sys.base_prefix)"
    group = job_group(server, code, **plan_of(use))
    assert ended(engine, engine.start(group)).exit_code == 0, server.log(DRIVER_LOG)
    assert server.log(DRIVER_LOG) == "1.0 1.0 /usr\n"

    lines: list[str] = []
    builders = open_builders(tmp_path / "environments", environ, "require")
    assert builder_for(wanted, builders).build(wanted, lines.append) == use
    assert not any("resolved" in line.lower() for line in lines), "it was built before"
    assert builder_for(wanted, builders).ready(wanted) == use


def test_a_command_finds_the_programs_of_the_environment(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    use = build(tmp_path, environ, spec(pip=("tiny",)))
    command = ["python -c 'import tiny; print(tiny.version)' && echo over"]
    group = job_group(server, "", arguments=command, is_command=True, **plan_of(use))
    assert ended(engine, engine.start(group)).exit_code == 0
    assert server.log(DRIVER_LOG) == "2.0\nover\n"


def test_a_dockerfile_is_built_once(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    text = f'FROM {IMAGE}\nENV COLOR=green\nRUN echo made > /made\nENTRYPOINT ["/nothing"]\n'
    wanted = spec(base_image=None, base_dockerfile=text, user_managed=True)
    use = build(tmp_path, environ, wanted)
    lines: list[str] = []
    builders = open_builders(tmp_path / "environments", environ, "require")
    assert builder_for(wanted, builders).build(wanted, lines.append) == use
    assert not any("RUN" in line for line in lines)
    code = "import os; print(os.environ['COLOR'], open('/made').read())"
    ended(engine, engine.start(job_group(server, code, **plan_of(use))))
    assert server.log(DRIVER_LOG).split() == ["green", "made"]


def test_limits_are_applied(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    limits = ("--memory=200m", "--cpus 1", "-e COLOR=red")
    use = build(tmp_path, environ, spec(user_managed=True, docker_arguments=limits, shm_size="48m"))
    code = """
import os
print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize >> 20)
print(os.environ["COLOR"])
hog = bytearray(400 << 20)
print("not limited")
"""
    assert ended(engine, engine.start(job_group(server, code, **plan_of(use)))).exit_code != 0
    assert server.log(DRIVER_LOG).split()[:2] == ["48", "red"]
    assert "not limited" not in server.log(DRIVER_LOG)
    assert containers(environ) == []


def test_stop_lets_the_script_end_and_leaves_no_container(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    use = build(tmp_path, environ, spec(user_managed=True))
    job = engine.start(job_group(server, FOREVER, **plan_of(use)))
    says(server, "running")
    assert len(containers(environ)) == 1
    engine.stop(job)
    assert ended(engine, job).exit_code != 0
    assert server.report("finished")["stopped"] is True
    assert containers(environ) == []


def test_a_script_that_will_not_end_is_killed_and_leaves_no_container(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    use = build(tmp_path, environ, spec(user_managed=True))
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print("pids", os.getpid(), child, flush=True)
time.sleep(600)
"""
    job = engine.start(job_group(server, code, grace_seconds=0.5, **plan_of(use)))
    pids = printed_pids(server)
    engine.stop(job)
    ended(engine, job)
    wait_until(lambda: not any(lives(pid) for pid in pids))
    wait_until(lambda: containers(environ) == [])


def test_kill_leaves_no_container(
    tmp_path: Path, environ: dict[str, str], engine: LocalEngine, server: FakeServer
) -> None:
    use = build(tmp_path, environ, spec(user_managed=True))
    code = "import os\nprint('pids', os.getpid(), flush=True)\n" + FOREVER
    job = engine.start(job_group(server, code, **plan_of(use)))
    pids = printed_pids(server)
    engine.kill(job)
    wait_until(lambda: not any(lives(pid) for pid in pids))
    wait_until(lambda: containers(environ) == [])
    assert engine.poll([job])[job].phase is JobPhase.GONE


def test_an_image_that_nobody_has_does_not_stop_a_run(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    wanted = spec(base_image="127.0.0.1:9/no/such:1", pip=("tiny",))
    lines: list[str] = []
    builder = builder_for(wanted, open_builders(tmp_path / "environments", environ))
    use = builder.build(wanted, lines.append)
    assert use.prefix == ()
    assert "tiny==2.0" in use.lock
    assert any("cannot be pulled" in note for note in use.notes)
    assert any("cannot be pulled" in line for line in lines)
    assert builder.ready(wanted) == use, "the next run does not ask again"

    with pytest.raises(EngineFailed, match="cannot be had"):
        build(tmp_path, environ, wanted)


def test_a_python_that_the_image_lacks_is_not_replaced_by_another(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with pytest.raises(EngineFailed) as failure:
        build(tmp_path, environ, spec(pip=("tiny",), python="3.99"))
    assert f"no Python 3.99, only {PYTHON}" in failure.value.why
