"""The files of a run, as its handle offers them."""

import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runyard.domain.files import FileEntry, Manifest, decode_manifest
from runyard.domain.runs import RunPatch
from runyard.sdk import run_files
from runyard.sdk.exceptions import user_error
from runyard.sdk.run_handle import RunHandle
from runyard.sdk.session import segment, segments
from runyard_runtime.records import is_log

if TYPE_CHECKING:
    from runyard.sdk.data_path import DataPath
    from runyard.sdk.environment import Environment

LOG_SHOWN_BYTES = 8 << 20  # of each log, in get_details_with_logs

WORKSPACE_STORE = "workspaceblobstore"  # the datastore that every workspace has

StrPath = str | os.PathLike[str]


class FileFamily(RunHandle):
    """What a run kept, and what it was made from."""

    def get_file_names(self) -> list[str]:
        """The names of all its files: outputs, logs and what was uploaded by hand."""
        return [info.path for info in run_files.list_files(self._session, self.id)]

    def download_file(
        self,
        name: str,
        output_file_path: StrPath | None = None,
        _validate_checksum: bool = False,
    ) -> None:
        """Download one file, to the working directory unless told otherwise."""
        last = run_files.file_name(name).rsplit("/", 1)[-1]
        target = Path(os.fspath(output_file_path)) if output_file_path else Path(last)
        if target.is_dir() or (output_file_path and str(output_file_path).endswith(("/", os.sep))):
            target = run_files.inside(target, last)
        run_files.download(self._session, self.id, run_files.file_name(name), target)

    def download_files(
        self,
        prefix: str | None = None,
        output_directory: StrPath | None = None,
        output_paths: Sequence[StrPath] | None = None,
        batch_size: int = 100,
        append_prefix: bool = True,
        timeout_seconds: int | None = None,
    ) -> None:
        """Download the files below a folder of the run; without `prefix`, all of them."""
        folder = run_files.folder_prefix(prefix)
        names = [info.path for info in run_files.list_files(self._session, self.id, folder)]
        if not names and folder:
            alone = folder.rstrip("/")
            found = run_files.list_files(self._session, self.id, alone)
            names = [info.path for info in found if info.path == alone]
        if not names:
            warnings.warn(f"Run '{self.id}' has no files below '{prefix or ''}'.", stacklevel=2)
        targets = run_files.plan_downloads(
            names,
            prefix,
            Path(os.fspath(output_directory) if output_directory is not None else "."),
            output_paths,
            append_prefix=append_prefix,
            folder_given=output_directory is not None,
        )
        run_files.download_all(self._session, self.id, targets)

    def get_all_logs(self, destination: StrPath | None = None) -> list[str]:
        """Download all logs, into a folder named after the run if none is given; their paths."""
        folder = Path(os.fspath(destination) if destination is not None else self.id)
        names = [name for name in self.get_file_names() if is_log(name)]
        targets = {name: run_files.inside(folder, name) for name in names}
        run_files.download_all(self._session, self.id, targets)
        return [str(target) for target in targets.values()]

    def upload_file(
        self,
        name: str,
        path_or_stream: StrPath | IO[bytes] | IO[str],
        datastore_name: str | None = None,
    ) -> run_files.UploadedFiles:
        """Keep a local file, or what a stream gives, as a file of the run."""
        if isinstance(path_or_stream, str | os.PathLike):
            return run_files.upload_paths(self._session, self.id, {name: path_or_stream})
        with run_files.spooled(path_or_stream) as copy:
            return run_files.upload_paths(self._session, self.id, {name: copy})

    def upload_files(
        self,
        names: Sequence[str],
        paths: Sequence[StrPath],
        return_artifacts: bool = False,
        timeout_seconds: int | None = None,
        datastore_name: str | None = None,
    ) -> run_files.UploadedFiles:
        """Keep local files as files of the run."""
        if len(names) != len(paths):
            raise user_error(f"{len(names)} names were given for {len(paths)} paths.")
        named = dict(zip(names, paths, strict=True))
        return run_files.upload_paths(self._session, self.id, named)

    def upload_folder(
        self, name: str, path: StrPath, datastore_name: str | None = None
    ) -> run_files.UploadedFiles:
        """Keep everything below a local folder, under `name`."""
        named = run_files.folder_paths(name, path)
        return run_files.upload_paths(self._session, self.id, named)

    def _get_outputs_datapath(self) -> "DataPath":
        """Its outputs as a place that runs can mount; private in v1, and used all the same.

        They are copied to v1's place for them in the workspace's own datastore.
        """
        from runyard.sdk.data_path import DataPath
        from runyard.sdk.datastore import Datastore

        store = Datastore(self._experiment.workspace, WORKSPACE_STORE)
        place = f"ExperimentRun/dcid.{self.id}/outputs"
        with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
            self.download_files("outputs", folder)
            store.upload(Path(folder) / "outputs", place, overwrite=True, show_progress=False)
        return DataPath(store, place)

    # What it was made from

    def take_snapshot(self, file_or_folder_path: StrPath) -> str:
        """Keep a file, or a folder with all that is in it, as what the run was made from; its id.

        A run has one snapshot: the first that was taken.
        """
        from runyard.sdk.submission import folder_snapshot

        if kept := self._look().properties.get("ContentSnapshotId"):
            return kept
        source = Path(os.fspath(file_or_folder_path))
        if source.is_file():
            with tempfile.TemporaryDirectory(prefix="runyard-") as folder:
                shutil.copy2(source, folder)
                snapshot = folder_snapshot(self._session, Path(folder))
        else:
            snapshot = folder_snapshot(self._session, source)
        self._patch(RunPatch(add_properties={"ContentSnapshotId": snapshot.id}))
        return snapshot.id

    def get_snapshot_id(self) -> str | None:
        """The id of the source tree; None if the run has none."""
        script = self._record.spec.script
        kept = self._record.properties.get("ContentSnapshotId")
        return script.snapshot if script is not None else kept

    def restore_snapshot(self, snapshot_id: str | None = None, path: StrPath | None = None) -> str:
        """Download the source tree as a zip file into a folder; its path."""
        wanted = snapshot_id or self.get_snapshot_id()
        if wanted is None:
            raise user_error(
                f"Run '{self.id}' has no snapshot.", why="It was not submitted from a folder."
            )
        target = Path(os.fspath(path) if path is not None else ".")
        if target.suffix != ".zip":
            target.mkdir(parents=True, exist_ok=True)
            target = run_files.inside(target, f"{wanted}.zip")
        run_files.copy_tree(self._session, self._tree(wanted), target)
        return str(target)

    def _tree(self, snapshot_id: str) -> Manifest:
        script = self._record.spec.script
        if script is not None and script.snapshot == snapshot_id:
            return self._session.request(
                "GET", f"{self._path}/snapshot", answer=tuple[FileEntry, ...]
            )
        data = io.BytesIO()
        self._session.download(f"/api/v1/blobs/{segment(snapshot_id)}", data)
        return decode_manifest(data.getvalue())

    def get_environment(self) -> "Environment":
        """The environment the run was submitted with."""
        from runyard.sdk.environment import Environment

        script = self._record.spec.script
        if script is None:
            raise user_error(
                f"Run '{self.id}' has no environment.", why="It is not a submitted script."
            )
        return Environment.from_spec(script.environment)

    def _log_text(self, name: str, size: int) -> str:
        data = io.BytesIO()
        start = max(0, size - LOG_SHOWN_BYTES)
        self._session.download(f"{self._path}/files/{segments(name)}", data, start=start)
        text = data.getvalue().decode(errors="replace")
        if not start:
            return text
        return f"… the first {start} bytes are left out; see run.get_all_logs()\n{text}"
