"""The shipped suites, on SQLite and on a real PostgreSQL; on local and on fsspec's blobs."""

import uuid
from pathlib import Path

import pytest

from runyard.stores import open_blobs
from runyard.stores.base import Blobs
from runyard.stores.blobs_fsspec import FsspecBlobs
from runyard.testing.blob_suite import BlobSuite
from runyard.testing.store_suite import StoreSuite
from runyard.testing.stream_suite import StreamSuite


class TestStores(StoreSuite):
    """Records and metrics."""


class TestStreams(StreamSuite):
    """Streams and artifacts."""


class TestBlobs(BlobSuite):
    """Contents."""

    @pytest.fixture(params=["folder", "memory", "fsspec-folder"])
    def blobs(self, request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
        match request.param:
            case "folder":
                return open_blobs(str(tmp_path / "a folder"))
            case "memory":
                return open_blobs(f"memory://{uuid.uuid4().hex}")
            case _:
                return FsspecBlobs(f"file://{tmp_path / 'fsspec'}")
