"""A datastore that the server keeps itself: paths in the database, contents as blobs."""

from collections.abc import Iterable, Iterator, Sequence

from runyard.data.base import StoredFile
from runyard.domain.data import DatastoreRecord
from runyard.domain.files import FileEntry, FileInfo
from runyard.stores.base import Store

WRITTEN_AT_ONCE = 5000  # rows per transaction, so that a large upload keeps nobody waiting


class ManagedFiles:
    """The files of a managed datastore. What users call them never becomes a path."""

    def __init__(self, store: Store, datastore_id: str) -> None:
        self._store = store
        self._id = datastore_id

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        """All files below a folder."""
        prefix = f"{folder}/" if folder else ""
        for info in self._store.artifacts.list(self._id, prefix, of=DatastoreRecord):
            yield _described(info)

    def find(self, path: str) -> StoredFile:
        """One file, or `NotFound`."""
        return _described(self._store.artifacts.get(self._id, path, of=DatastoreRecord))

    def open(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks."""
        return self._store.blobs.open(self.find(path).digest, start, end)

    def write(self, path: str, digest: str, chunks: Iterable[bytes]) -> None:
        """Give the path that content."""
        self._store.blobs.put(digest, chunks)
        self.keep([FileEntry(path, digest, self._store.blobs.size(digest))])

    def keep(self, entries: Sequence[FileEntry]) -> None:
        """Give many paths contents that are here already."""
        for start in range(0, len(entries), WRITTEN_AT_ONCE):
            some = entries[start : start + WRITTEN_AT_ONCE]
            self._store.artifacts.put(self._id, some, of=DatastoreRecord)


def _described(info: FileInfo) -> StoredFile:
    digest = info.digest or ""
    return StoredFile(info.path, info.size, digest, digest)
