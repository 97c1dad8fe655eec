"""v1's log family, for code outside a job: interactive runs, and runs that are over."""

import os
import time
from collections.abc import Iterable, Mapping

from runyard.domain.metrics import MetricKind, Point
from runyard.sdk import run_files
from runyard.sdk.run_handle import RunHandle
from runyard_runtime import logs, wire

StrPath = str | os.PathLike[str]


class LogFamily(RunHandle):
    """What is logged is with the server when the call returns."""

    def log(self, name: str, value: object, description: str = "", step: int | None = None) -> None:
        """Log a number or a text; logged again under the same name, it becomes a list."""
        self._log(MetricKind.SCALAR, name, logs.scalar(value), logs.whole_step(step))

    def log_list(self, name: str, value: Iterable[object], description: str = "") -> None:
        """Log a list of values; any iterable will do."""
        self._log(MetricKind.LIST, name, logs.as_list(name, value))

    def log_row(self, name: str, description: str | None = None, **kwargs: object) -> None:
        """Log one row of a table; the columns are the keyword arguments."""
        self._log(MetricKind.ROW, name, wire.to_json_value(kwargs))

    def log_table(self, name: str, value: Mapping[str, object], description: str = "") -> None:
        """Log a table: a dict of columns."""
        self._log(MetricKind.TABLE, name, logs.as_table(name, value))

    def log_image(
        self,
        name: str,
        path: StrPath | None = None,
        plot: object | None = None,
        description: str = "",
    ) -> None:
        """Log an image file, or a matplotlib plot; it becomes a file of the run."""
        with logs.image_file(name, path, plot) as (artifact, local):
            run_files.upload_paths(self._session, self.id, {artifact: local}, replace=True)
        self._log(MetricKind.IMAGE, name, artifact)

    def log_confusion_matrix(self, name: str, value: object, description: str = "") -> None:
        """Log a confusion matrix: a dict or JSON text with schema_type, schema_version, data."""
        self._log(MetricKind.CONFUSION_MATRIX, name, logs.as_document(name, value))

    def log_accuracy_table(self, name: str, value: object, description: str = "") -> None:
        """Log an accuracy table: a dict or JSON text with schema_type, schema_version, data."""
        self._log(MetricKind.ACCURACY_TABLE, name, logs.as_document(name, value))

    def log_residuals(self, name: str, value: object, description: str = "") -> None:
        """Log residuals: a dict or JSON text with schema_type, schema_version, data."""
        self._log(MetricKind.RESIDUALS, name, logs.as_document(name, value))

    def log_predictions(self, name: str, value: object, description: str = "") -> None:
        """Log predictions: a dict or JSON text with schema_type, schema_version, data."""
        self._log(MetricKind.PREDICTIONS, name, logs.as_document(name, value))

    def _log(self, kind: MetricKind, name: str, value: object, step: int | None = None) -> None:
        point = Point(name=str(name), value=value, kind=kind, step=step, time=time.time())
        self._session.request("POST", f"{self._path}/metrics", body=[point], answer=object)
