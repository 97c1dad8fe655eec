"""The stand-in for a run outside a job: it prints what it would log."""

import uuid

from runyard_runtime import logs


class _OfflineRun(object):
    """A run that is nobody's: scripts can be tried without a job.

    As in v1 it has no experiment, no parent and no datasets.
    """

    def __init__(self):
        self._id = "OfflineRun_%s" % uuid.uuid4()
        self._tags = {}
        self._properties = {}

    @property
    def id(self):
        return self._id

    @property
    def name(self):
        return self._id

    display_name = name

    @property
    def number(self):
        return 1

    @property
    def type(self):
        return "offline"

    @property
    def status(self):
        return "Running"

    def __getattr__(self, name):
        if name in ("experiment", "parent", "input_datasets", "output_datasets"):
            raise AttributeError(
                "'_OfflineRun' object has no attribute '%s': this process does not belong to a "
                "job. Submit the script to have it." % name
            )
        raise AttributeError("'_OfflineRun' object has no attribute '%s'" % name)

    def log(self, name, value, description="", step=None):
        _attempted("scalar", name, value)

    def log_list(self, name, value, description=""):
        _attempted("list", name, logs.as_list(name, value))

    def log_row(self, name, description=None, **kwargs):
        _attempted("row", name, kwargs)

    def log_table(self, name, value, description=""):
        _attempted("table", name, logs.as_table(name, value))

    def log_image(self, name, path=None, plot=None, description=""):
        with logs.image_file(name, path, plot) as (artifact, _):
            _attempted("image", name, path if path is not None else artifact)

    def log_confusion_matrix(self, name, value, description=""):
        _attempted("confusion matrix", name, logs.as_document(name, value))

    def log_accuracy_table(self, name, value, description=""):
        _attempted("accuracy table", name, logs.as_document(name, value))

    def log_residuals(self, name, value, description=""):
        _attempted("residuals", name, logs.as_document(name, value))

    def log_predictions(self, name, value, description=""):
        _attempted("predictions", name, logs.as_document(name, value))

    def tag(self, key, value=None):
        self.set_tags({key: value})

    def set_tags(self, tags):
        self._tags.update(tags)

    def remove_tags(self, tags):
        for key in [tags] if isinstance(tags, str) else tags:
            self._tags.pop(key, None)

    def get_tags(self):
        return dict(self._tags)

    def add_properties(self, properties):
        self._properties.update(properties)

    def get_properties(self):
        return dict(self._properties)

    def upload_file(self, name, path_or_stream, datastore_name=None):
        print("Attempted to track file %s at %s" % (name, path_or_stream))

    def upload_files(
        self, names, paths, return_artifacts=False, timeout_seconds=None, datastore_name=None
    ):
        for name, path in zip(names, paths):  # noqa: B905
            self.upload_file(name, path)

    def upload_folder(self, name, path, datastore_name=None):
        print("Attempted to track folder %s at %s" % (name, path))

    def get_file_names(self):
        return []

    def get_metrics(self, name=None, recursive=False, run_type=None, populate=False):
        return {}

    def get_status(self):
        return self.status

    def get_detailed_status(self):
        return {"status": self.status, "details": None}

    def get_details(self):
        return {"runId": self._id, "target": "local", "status": self.status}

    def child_run(self, name=None, run_id=None, outputs=None):
        return _OfflineRun()

    def create_children(self, count=None, tag_key=None, tag_values=None):
        return [_OfflineRun() for _ in (range(count) if count is not None else tag_values)]

    def get_children(self, **kwargs):
        return iter(())

    def start(self):
        pass

    def flush(self, timeout_seconds=300):
        pass

    def complete(self, _set_status=True):
        pass

    def fail(self, error_details=None, error_code=None, _set_status=True):
        pass

    def cancel(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, exc_traceback):
        return False

    def __repr__(self):
        return "Run(OfflineRun,\nId: %s)" % self._id


def _attempted(kind, name, value):
    print("Attempted to log %s metric %s:\n%s" % (kind, name, value))
