"""A real PostgreSQL for tests: `postgres_url` is the URL of a fresh, empty database.

Needs PostgreSQL's own programs (`pg_ctl`, `initdb`); tests that ask for it are skipped without
them. One server a test session, on a Unix socket in a folder of its own, so that any number of
sessions run side by side.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

USER = "runyard"
OPTIONS = (
    "listen_addresses=''",  # the socket only: no ports to run out of
    "fsync=off",  # what is tested is our use of it, not its disk
    "max_connections=200",
    "shared_buffers=32MB",
)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder of the socket of a running server."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: there is no pg_ctl")
    # Not pytest's own folder: a socket's path may have 107 characters only.
    folder = Path(tempfile.mkdtemp(prefix="ry-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, *_ordinary_user())
        _run(
            programs / "initdb", "--auth=trust", f"--username={USER}", "--no-sync", folder / "data"
        )
        options = " ".join(f"-c {option}" for option in OPTIONS)
        control = (programs / "pg_ctl", "--wait", "--silent", "-D", folder / "data")
        _run(*control, "-l", folder / "log", "-o", f"-k {folder} {options}", "start")
        try:
            yield folder
        finally:
            _run(*control, "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres_server: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a fresh database, which is gone after the test."""
    with new_database(postgres_server) as url:
        yield url


@contextmanager
def new_database(server: Path, *, template: str = "template0") -> Iterator[str]:
    """The SQLAlchemy URL of a new database: an empty one, or a copy of the one at `template`."""
    name = f"test_{uuid.uuid4().hex}"
    source = template.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(
        host=str(server), user=USER, dbname="postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {source}".encode())
        yield f"postgresql+psycopg://{USER}@/{name}?host={server}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _programs() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them off PATH."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return kept[-1].parent if kept else None


def _run(*command: str | Path) -> None:
    """Run one of PostgreSQL's programs, which refuse to work for root."""
    root = os.geteuid() == 0
    user, group = _ordinary_user() if root else (None, None)
    done = subprocess.run(
        command,
        user=user,
        group=group,
        extra_groups=[] if root else None,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}")


def _ordinary_user() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid
