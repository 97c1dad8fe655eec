"""v1's log family: what a script measures, as events of its run."""

import contextlib
import json
import os
import posixpath
import sys

from runyard_runtime import events, files, wire
from runyard_runtime.exceptions import AzureMLException, UserErrorException, explain

_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".bmp", ".tif", ".tiff", ".webp", ".pdf")
_DOCUMENT_KEYS = ("schema_type", "schema_version", "data")


class LogFamily(object):
    """The log calls of a run. A subclass has `_events`, `_end`, `_event_run` and `_api`, and
    `_join_job()`, which gives it `_events` if it belongs to the job after all."""

    def log(self, name, value, description="", step=None):
        """Log a number or a text; logged again under the same name, it becomes a list."""
        if self._events is not None and (step is None or type(step) is int):
            end = self._end if step is None else ',"s":%d%s' % (step, self._end)
            line = events.scalar_line(name, value, end)
            if line is not None:
                self._events.append(line)
                return
        self._log("scalar", name, scalar(value), whole_step(step))

    def log_list(self, name, value, description=""):
        """Log a list of values; any iterable will do."""
        self._log("list", name, as_list(name, value))

    def log_row(self, name, description=None, **kwargs):
        """Log one row of a table; the columns are the keyword arguments."""
        self._log("row", name, wire.to_json_value(kwargs))

    def log_table(self, name, value, description=""):
        """Log a table: a dict of columns."""
        self._log("table", name, as_table(name, value))

    def log_image(self, name, path=None, plot=None, description=""):
        """Log an image file, or a matplotlib plot; it becomes a file of the run."""
        with image_file(name, path, plot) as (artifact, local):
            try:
                files.upload(self._api, self._run_id, [(artifact, local)])
            except UserErrorException:
                raise
            except AzureMLException as error:  # logging never fails because of the platform
                warn("The image '%s' was not kept.\n%s" % (name, error))
                return
        self._log("image", name, artifact)

    def log_confusion_matrix(self, name, value, description=""):
        """Log a confusion matrix: a dict or JSON text with schema_type, schema_version, data."""
        self._log("confusion_matrix", name, as_document(name, value))

    def log_accuracy_table(self, name, value, description=""):
        """Log an accuracy table: a dict or JSON text with schema_type, schema_version, data."""
        self._log("accuracy_table", name, as_document(name, value))

    def log_residuals(self, name, value, description=""):
        """Log residuals: a dict or JSON text with schema_type, schema_version, data."""
        self._log("residuals", name, as_document(name, value))

    def log_predictions(self, name, value, description=""):
        """Log predictions: a dict or JSON text with schema_type, schema_version, data."""
        self._log("predictions", name, as_document(name, value))

    def _log(self, kind, name, value, step=None):
        name = str(name)
        if self._events is None:
            self._join_job()
        if self._events is not None:
            self._events.append(events.metric_line(kind, name, value, step, self._event_run))
            return
        point = {"name": name, "value": value, "kind": kind, "time": events._now()}
        if step is not None:
            point["step"] = step
        self._api.post(self._path("metrics"), [point], repeat=False)  # or it might count twice


def warn(text):
    """Tell the person who reads the log; never raises, not even under `-W error`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("runyard: %s\n" % text)


def scalar(value):
    """A scalar fit for JSON; whole numbers that no column could hold become floats."""
    value = wire.to_json_value(value)
    if isinstance(value, int) and not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        try:
            return float(value)
        except OverflowError:
            return {"f": "inf" if value > 0 else "-inf"}
    return value


def whole_step(step):
    """The step as a whole number; None: none."""
    if step is None:
        return None
    try:
        return int(step)
    except (TypeError, ValueError, OverflowError):
        raise UserErrorException(
            explain("%r is no step." % (step,), "A step is a whole number.", "Pass step=0, 1, …")
        ) from None


def as_list(name, value):
    """The items of any iterable, a generator too, fit for JSON."""
    listed = wire.to_json_value(value) if hasattr(value, "tolist") else value
    if isinstance(listed, (str, bytes)) or not hasattr(type(listed), "__iter__"):
        raise UserErrorException(
            explain(
                "The value of the list '%s' is not a list." % (name,),
                "It is a %s." % type(value).__name__,
                "Pass a list, or use run.log() for one value.",
            )
        )
    return wire.to_json_value(list(listed))


def as_table(name, value):
    """A dict of columns, fit for JSON."""
    if not isinstance(value, dict):
        raise UserErrorException(
            explain(
                "The value of the table '%s' is not a dict." % (name,),
                "It is a %s." % type(value).__name__,
                "Pass columns: {'x': [1, 2], 'y': [3, 4]}; of a data frame: df.to_dict('list').",
            )
        )
    return wire.to_json_value(value)


def as_document(name, value):
    """A document of v1's chart schemas, checked and fit for JSON."""
    document = value
    if isinstance(value, str):
        try:
            document = json.loads(value)
        except ValueError as problem:
            document = problem
    why = None
    if not isinstance(document, dict):
        why = "It is neither a dict nor a JSON object: %s" % (document,)
    elif any(key not in document for key in _DOCUMENT_KEYS):
        why = "It lacks %s." % ", ".join(key for key in _DOCUMENT_KEYS if key not in document)
    if why is not None:
        raise UserErrorException(
            explain(
                "The value of '%s' is not a document that can be drawn." % (name,),
                why,
                "Pass {'schema_type': …, 'schema_version': …, 'data': {…}}.",
            )
        )
    return wire.to_json_value(document)


@contextlib.contextmanager
def image_file(name, path, plot):
    """The artifact name and the local file of an image that is given as `path` or as `plot`."""
    if (path is None) == (plot is None):
        raise UserErrorException(
            explain(
                "The image '%s' needs exactly one of path and plot." % (name,),
                "%s given." % ("None was" if path is None else "Both were"),
                "run.log_image(name, path='plot.png') or run.log_image(name, plot=plt)",
            )
        )
    if path is not None:
        yield _with_extension(name, os.path.splitext(os.fspath(path))[1]), path
        return
    figure = plot if hasattr(plot, "savefig") else getattr(plot, "figure", None)  # seaborn's axes
    if not hasattr(figure, "savefig"):
        raise UserErrorException(
            explain(
                "The plot of the image '%s' cannot be drawn." % (name,),
                "A %s has no savefig()." % type(plot).__name__,
                "Pass matplotlib.pyplot or a matplotlib figure.",
            )
        )
    with files.temporary_file() as copy:
        figure.savefig(copy, format="png")
        copy.close()
        yield _with_extension(name, ".png"), copy.name


def _with_extension(name, extension):
    name = files.artifact_name(name)
    return name if posixpath.splitext(name)[1].lower() in _IMAGES else name + extension
