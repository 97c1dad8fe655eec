"""What a service's processes printed, also what was not sent to the store yet."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from runyard.conductor import runs
from runyard.conductor.service_logs import read_logs
from runyard.domain.runs import RunSpec
from runyard.domain.services import Revision, ServiceRecord, ServiceSpec
from runyard.domain.workspaces import WorkspaceRecord
from runyard.stores import open_store
from runyard.stores.base import Store

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LOG = "azureml-logs/70_driver_log.txt"
SERVICE = ServiceRecord(
    id="s",
    uid="u",
    workspace="yard",
    name="digits",
    created=NOW,
    modified=NOW,
    serving=Revision(number=1, spec=ServiceSpec(models=()), created=NOW, run="workers"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'runyard.db'}", str(tmp_path / "blobs"))
    opened.records.insert(WorkspaceRecord(id="w1", name="yard", created=NOW))
    run = runs.new_run(RunSpec(workspace="yard", experiment="services", id="workers"), NOW)
    opened.records.insert(msgspec.structs.replace(run, job="job-1"))
    yield opened
    opened.close()


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """The file that the worker writes."""
    path = tmp_path / "jobs" / "job-1" / LOG
    path.parent.mkdir(parents=True)
    return path


def test_what_was_printed_just_now_is_there(store: Store, printed: Path, tmp_path: Path) -> None:
    printed.write_text("loading\n")
    assert read_logs(store, tmp_path / "jobs", SERVICE, 10).endswith(f"{LOG} ====\nloading\n")
    store.streams.append_log("workers", LOG, 0, b"loading\n")
    printed.write_text("loading\nready\n")
    assert read_logs(store, tmp_path / "jobs", SERVICE, 10).endswith("loading\nready\n")
    assert "loading" not in read_logs(store, tmp_path / "jobs", SERVICE, 1)


def test_logs_that_are_only_in_the_store_are_read_there(
    store: Store, printed: Path, tmp_path: Path
) -> None:
    build = "azureml-logs/20_image_build_log.txt"
    store.streams.append_log("workers", build, 0, b"built\n")
    store.streams.append_log("workers", LOG, 0, b"loading\n")
    printed.write_text("")  # nothing, or not whole: the folder is being removed
    text = read_logs(store, tmp_path / "jobs", SERVICE, 10)
    assert text.index("built") < text.index("loading")
    printed.unlink()
    assert read_logs(store, tmp_path / "jobs", SERVICE, 10) == text
