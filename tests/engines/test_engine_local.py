"""The local engine: the promises of every engine, and what is its own."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runyard.domain.compute import CLUSTERS
from runyard.domain.errors import EngineFailed, Invalid
from runyard.engines import ENGINES
from runyard.engines.base import JobId, JobPhase, NodeGroup
from runyard.engines.job_folders import clean_environment
from runyard.engines.local import LocalEngine
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    FOREVER,
    Engines,
    EngineSuite,
    ended,
    job_group,
    log_of,
    says,
)
from runyard.testing.fake_server import FakeServer, wait_until
from runyard_runtime import processes


class TestLocalEngine(EngineSuite):
    counts_resources = False

    @pytest.fixture
    def engines(self, tmp_path: Path) -> Engines:
        return lambda: LocalEngine(tmp_path / "jobs")


def test_the_table_has_the_local_engine(tmp_path: Path) -> None:
    assert ENGINES["local"](tmp_path, {}, {}).name == "local"
    assert set(ENGINES) == {"local", *CLUSTERS}


@pytest.mark.parametrize("key", ["", "..", "a/b", "-x", "a b", "a\nb", "x" * 300])
def test_a_key_that_is_no_folder_name_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(Invalid, match="cannot be the key"):
        LocalEngine(tmp_path).start(NodeGroup(key=key, plan=b"{}"))


def test_the_plan_is_for_its_owner_only(tmp_path: Path) -> None:
    with FakeServer() as server:
        engine = LocalEngine(tmp_path)
        ended(engine, engine.start(job_group(server, "")))
    assert stat.S_IMODE((tmp_path / "job" / "plan.json").stat().st_mode) == 0o600


def test_jobs_do_not_inherit_the_servers_environment(tmp_path: Path) -> None:
    seen = {
        "PATH": "/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SECRET": "x",
        "LC_ALL": "C.UTF-8",
    }
    with FakeServer() as server:
        engine = LocalEngine(tmp_path, environ=seen)
        code = "import os; print(sorted(os.environ))"
        ended(engine, engine.start(job_group(server, code, variables={"MINE": "1"})))
        names = server.log(DRIVER_LOG)
    assert "'LC_ALL'" in names
    assert "'MINE'" in names
    assert "SECRET" not in names
    assert "DONTWRITE" not in names


def test_proxies_and_certificates_are_passed_on() -> None:
    kept = {"https_proxy": "p", "NO_PROXY": "q", "SSL_CERT_FILE": "c", "CUDA_VISIBLE_DEVICES": "0"}
    assert clean_environment({**kept, "PYTHONPATH": "x", "RUNYARD_JOB_KEY": "y"}) == kept


def test_the_engine_leaves_no_zombies(tmp_path: Path) -> None:
    before = _children()
    with FakeServer() as server:
        engine = LocalEngine(tmp_path)
        job = engine.start(job_group(server, ""))
        ended(engine, job)
        engine.forget(job)
        wait_until(lambda: not engine.poll([]) and not _children() - before)


@pytest.fixture
def ordinary_folder() -> Iterator[Path]:
    """A folder of an ordinary user, who this process is meanwhile: root may remove anything."""
    folder = Path(tempfile.mkdtemp(prefix="ry-engine-"))
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(folder, user, -1)
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield folder
    finally:
        os.seteuid(before)
        shutil.rmtree(folder)


def test_folders_that_a_script_closed_are_removed_too(ordinary_folder: Path) -> None:
    elsewhere = ordinary_folder / "elsewhere"
    elsewhere.mkdir(mode=0o500)
    closed = ordinary_folder / "jobs" / "job" / "work" / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "link").symlink_to(elsewhere)
    (closed / "inner" / "file").touch()
    (closed / "inner").chmod(0o000)
    closed.chmod(0o500)
    LocalEngine(ordinary_folder / "jobs").forget(JobId("job"))
    assert not (ordinary_folder / "jobs" / "job").exists()
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o500


def _children() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def test_a_kill_that_leaves_something_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What hangs in the kernel cannot be made here: another's process stands for it.
    with FakeServer() as server:
        engine = LocalEngine(tmp_path)
        job = engine.start(job_group(server, FOREVER))
        says(server, "running")
        with monkeypatch.context() as patch:
            patch.setattr(processes, "send", lambda pid, number: None)
            patch.setattr(processes, "_KILL_PATIENCE", 0.0)
            with pytest.raises(EngineFailed, match="Processes of job 'job' could not be ended"):
                engine.kill(job)
        engine.kill(job)
        assert engine.poll([job])[job].phase is JobPhase.GONE


@pytest.mark.parametrize("kind", ["pytorch", "mpi"])
def test_a_kill_removes_the_containers_of_the_job(tmp_path: Path, kind: str) -> None:
    removed = tmp_path / "removed"
    changes: dict[str, Any] = {
        "launcher": {"kind": kind, "nodes": 1, "processes_per_node": 2},
        "prefix": ["/usr/bin/env", "NAME={name}"],
        "remove": ["/bin/sh", "-c", f'echo "$@" >> {removed}', "remove"],
    }
    with FakeServer() as server:
        engine = LocalEngine(tmp_path / "jobs")
        job = engine.start(job_group(server, "import os\n" + FOREVER, **changes))
        says(server, "running", log_of(0))
        says(server, "running", log_of(1))
        removed.unlink(missing_ok=True)
        engine.kill(job)
    marker = processes.job_marker(str(tmp_path / "jobs" / "job"))
    names = {f"runyard-{marker}-{end}" for end in ("0", "1", "mpi-0")}
    assert set(removed.read_text().split()) == names
