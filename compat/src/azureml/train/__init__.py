"""azureml.train: estimators; sweeps are not here yet."""

from pkgutil import extend_path

from runyard.sdk.lazy import lazy_names

__path__ = extend_path(__path__, __name__)

__getattr__ = lazy_names(
    __name__,
    {name: f"{__name__}.{name}" for name in ("dnn", "estimator", "sklearn")},
)
