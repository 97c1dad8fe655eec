"""The seam between datasets and the places their files are in.

A managed datastore, a folder and an object store look alike from here. Paths are relative, with
slashes, and were checked by `planning.data.plain_path`. The promises are tested by
`runyard.testing.data_suite` on every implementation.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol


class StoredFile(NamedTuple):
    """A file of a datastore."""

    path: str
    size: int
    stamp: str = ""  # changes when the content does; empty: the store cannot tell
    digest: str = ""  # of the blob that holds it; empty: it is not kept as one


class Files(Protocol):
    """The files of one datastore. Safe to call from several threads."""

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        """All files below a folder, however deep, in any order; none if it is not there."""

    def find(self, path: str) -> StoredFile:
        """One file, or `NotFound`."""

    def open(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks; `NotFound` at once if there is no such file."""

    def write(self, path: str, digest: str, chunks: Iterable[bytes]) -> None:
        """Keep the content at the path, whole or not at all; what was there before is replaced.

        `digest` is the content's; where contents are blobs, it is there already.
        """
