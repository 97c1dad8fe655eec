"""One real embedded server for the stories of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runyard.sdk import embedded
from runyard.sdk.session import open_session
from runyard.sdk.workspace import Workspace
from runyard.settings import load_settings


@pytest.fixture(scope="session")
def cluster_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home folder of a server that is started when it is first needed."""
    home = tmp_path_factory.mktemp("home")
    settings = load_settings({"RUNYARD_HOME": str(home), "RUNYARD_SAMPLE_SECONDS": "0"})
    yield home
    open_session(settings).client.close()
    embedded.stop(settings)


@pytest.fixture
def ws(cluster_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace of that server, seen from a user's folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RUNYARD_HOME", str(cluster_home))
    monkeypatch.setenv("RUNYARD_SAMPLE_SECONDS", "0")
    monkeypatch.delenv("RUNYARD_URL", raising=False)
    return Workspace.create("clusters", exist_ok=True)
