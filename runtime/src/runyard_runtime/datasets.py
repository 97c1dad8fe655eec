"""The datasets of a job's workspace, and those a script makes itself."""

import shutil
import tempfile
import uuid

from runyard_runtime import expressions, files, recipes, steps, tables
from runyard_runtime.api import path_of
from runyard_runtime.data_files import fetch_all
from runyard_runtime.datastores import Datastore, StorePath, store_of
from runyard_runtime.exceptions import (
    DatasetTimestampMissingError,
    UserErrorException,
    explain,
)
from runyard_runtime.partitions import Partitioning
from runyard_runtime.workspace import Workspace


class AbstractDataset(object):
    """A recipe: where data is, and what is done to it when it is used."""

    def __init__(self, workspace, spec, record=None):
        self._workspace = workspace
        self._spec = spec
        self._record = record or {}

    @property
    def name(self):
        return self._record.get("name") or None

    @property
    def version(self):
        return self._record.get("number") or None

    @property
    def id(self):
        return self._record.get("id")

    @property
    def description(self):
        return self._record.get("description") or None

    @property
    def tags(self):
        return dict(self._record.get("tags") or {})

    @property
    def partition_keys(self):
        text = self._spec["partition_format"]
        return list(Partitioning(text).keys) if text else []

    def __getitem__(self, name):
        return expressions.column(name)

    def register(self, workspace, name, description=None, tags=None, create_new_version=False):
        """Keep it in the workspace under a name; what is returned knows its version."""
        record = self._workspace._job.api.post(
            path_of("workspaces", workspace.name, "datasets"),
            {
                "spec": self._spec,
                "name": name,
                "description": description or "",
                "tags": {str(key): _text(value) for key, value in (tags or {}).items()},
                "create_new_version": bool(create_new_version),
            },
        )
        return type(self)(workspace, record["spec"], record)

    def take(self, count):
        """The first `count` of it."""
        return self._with(steps.take(count))

    def skip(self, count):
        """All but the first `count`."""
        return self._with(steps.skip(count))

    def take_sample(self, probability, seed=None):
        """Each one with a probability; the same ones each time it is read."""
        return self._with(steps.sample(probability, seed))

    def random_split(self, percentage, seed=None):
        """Two datasets that have all of it between them: about `percentage`, and the rest."""
        first, second = steps.split(percentage, seed)
        return self._with(first), self._with(second)

    def filter(self, expression):
        """What a condition is true for: `dataset.filter(dataset['age'] > 18)`."""
        return self._with(steps.filter(expression))

    def _with(self, step):
        return type(self)(self._workspace, recipes.with_step(self._spec, step))

    def _files(self):
        """The files that the recipe leads to now, a ResolvedData."""
        path = path_of("workspaces", self._workspace.name, "datasets", "resolve")
        return self._workspace._job.api.post(path, self._spec)

    def __repr__(self):
        return "%s(name=%r, version=%r)" % (type(self).__name__, self.name, self.version)


class FileDataset(AbstractDataset):
    """Files: addresses on the web, or paths in datastores."""

    @property
    def file_metadata(self):
        return expressions.Fields()

    def to_path(self):
        """The files' paths in the dataset, each with a slash before it."""
        return ["/" + one[0] for one in self._files()["files"]]

    def download(self, target_path=None, overwrite=False, ignore_not_found=False):
        """Download the files, into a new temporary folder if none is given; their paths."""
        folder = target_path or tempfile.mkdtemp(prefix="runyard-")
        return fetch_all(self._workspace._job, self._files(), folder, overwrite)

    def mount(self, mount_point=None, **kwargs):
        """The files as a folder, in a `with` statement or between `start()` and `stop()`."""
        return MountContext(self, mount_point)


class MountContext(object):
    """A dataset as a folder, from `start()` to `stop()`."""

    def __init__(self, dataset, mount_point):
        self._dataset = dataset
        self._own = mount_point is None
        self.mount_point = mount_point or tempfile.mkdtemp(prefix="runyard-")
        self._started = False

    def start(self):
        """Have the files in the folder."""
        if not self._started:
            self._dataset.download(self.mount_point)
            self._started = True

    def stop(self):
        """Nothing is mounted: a folder of ours goes away, one of the script's stays."""
        if self._own:
            shutil.rmtree(self.mount_point, ignore_errors=True)
        self._started = False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, exc_type, exc_value, exc_traceback):
        self.stop()


class TabularDataset(AbstractDataset):
    """A table: read from its files, and transformed, each time it is asked for."""

    def to_pandas_dataframe(self, on_error="null", out_of_range_datetime="null"):
        """The table as a pandas DataFrame."""
        tables.pandas()  # before anything travels
        job, found = self._workspace._job, self._files()["files"]
        folder = tempfile.mkdtemp(prefix="runyard-")
        try:
            if tables.rows_needed(self._spec["steps"]) is None:
                paths = fetch_all(job, {"files": found}, folder, private=False)
            else:  # the first rows are enough: fetch file by file, until there are enough
                paths = [_fetching(job, one, folder) for one in found]
            local = [(one[0], path) for one, path in zip(found, paths)]  # noqa: B905
            return tables.read(self._spec, local, on_error, out_of_range_datetime)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep_columns(self, columns, validate=False):
        """These columns, in this order."""
        return self._with(steps.keep_columns(columns))

    def drop_columns(self, columns):
        """All columns but these."""
        return self._with(steps.drop_columns(columns))

    @property
    def timestamp_columns(self):
        """The columns that hold the time, fine and coarse."""
        for step in reversed(self._spec["steps"]):
            if step["op"] == "timestamps":
                arguments = step["arguments"]
                return arguments.get("timestamp"), arguments.get("partition_timestamp")
        return None, None

    def with_timestamp_columns(
        self, timestamp=None, partition_timestamp=None, validate=False, **kwargs
    ):
        """Say which columns hold the time; `time_after` and its like need that."""
        fine = timestamp or kwargs.get("fine_grain_timestamp")
        coarse = partition_timestamp or kwargs.get("coarse_grain_timestamp")
        return self._with(steps.timestamps(fine, coarse))

    def time_before(self, end_time, include_boundary=True, validate=True):
        """What lies before a time."""
        return self._with(steps.time(self._time_column(), None, end_time, include_boundary))

    def time_after(self, start_time, include_boundary=True, validate=True):
        """What lies after a time."""
        return self._with(steps.time(self._time_column(), start_time, None, include_boundary))

    def time_between(self, start_time, end_time, include_boundary=True, validate=True):
        """What lies between two times."""
        return self._with(steps.time(self._time_column(), start_time, end_time, include_boundary))

    def time_recent(self, time_delta, include_boundary=True, validate=True):
        """What lies in the span of time before now."""
        return self._with(steps.recent(self._time_column(), time_delta, include_boundary))

    def _time_column(self):
        fine, coarse = self.timestamp_columns
        if not (fine or coarse):
            raise DatasetTimestampMissingError(
                explain(
                    "The dataset does not know which column holds the time.",
                    fix="Say so first: dataset.with_timestamp_columns('time')",
                )
            )
        return fine or coarse


def _fetching(job, one, folder):
    return lambda: fetch_all(job, {"files": [one]}, folder, private=False)[0]


def _text(value):
    return value if value is None else str(value)


# How they are made and found


class FileDatasetFactory(object):
    """`Dataset.File`."""

    @staticmethod
    def from_files(path, validate=True, partition_format=None, is_file=False):
        """A dataset of files: addresses, or pairs of a datastore and a path."""
        return _made(FileDataset, "file", path, "", None, partition_format)

    @staticmethod
    def upload_directory(src_dir, target, pattern=None, overwrite=False, show_progress=True):
        """Upload a folder to a place in a datastore, and make a dataset of it."""
        store, below = _place(target)
        if pattern is not None:
            raise UserErrorException(
                explain("pattern=... is not supported inside a job.", fix="Upload the folder.")
            )
        store.upload(src_dir, below, overwrite, show_progress)
        return FileDatasetFactory.from_files((store, below + "/**" if below else "**"))


class TabularDatasetFactory(object):
    """`Dataset.Tabular`."""

    @staticmethod
    def from_delimited_files(
        path,
        validate=True,
        include_path=False,
        infer_column_types=True,
        set_column_types=None,
        separator=",",
        header=True,
        partition_format=None,
        support_multi_line=False,
        empty_as_string=False,
        encoding="utf8",
    ):
        """A table out of files of separated values."""
        options = recipes.delimited_options(
            include_path,
            infer_column_types,
            set_column_types,
            separator,
            header,
            empty_as_string,
            encoding,
        )
        return _made(TabularDataset, "tabular", path, "delimited", options, partition_format)

    @staticmethod
    def from_parquet_files(
        path, validate=True, include_path=False, set_column_types=None, partition_format=None
    ):
        """A table out of parquet files."""
        options = recipes.parquet_options(include_path, set_column_types)
        return _made(TabularDataset, "tabular", path, "parquet", options, partition_format)

    @staticmethod
    def from_json_lines_files(
        path,
        validate=True,
        include_path=False,
        set_column_types=None,
        partition_format=None,
        invalid_lines="error",
        encoding="utf8",
    ):
        """A table out of files with a JSON object on each line."""
        options = recipes.json_lines_options(
            include_path, set_column_types, invalid_lines, encoding
        )
        return _made(TabularDataset, "tabular", path, "json_lines", options, partition_format)

    @staticmethod
    def register_pandas_dataframe(
        dataframe,
        target,
        name,
        description=None,
        tags=None,
        show_progress=True,
        row_group_size=None,
        make_target_path_unique=True,
    ):
        """Keep a DataFrame in a datastore as a parquet file, registered as a dataset."""
        store, below = _place(target)
        with files.temporary_file() as copy:
            copy.close()
            dataframe.to_parquet(copy.name)
            unique = uuid.uuid4().hex if make_target_path_unique else ""
            path = "/".join(part for part in (below, unique, "part-00000.parquet") if part)
            files.upload_to(store._api, store._path("files"), [(path, copy.name)])
        dataset = TabularDatasetFactory.from_parquet_files((store, path))
        return dataset.register(store.workspace, name, description, tags, create_new_version=True)


class Dataset(object):
    """Datasets are made by `Dataset.File` and `Dataset.Tabular`, and found by name or id."""

    File = FileDatasetFactory
    Tabular = TabularDatasetFactory

    @staticmethod
    def get_by_name(workspace, name, version="latest"):
        """The dataset of that name; the newest version, or one of its others."""
        query = [("name", name), ("version", str(version))]
        found = workspace._job.api.get(path_of("workspaces", workspace.name, "datasets"), query)
        if not found:
            raise UserErrorException(explain("There is no dataset '%s'." % name))
        return dataset_of(workspace, found[0])

    @staticmethod
    def get_by_id(workspace, id):
        """The dataset of that id."""
        return dataset_of(workspace, workspace._job.api.get(path_of("datasets", id)))

    @staticmethod
    def get_all(workspace):
        """The newest version of every registered dataset, by name."""
        path = path_of("workspaces", workspace.name, "datasets")
        found = workspace._job.api.get(path, [("version", "latest")])
        return {one["name"]: dataset_of(workspace, one) for one in found}


def dataset_of(workspace, record):
    """The dataset of a record."""
    kind = FileDataset if record["spec"].get("kind", "file") == "file" else TabularDataset
    return kind(workspace, _whole(record["spec"]), record)


def _whole(spec):
    """The recipe with what its JSON leaves out because it is the default."""
    return dict(recipes.recipe("file", [], False), **spec)


def _made(kind, word, path, reader, options, partition_format):
    sources, is_list, workspaces = recipes.read_sources(path, store_of)
    spec = recipes.recipe(word, sources, is_list, reader, options, partition_format)
    return kind(workspaces[0] if workspaces else Workspace(), spec)


def _place(target):
    if isinstance(target, Datastore):
        return target, ""
    if isinstance(target, StorePath):
        return target.datastore, target.path_on_datastore
    if isinstance(target, (tuple, list)) and len(target) == 2 and isinstance(target[0], Datastore):
        return target[0], recipes.store_path(target[1])
    raise UserErrorException(
        explain(
            "target=%r is not a place in a datastore." % (target,),
            fix="Write target=(datastore, 'folder')",
        )
    )
