"""Files between this machine and the server, with a bar."""

import hashlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from runyard.cli.progress import CountedFile, Progress
from runyard.cli.scope import Scope, find_settings
from runyard.domain.data import DataFile, DatastoreKind, DatastoreRecord
from runyard.domain.errors import Conflict, Invalid
from runyard.domain.files import FileEntry
from runyard.sdk.blob_upload import Content, post_with_contents, upload_contents
from runyard.sdk.data_transfer import (
    BATCH,
    REMOTE_BATCH,
    LocalFile,
    StorePlace,
    folder_files,
    in_parallel,
    list_store,
)
from runyard.sdk.run_files import inside
from runyard.sdk.session import Session, segments
from runyard.sdk.whole_file import write_whole
from runyard_runtime.fetch import Fetcher, FetchFailed

CHUNK_BYTES = 1 << 20


def open_session(scope: Scope) -> Session:
    """The scope's client, as the SDK's own functions take it."""
    return Session(scope.client, find_settings()[0])


def gather(source: Path, target: str) -> list[LocalFile]:
    """The file, or every file below the folder, with its path in the datastore."""
    if source.is_file():
        return [LocalFile(source=source, target=target)]
    found = folder_files(source, target)
    if not found:
        raise Invalid(f"There is no file in '{source}'.", fix="Upload a folder with files.")
    return found


def upload(
    session: Session,
    store: DatastoreRecord,
    files: Sequence[LocalFile],
    *,
    overwrite: bool,
    shown: bool,
) -> int:
    """Upload files; how many. Those that are there already stay unless `overwrite`."""
    place = StorePlace(session=session, store=store)
    if not overwrite:
        folders = [file.target.rpartition("/")[0] for file in files]
        shared = os.path.commonpath(folders) if all(folders) else ""
        there = {info.path for info in list_store(place, f"{shared}/" if shared else "")}
        files = [file for file in files if file.target not in there]
    total = sum(file.source.stat().st_size for file in files)
    size = REMOTE_BATCH if store.kind is DatastoreKind.REMOTE else BATCH
    with Progress("Uploading", total, shown=shown) as progress:
        for start in range(0, len(files), size):
            _upload_some(place, files[start : start + size], progress)
    return len(files)


def _upload_some(place: StorePlace, files: Sequence[LocalFile], progress: Progress) -> None:
    contents: dict[str, Content] = {}
    entries = []
    for file, digest in zip(files, in_parallel(_digest, files), strict=True):
        size = file.source.stat().st_size
        entries.append(FileEntry(file.target, digest, size))
        contents[digest] = Content(
            name=str(file.source), size=size, open=partial(_counted, file, progress)
        )
    missing = place.session.request(
        "POST",
        "/api/v1/blobs/missing",
        body=list(contents),
        answer=tuple[str, ...],
        safe_to_repeat=True,
    )
    known = set(contents) - set(missing)
    progress.advance(sum(entry.size for entry in entries if entry.digest in known))
    upload_contents(place.session, {digest: contents[digest] for digest in missing})
    post_with_contents(
        place.session,
        f"{place.path}/files",
        entries,
        contents,
        answer=object,
        timeout_seconds=3600.0,  # a remote store gets its files before the answer comes
    )


def _digest(file: LocalFile) -> str:
    found = hashlib.sha256()
    with file.source.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _counted(file: LocalFile, progress: Progress) -> BinaryIO:
    return cast(BinaryIO, CountedFile(file.source.open("rb"), progress))


def download(
    session: Session, files: Sequence[DataFile], folder: Path, *, overwrite: bool, shown: bool
) -> list[Path]:
    """Write files below a folder, with the paths they have in the dataset."""
    aims = [inside(folder, file.path) for file in files]
    there = [aim for aim in aims if aim.exists()]
    if there and not overwrite:
        raise Conflict(
            f"'{there[0]}' exists already.",
            why=f"{len(there)} of {len(aims)} files do." if len(there) > 1 else "",
            fix="Choose another folder, or say --overwrite.",
        )
    sizes = [file.size for file in files]
    total = sum(sizes) if min(sizes, default=0) >= 0 else 0
    fetcher = Fetcher(mirrors=session.settings.mirrors, allow_private=True)
    try:
        with Progress("Downloading", total, shown=shown) as progress:
            in_parallel(
                lambda pair: _fetch(session, fetcher, *pair, progress),
                list(zip(files, aims, strict=True)),
            )
    finally:
        fetcher.close()
    return aims


def _fetch(
    session: Session, fetcher: Fetcher, file: DataFile, target: Path, progress: Progress
) -> None:
    kind, _, place = file.origin.partition(":")
    if kind == "url":
        _fetch_url(fetcher, place, target, progress)
        return
    store, _, path = place.partition("/")
    address = (
        f"/api/v1/blobs/{place}"
        if kind == "blob"
        else f"/api/v1/stores/{store}/files/{segments(path)}"
    )

    def fill(sink: BinaryIO) -> None:
        session.client.download(address, cast(BinaryIO, CountedFile(sink, progress)))

    write_whole(target, fill)


def _fetch_url(fetcher: Fetcher, url: str, target: Path, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name[:200]}.part")
    try:
        with draft.open("w+b") as sink:
            fetcher.fetch(url, sink, arrived=progress.advance)
        os.replace(draft, target)
    except FetchFailed as error:
        raise Invalid(error.what, why=error.why, fix=error.fix) from None
    finally:
        draft.unlink(missing_ok=True)
