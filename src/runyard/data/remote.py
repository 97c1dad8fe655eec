"""Object stores as datastores, through fsspec: S3, Google Cloud, Azure Blob and Data Lake."""

import contextlib
import importlib.util
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import fsspec  # type: ignore[import-untyped]

from runyard.data.base import StoredFile
from runyard.data.sealing import redact
from runyard.domain.errors import (
    Denied,
    Invalid,
    NotFound,
    RunyardError,
    TimedOut,
    Unavailable,
    Unsupported,
)

CHUNK_BYTES = 4 * 1024 * 1024  # each chunk is a request


class _Backend(NamedTuple):
    """What a scheme needs: a module, and the extra of ours that brings it."""

    module: str
    extra: str


BACKENDS: Mapping[str, _Backend] = {
    "s3": _Backend("s3fs", "s3"),
    "s3a": _Backend("s3fs", "s3"),
    "gs": _Backend("gcsfs", "gcs"),
    "gcs": _Backend("gcsfs", "gcs"),
    "abfs": _Backend("adlfs", "azure"),
    "abfss": _Backend("adlfs", "azure"),
    "az": _Backend("adlfs", "azure"),
    "adl": _Backend("adlfs", "azure"),
    "smb": _Backend("smbprotocol", "azure"),
    "memory": _Backend("fsspec", ""),  # gone when the server stops: to try things out
}
_STAMPS = ("ETag", "etag", "md5Hash", "content_settings", "generation", "LastModified", "mtime")
_DRAFT = ".runyard-"  # a file that is being written
_WORDS = {"true": True, "false": False}


class RemoteFiles:
    """The files below a URL. Whatever its client says goes out without the credentials."""

    def __init__(self, url: str, options: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        scheme = url.partition("://")[0]
        check_backend(scheme)
        self._url = url.rstrip("/")
        self._in_memory = scheme == "memory"
        self._secrets = tuple(secrets.values())
        arguments = {name: _WORDS.get(text, text) for name, text in options.items()}
        with self._explained(""):
            # Neither clients nor listings are shared: other credentials must not get at them, and
            # what another process has written must be seen.
            self._files: Any = fsspec.filesystem(
                scheme,
                skip_instance_cache=True,
                use_listings_cache=False,
                **arguments,
                **secrets,
            )
            self._root = str(self._files._strip_protocol(self._url)).rstrip("/")

    def list(self, folder: str = "") -> Iterator[StoredFile]:
        """All files below a folder."""
        with self._explained(folder):
            try:
                found = self._files.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return
        cut = len(self._root) + 1
        only = f"{folder}/" if folder else ""
        for path, info in found.items():
            relative = path[cut:]
            is_file = info.get("type") == "file" and not path.endswith("/")
            if is_file and relative.startswith(only) and not relative.startswith(_DRAFT):
                yield _described(relative, info)

    def find(self, path: str) -> StoredFile:
        """One file, or `NotFound`."""
        with self._explained(path):
            info = self._files.info(self._path(path))
        if info.get("type") != "file" or not path:
            raise self._not_found(path)
        return _described(path, info)

    def open(self, path: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) in chunks."""
        size = self.find(path).size
        return self._read(path, start, size if end is None else min(end, size))

    def _read(self, path: str, start: int, end: int) -> Iterator[bytes]:
        for first in range(start, end, CHUNK_BYTES):
            last = min(first + CHUNK_BYTES, end)
            with self._explained(path):
                chunk: bytes = self._files.cat_file(self._path(path), start=first, end=last)
            yield chunk

    def write(self, path: str, digest: str, chunks: Iterable[bytes]) -> None:
        """Send the content; object stores show it when it is complete."""
        place = self._path(path)
        # fsspec's own memory shows a file while it is written; the stores show it at `commit`.
        draft = f"{self._root}/{_DRAFT}{uuid.uuid4().hex}" if self._in_memory else place
        with self._explained(path):
            self._files.makedirs(self._files._parent(place), exist_ok=True)
            with self._files.open(
                draft, "wb", block_size=2 * CHUNK_BYTES, autocommit=False
            ) as file:
                for chunk in chunks:
                    file.write(chunk)
            file.commit()
            if self._in_memory:
                self._files.mv(draft, place)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _not_found(self, path: str) -> NotFound:
        return NotFound(f"There is no file {path!r} in {self._url}.")

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Turn what a store's client raises into words, with no trace of the credentials."""
        try:
            yield
        except RunyardError:
            raise
        except FileNotFoundError:
            raise self._not_found(path) from None
        except Exception as error:  # noqa: BLE001 - each client has errors of its own
            words = redact(" ".join(f"{error}".split()), self._secrets)[:500]
            raise _kind(error)(
                f"The datastore at {self._url} cannot be used.",
                why=f"{type(error).__name__}: {words or 'no more is known'}.",
                fix="Check its URL, its credentials and the network.",
            ) from None


def check_backend(scheme: str) -> None:
    """`Invalid` for a scheme nobody knows, `Unsupported` if its client is not installed."""
    backend = BACKENDS.get(scheme)
    if backend is None:
        known = ", ".join(sorted(["file", *BACKENDS]))
        raise Invalid(f"A datastore cannot be at {scheme}://.", why=f"Known are: {known}.")
    if importlib.util.find_spec(backend.module) is None:
        raise Unsupported(
            f"A datastore at {scheme}:// needs the package {backend.module}.",
            why="It is not installed where the server runs.",
            fix=f"pip install 'runyard[{backend.extra}]', then restart the server.",
        )


def _kind(error: Exception) -> type[RunyardError]:
    if isinstance(error, PermissionError):
        return Denied
    if isinstance(error, TimeoutError):
        return TimedOut
    return Invalid if isinstance(error, ValueError | TypeError) else Unavailable


def _described(path: str, info: Mapping[str, Any]) -> StoredFile:
    stamp = next((info[name] for name in _STAMPS if info.get(name)), "")
    text = stamp.isoformat() if isinstance(stamp, datetime) else str(stamp)
    return StoredFile(path, int(info.get("size") or 0), text.strip('"')[:200])
