"""Where everything is kept: records, metrics and logs in SQL, contents in blobs."""

from pathlib import Path

from runyard.stores.artifacts import SqlArtifacts
from runyard.stores.base import Artifacts, Blobs, Metrics, Notes, Records, Streams
from runyard.stores.blobs_local import LocalBlobs
from runyard.stores.database import Database
from runyard.stores.metrics import SqlMetrics
from runyard.stores.migrations import migrate
from runyard.stores.notes import SqlNotes
from runyard.stores.records import SqlRecords
from runyard.stores.streams import SqlStreams


class SqlStore:
    """Everything that is kept, in one SQL database and one blob store."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self.database = database
        self.records: Records = SqlRecords(database)
        self.metrics: Metrics = SqlMetrics(database)
        self.streams: Streams = SqlStreams(database, blobs)
        self.artifacts: Artifacts = SqlArtifacts(database)
        self.notes: Notes = SqlNotes(database)
        self.blobs = blobs

    def close(self) -> None:
        """Finish pending writes and let go. Idempotent."""
        self.database.close()


def open_store(database_url: str, blobs_url: str) -> SqlStore:
    """Open what is kept at these URLs, made or brought up to date first if need be."""
    blobs = open_blobs(blobs_url)
    database = Database(database_url)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return SqlStore(database, blobs)


def open_blobs(url: str) -> Blobs:
    """The blob store at a URL; without a scheme it is a local folder."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalBlobs(Path(url))
    if scheme == "file":
        return LocalBlobs(Path(rest))
    from runyard.stores.blobs_fsspec import FsspecBlobs  # noqa: PLC0415 - slow, rarely needed

    return FsspecBlobs(url)
