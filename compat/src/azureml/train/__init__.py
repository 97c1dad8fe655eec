"""azureml.train: estimators and sweeps; none are here yet."""

from pkgutil import extend_path

from runyard.sdk.lazy import lazy_names

__path__ = extend_path(__path__, __name__)

__getattr__ = lazy_names(__name__, {})
