"""Contents in any store that fsspec knows: `s3://bucket/prefix`, `gs://…`, `memory://…`."""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from runyard.domain.files import is_digest
from runyard.stores.blobs_local import blob_not_found, check_content, check_digest

CHUNK_BYTES = 4 * 1024 * 1024  # each chunk is a request
SPOOL_BYTES = 8 * 1024 * 1024  # what is smaller never touches the local disk
ASK_AT_ONCE = 16


class FsspecBlobs:
    """Blobs below a URL. Contents are checked here before the first byte is sent there."""

    def __init__(self, url: str) -> None:
        # A listing remembered from before would hide what another process has put.
        self._files, self._root = url_to_fs(url, use_listings_cache=False)

    def put(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Keep the content; `Invalid` if it does not have that digest."""
        check_digest(digest)
        found = hashlib.sha256()
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
            for chunk in chunks:
                found.update(chunk)
                spool.write(chunk)
            check_content(digest, found.hexdigest())
            if self._files.exists(self._path(digest)):
                return
            spool.seek(0)
            self._files.makedirs(self._files._parent(self._path(digest)), exist_ok=True)
            # Object stores show a file when it is complete; for the others, fsspec writes beside
            # it and `commit` renames.
            with self._files.open(self._path(digest), "wb", autocommit=False) as file:
                while chunk := spool.read(CHUNK_BYTES):
                    file.write(chunk)
            file.commit()

    def open(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks."""
        size = self.size(digest)
        return self._read(digest, start, size if end is None else min(end, size))

    def size(self, digest: str) -> int:
        """Its length in bytes, or `NotFound`."""
        if not is_digest(digest):
            raise blob_not_found(digest)
        try:
            return int(self._files.info(self._path(digest))["size"])
        except FileNotFoundError as error:
            raise blob_not_found(digest) from error

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those of `digests` that are not here."""
        wanted = list(dict.fromkeys(check_digest(digest) for digest in digests))
        with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
            here = list(pool.map(self._files.exists, map(self._path, wanted)))
        return [digest for digest, found in zip(wanted, here, strict=True) if not found]

    def folder(self) -> str | None:
        """None: agents fetch contents from the server."""
        return None

    def _path(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest[2:]}"

    def _read(self, digest: str, start: int, end: int) -> Iterator[bytes]:
        for first in range(start, end, CHUNK_BYTES):
            last = min(first + CHUNK_BYTES, end)
            yield self._files.cat_file(self._path(digest), start=first, end=last)
