"""A store on each database."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runyard.stores import SqlStore, open_store
from runyard.testing.postgres import new_database

BACKENDS = ["sqlite", "postgresql"]


@pytest.fixture(scope="session", params=BACKENDS)
def prepared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a database that has its tables already: copying it is quicker than making them."""
    folder = tmp_path_factory.mktemp("prepared")
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{folder / 'prepared.db'}"
        else:
            server: Path = request.getfixturevalue("postgres_server")
            url = stack.enter_context(new_database(server))
        open_store(url, str(folder)).close()
        yield url


@pytest.fixture
def database_url(prepared: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if prepared.startswith("sqlite"):
        file = tmp_path / "with space" / "runyard.db"
        file.parent.mkdir()
        shutil.copy(prepared.removeprefix("sqlite:///"), file)
        yield f"sqlite:///{file}"
    else:
        server: Path = request.getfixturevalue("postgres_server")
        with new_database(server, template=prepared) as url:
            yield url


@pytest.fixture
def reopen(database_url: str, tmp_path: Path) -> Iterator[Callable[[], SqlStore]]:
    """Opens the same store each time it is called; all are closed after the test."""
    opened: list[SqlStore] = []

    def open_again() -> SqlStore:
        opened.append(open_store(database_url, str(tmp_path / "blobs")))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen: Callable[[], SqlStore]) -> SqlStore:
    """An empty store."""
    return reopen()
