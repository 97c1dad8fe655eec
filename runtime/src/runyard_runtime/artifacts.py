"""v1's calls for a run's files: upload, list, download."""

from runyard_runtime import files
from runyard_runtime.exceptions import UserErrorException, explain


class FileFamily(object):
    """The file calls of a run. A subclass has `_api`, `_run_id`, `_path` and `_synced`."""

    def get_file_names(self):
        """The names of the run's files, logs too."""
        return self._synced()._file_names()

    def upload_file(self, name, path_or_stream, datastore_name=None):
        """Keep a local file, or what a stream gives, as a file of the run."""
        if hasattr(path_or_stream, "read"):
            files.upload_stream(self._api, self._run_id, name, path_or_stream)
        else:
            files.upload(self._api, self._run_id, [(name, path_or_stream)])

    def upload_files(
        self, names, paths, return_artifacts=False, timeout_seconds=None, datastore_name=None
    ):
        """Keep local files under the names given for them."""
        if len(names) != len(paths):
            raise UserErrorException(
                explain(
                    "There are %d names for %d files." % (len(names), len(paths)),
                    fix="Give each path its name.",
                )
            )
        files.upload(self._api, self._run_id, list(zip(names, paths)))  # noqa: B905

    def upload_folder(self, name, path, datastore_name=None):
        """Keep all files below a local folder, under `name`."""
        files.upload(self._api, self._run_id, files.folder_files(name, path))

    def download_file(self, name, output_file_path=None, _validate_checksum=False):
        """Fetch one file of the run, by default into the working directory."""
        files.download(self._api, self._run_id, name, output_file_path, self._file_names)

    def download_files(
        self,
        prefix=None,
        output_directory=None,
        output_paths=None,
        batch_size=100,
        append_prefix=True,
        timeout_seconds=None,
    ):
        """Fetch the files below a prefix."""
        folder = files.artifact_name(prefix) + "/" if prefix else ""
        names = self._synced()._file_names(folder)
        if output_paths is None:
            output_paths = [
                files.target_of(name, folder, output_directory, append_prefix) for name in names
            ]
        if len(output_paths) != len(names):
            raise UserErrorException(
                explain(
                    "There are %d output paths for %d files." % (len(output_paths), len(names)),
                    "The files are: %s." % ", ".join(names),
                    "Give each file its path, or use output_directory.",
                )
            )
        for name, target in zip(names, output_paths):  # noqa: B905
            files.fetch(self._api, self._run_id, name, target)

    def _file_names(self, prefix=None):
        found = self._api.get(self._path("files"), [("prefix", prefix or None)])
        return [one["path"] for one in found]
