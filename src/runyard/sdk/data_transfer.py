"""Files to and from a datastore: several at a time, streamed, by their content."""

import hashlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from runyard.domain.data import DatastoreKind, DatastoreRecord
from runyard.domain.errors import RunyardError
from runyard.domain.files import FileEntry, FileInfo
from runyard.sdk.blob_upload import Content, post_with_contents, upload_contents
from runyard.sdk.exceptions import as_v1, user_error
from runyard.sdk.run_files import inside
from runyard.sdk.session import Session, segment, segments
from runyard.sdk.whole_file import write_whole

CHUNK_BYTES = 1 << 20
THREADS = 8
BATCH = 1000  # names in one request
REMOTE_BATCH = 20  # the server copies each to the remote store before it answers
REMOTE_SECONDS = 3600.0

T = TypeVar("T")
Say = Callable[[str], None]


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to upload, and its path in the datastore."""

    source: Path
    target: str


class StorePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the requests about a datastore go."""

    session: Session
    store: DatastoreRecord

    @property
    def path(self) -> str:
        """The datastore in the API."""
        return f"/api/v1/workspaces/{segment(self.store.workspace)}/datastores/{self.name}"

    @property
    def name(self) -> str:
        """Its name as a segment of a path."""
        return segment(self.store.name)


def say(text: str) -> None:
    """Tell the user how it goes, as v1 did: on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def silent(text: str) -> None:
    """Tell nobody."""


def folder_files(folder: Path, target: str) -> list[LocalFile]:
    """Every file below a folder, with its path below `target`."""
    root = folder.expanduser()
    if not root.is_dir():
        raise user_error(
            f"There is no folder '{folder}' to upload.",
            why=f"The working directory is {Path.cwd()}.",
            fix="Correct the path; single files go with upload_files([...]).",
        )
    return [
        LocalFile(source=Path(path), target=joined(target, os.path.relpath(path, root)))
        for path in _walk(str(root), (os.path.realpath(root),))
    ]


def _walk(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Files below a folder; links are followed unless they lead back up."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if real not in above:
                yield from _walk(entry.path, (*above, real))
        elif entry.is_file():
            yield entry.path


def joined(target: str, relative: str) -> str:
    """A path below `target`, as a datastore has it."""
    return str(PurePosixPath(target, *Path(relative).parts)) if target else relative_name(relative)


def relative_name(relative: str) -> str:
    """A relative path with slashes."""
    return str(PurePosixPath(*Path(relative).parts))


def list_store(place: StorePlace, prefix: str = "") -> tuple[FileInfo, ...]:
    """The datastore's files whose path begins with `prefix`."""
    return place.session.request(
        "GET",
        f"{place.path}/files",
        query={"prefix": prefix} if prefix else None,
        answer=tuple[FileInfo, ...],
        timeout_seconds=600.0,
    )


def upload(
    place: StorePlace, files: Sequence[LocalFile], *, overwrite: bool, tell: Say = silent
) -> int:
    """Upload files; how many. Those that are there already are passed over unless `overwrite`."""
    tell(f"Uploading an estimated of {len(files)} files")
    wanted = list(files) if overwrite else _absent(place, files, tell)
    counter = _Counter(len(files), "Uploaded", tell, done=len(files) - len(wanted))
    remote = place.store.kind is DatastoreKind.REMOTE
    for batch in _batches(wanted, REMOTE_BATCH if remote else BATCH):
        _upload_batch(place, batch, counter, remote=remote)
    tell(f"Uploaded {len(wanted)} files")
    return len(wanted)


def _absent(place: StorePlace, files: Sequence[LocalFile], tell: Say) -> list[LocalFile]:
    folders = [file.target.rpartition("/")[0] for file in files]
    shared = os.path.commonpath(folders) if folders and all(folders) else ""
    there = {info.path for info in list_store(place, f"{shared}/" if shared else "")}
    for file in files:
        if file.target in there:
            tell(f"Target already exists. Skipping upload for {file.target}")
    return [file for file in files if file.target not in there]


def _upload_batch(
    place: StorePlace, batch: Sequence[LocalFile], counter: "_Counter", *, remote: bool
) -> None:
    measured = dict(zip(batch, in_parallel(measure, batch), strict=True))
    contents: dict[str, Content] = {}
    waiting: dict[str, list[LocalFile]] = {}
    for file, (entry, content) in measured.items():
        contents[entry.digest] = content
        waiting.setdefault(entry.digest, []).append(file)

    def send(digest: str) -> None:
        for file in waiting[digest]:
            counter.tell(f"Uploading {file.source}")
        if digest in missing:
            upload_contents(place.session, {digest: contents[digest]})
        for file in waiting[digest]:
            counter.count(str(file.source))

    try:
        missing = set(
            place.session.client.request(
                "POST",
                "/api/v1/blobs/missing",
                body=list(contents),
                answer=tuple[str, ...],
                safe_to_repeat=True,
            )
        )
        in_parallel(send, list(contents))
        post_with_contents(
            place.session,
            f"{place.path}/files",
            [entry for entry, _ in measured.values()],
            contents,
            answer=object,
            timeout_seconds=REMOTE_SECONDS if remote else 120.0,
        )
    except RunyardError as error:
        raise as_v1(error) from None


def measure(file: LocalFile) -> tuple[FileEntry, Content]:
    """A file's row of a manifest, and what uploads it."""
    digest, size = hashlib.sha256(), 0
    try:
        with file.source.open("rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
            mode = 0o755 if stat.S_IMODE(os.fstat(source.fileno()).st_mode) & 0o111 else 0o644
    except OSError as error:
        raise user_error(
            f"'{file.source}' cannot be uploaded.", why=f"{error.strerror or error}."
        ) from None
    content = Content(name=str(file.source), size=size, open=lambda: file.source.open("rb"))
    return FileEntry(file.target, digest.hexdigest(), size, mode), content


def download(
    place: StorePlace, target: Path, prefix: str, *, overwrite: bool, tell: Say = silent
) -> int:
    """Download the files below a prefix, with their paths below `target`; how many."""
    found = list_store(place, prefix)
    aims = [(info.path, inside(target, info.path)) for info in found]
    wanted = [(path, aim) for path, aim in aims if overwrite or not aim.exists()]
    counter = _Counter(len(found), "Downloaded", tell, done=len(found) - len(wanted))

    def fetch(item: tuple[str, Path]) -> None:
        path, aim = item
        counter.tell(f"Downloading {path}")
        fetch_to(place.session, f"{place.path}/files/{segments(path)}", aim)
        counter.count(path)

    in_parallel(fetch, wanted)
    tell(f"Downloaded {len(wanted)} files")
    return len(wanted)


def fetch_to(session: Session, path: str, target: Path) -> None:
    """Write what the API has at `path` to a file."""
    try:
        write_whole(target, lambda sink: session.client.download(path, sink))
    except RunyardError as error:
        raise as_v1(error) from None
    except OSError as error:
        raise user_error(
            f"'{target}' cannot be written.", why=f"{error.strerror or error}."
        ) from None


class _Counter:
    """Counts files that are through, and says so."""

    def __init__(self, total: int, verb: str, tell: Say, *, done: int = 0) -> None:
        self._total = total
        self._verb = verb
        self._tell = tell
        self._done = done
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        """Say something; threads take turns."""
        with self._lock:
            self._tell(text)

    def count(self, name: str) -> None:
        """One more."""
        with self._lock:
            self._done += 1
            self._tell(
                f"{self._verb} {name}, {self._done} files out of an estimated total of "
                f"{self._total}"
            )


A = TypeVar("A")


def in_parallel(work: Callable[[A], T], items: Sequence[A]) -> list[T]:
    """The results of `work` on each, a few at a time; the first failure stops the rest."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="runyard-data") as pool:
        jobs: list[Future[T]] = [pool.submit(work, item) for item in items]
        try:
            return [job.result() for job in jobs]
        finally:
            for job in jobs:
                job.cancel()


def _batches(items: Sequence[A], size: int) -> Iterable[Sequence[A]]:
    return (items[start : start + size] for start in range(0, len(items), size))
