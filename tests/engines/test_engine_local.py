"""The local engine: the promises of every engine, and what is its own."""

import stat
from pathlib import Path

import pytest

from runyard.domain.errors import Invalid
from runyard.engines import ENGINES
from runyard.engines.base import NodeGroup
from runyard.engines.local import LocalEngine, clean_environment
from runyard.testing.engine_suite import (
    DRIVER_LOG,
    Engines,
    EngineSuite,
    ended,
    job_group,
)
from runyard.testing.fake_server import FakeServer, wait_until


class TestLocalEngine(EngineSuite):
    @pytest.fixture
    def engines(self, tmp_path: Path) -> Engines:
        return lambda: LocalEngine(tmp_path / "jobs")


def test_the_table_has_the_local_engine(tmp_path: Path) -> None:
    assert ENGINES["local"](tmp_path).name == "local"


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


def _children() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}
