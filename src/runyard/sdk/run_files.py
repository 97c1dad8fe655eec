"""The files of a run: listed, uploaded and downloaded, never whole in memory."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from runyard.domain.errors import NotFound, RunyardError
from runyard.domain.files import FileEntry, FileInfo
from runyard.sdk.blob_upload import Content, post_with_contents
from runyard.sdk.element import nearest
from runyard.sdk.exceptions import UserErrorException, as_v1, user_error
from runyard.sdk.session import Session, segment, segments
from runyard.sdk.whole_file import write_whole
from runyard_runtime import files

CHUNK_BYTES = 1 << 20
BATCH = 1000  # entries in one request
THREADS = 4
NAMES_SHOWN = 20

StrPath = str | os.PathLike[str]


def list_files(session: Session, run_id: str, prefix: str = "") -> tuple[FileInfo, ...]:
    """The run's files whose name starts with `prefix`: artifacts and logs."""
    return session.request(
        "GET",
        f"/api/v1/runs/{segment(run_id)}/files",
        query={"prefix": prefix} if prefix else None,
        answer=tuple[FileInfo, ...],
    )


def file_name(name: str) -> str:
    """A name as the server keeps it: relative, with slashes, without `./`."""
    return str(files.artifact_name(name))


class UploadedFiles:
    """What an upload left with the run; v1 code asks for `artifacts` or `serialize()`."""

    def __init__(self, run_id: str, entries: Sequence[FileEntry]) -> None:
        self.artifacts = {
            entry.path: {
                "artifactId": f"ExperimentRun/dcid.{run_id}/{entry.path}",
                "path": entry.path,
                "size": entry.size,
                "sha256": entry.digest,
            }
            for entry in entries
        }

    def serialize(self) -> dict[str, object]:
        """The same as a plain dictionary."""
        return {"artifacts": dict(self.artifacts)}


def upload_paths(
    session: Session, run_id: str, named: Mapping[str, StrPath], *, replace: bool = False
) -> UploadedFiles:
    """Keep local files under the names given; a name that the run has already is an error."""
    sources = {file_name(name): Path(path) for name, path in named.items()}
    if not replace:
        _refuse_existing(session, run_id, sources)
    entries, contents = [], {}
    for name, path in sources.items():
        entry, content = _measure(name, path)
        entries.append(entry)
        contents[entry.digest] = content
    for start in range(0, len(entries), BATCH):
        try:
            post_with_contents(
                session,
                f"/api/v1/runs/{segment(run_id)}/files",
                entries[start : start + BATCH],
                contents,
                answer=object,
            )
        except RunyardError as error:
            raise as_v1(error) from None
    return UploadedFiles(run_id, entries)


def _refuse_existing(session: Session, run_id: str, names: Iterable[str]) -> None:
    wanted = list(names)
    there = {
        info.path for info in list_files(session, run_id, wanted[0] if len(wanted) == 1 else "")
    }
    taken = sorted(there.intersection(wanted))
    if taken:
        raise user_error(
            f"Run '{run_id}' has the file '{taken[0]}' already.",
            why="A file of a run is never replaced."
            + (f" ({len(taken)} of the names are taken.)" if len(taken) > 1 else ""),
            fix="Upload it under another name.",
        )


def _measure(name: str, path: Path) -> tuple[FileEntry, Content]:
    if path.is_dir():
        raise user_error(
            f"'{path}' is a folder.", fix=f"Use run.upload_folder({name!r}, {str(path)!r})"
        )
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
            mode = 0o755 if os.fstat(source.fileno()).st_mode & 0o111 else 0o644
    except OSError as error:
        raise user_error(
            f"'{path}' cannot be uploaded.", why=f"{error.strerror or error}."
        ) from None
    content = Content(name=str(path), size=size, open=lambda: path.open("rb"))
    return FileEntry(name, digest.hexdigest(), size, mode), content


def folder_paths(name: str, folder: StrPath) -> dict[str, StrPath]:
    """Every file below a folder, by the name it gets below `name`."""
    root = Path(folder)
    if not root.is_dir():
        raise user_error(f"'{folder}' is not a folder.", fix="Use run.upload_file for one file.")
    found: dict[str, StrPath] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            found[str(PurePosixPath(name, *path.relative_to(root).parts))] = path
    return found


@contextmanager
def spooled(stream: IO[bytes] | IO[str]) -> Iterator[Path]:
    """What a stream gives, as a file; a stream can be read once, an upload may need it twice."""
    with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
        copy = Path(folder, "content")
        with copy.open("wb") as target:
            while chunk := stream.read(CHUNK_BYTES):
                target.write(chunk.encode() if isinstance(chunk, str) else chunk)
        yield copy


def download(session: Session, run_id: str, name: str, target: Path) -> None:
    """Write one file of the run to `target`, whole or not at all."""
    path = f"/api/v1/runs/{segment(run_id)}/files/{segments(name)}"
    try:
        write_whole(target, lambda sink: session.client.download(path, sink))
    except NotFound:
        raise _no_such_file(session, run_id, name) from None
    except RunyardError as error:
        raise as_v1(error) from None
    except OSError as error:
        raise user_error(
            f"'{name}' cannot be written to '{target}'.", why=f"{error.strerror or error}."
        ) from None


def download_all(session: Session, run_id: str, targets: Mapping[str, Path]) -> None:
    """Write several files of the run, a few at a time; the first failure is raised."""
    if len(targets) < 2:
        for name, target in targets.items():
            download(session, run_id, name, target)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(THREADS, thread_name_prefix="runyard-download") as pool:
        jobs = [pool.submit(download, session, run_id, *item) for item in targets.items()]
        try:
            for job in jobs:
                job.result()
        finally:
            for job in jobs:
                job.cancel()


def plan_downloads(
    names: Sequence[str],
    prefix: str | None,
    folder: Path,
    output_paths: Sequence[StrPath] | None,
    *,
    append_prefix: bool,
    folder_given: bool,
) -> dict[str, Path]:
    """Which file goes where, as v1's `download_files` says."""
    if output_paths:
        if len(output_paths) != len(names):
            raise user_error(
                f"{len(names)} files match, but {len(output_paths)} output_paths were given.",
                fix="Give one path for each file, in the order of run.get_file_names().",
            )
        return {
            name: folder / os.fspath(path) for name, path in zip(names, output_paths, strict=True)
        }
    cut = len(folder_prefix(prefix)) if folder_given and not append_prefix else 0
    return {name: inside(folder, name[cut:] or name.rsplit("/", 1)[-1]) for name in names}


def folder_prefix(prefix: str | None) -> str:
    """A prefix as v1 reads it: a folder, with a slash at its end; empty: everything."""
    clean = (prefix or "").replace("\\", "/")
    while clean.startswith("./"):
        clean = clean[2:]
    return clean if not clean or clean.endswith("/") else clean + "/"


def inside(folder: Path, name: str) -> Path:
    """The path of `name` below `folder`; an error if it would be anywhere else.

    Names come from jobs, so they may be anything; links that are in the folder are seen through.
    """
    relative = PurePosixPath(name)
    escapes = relative.is_absolute() or ".." in relative.parts or "\0" in name or "\\" in name
    target = folder / name if not escapes else folder
    root = folder.resolve()
    if escapes or target == folder or not target.resolve().is_relative_to(root):
        raise user_error(
            f"The file '{name}' cannot be written below '{folder}'.",
            why="Its name leads out of that folder.",
            fix="Download it alone: run.download_file(name, output_file_path=...)",
        )
    return target


def copy_tree(session: Session, entries: Iterable[FileEntry], archive: Path) -> None:
    """Write a source tree as a zip file, whole or not at all."""
    import zipfile

    draft = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
            for entry in entries:
                info = zipfile.ZipInfo(entry.path)
                info.external_attr = (0o100000 | entry.mode) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                with packed.open(info, "w", force_zip64=True) as sink:
                    session.download(f"/api/v1/blobs/{entry.digest}", sink)  # type: ignore[arg-type]
        shutil.move(draft, archive)
    except OSError as error:
        raise user_error(
            f"'{archive}' cannot be written.", why=f"{error.strerror or error}."
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def _no_such_file(session: Session, run_id: str, name: str) -> UserErrorException:
    names = [info.path for info in list_files(session, run_id)]
    near = nearest(name, names)
    shown = ", ".join(names[:NAMES_SHOWN]) + (" …" if len(names) > NAMES_SHOWN else "")
    return user_error(
        f"Run '{run_id}' has no file '{name}'.",
        why=f"It has: {shown or 'none yet'}.",
        fix=f"Did you mean '{near}'?" if near else "run.get_file_names() lists them all.",
    )
