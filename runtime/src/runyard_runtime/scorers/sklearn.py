"""Scores with a scikit-learn model: one pickled estimator, v1's `data` and `method`."""

import numbers
import re
import sys
import warnings

from runyard_runtime.scorers.base import (
    CannotServe,
    Loaded,
    Signature,
    Tensor,
    datatype_of,
    model_file,
    needed,
    warm_up,
)
from runyard_runtime.scoring_batches import TensorService

_SUFFIXES = (".pkl", ".joblib", ".pickle", ".sav", ".pkl.gz")
_METHODS = ("predict_proba", "predict", "decision_function", "predict_log_proba", "transform")
_VERSION_IN_PICKLE = re.compile(
    rb"_sklearn_version.{1,12}?(\d+\.\d+(?:\.\d+)*(?:\.?(?:a|b|rc|dev|post)\d+)?)", re.DOTALL
)


def load(spec):
    """The service of a pickled estimator; its default method is predict_proba where it has it."""
    sklearn = needed("sklearn", "sklearn")
    numpy = needed("numpy", "sklearn")
    path = model_file(spec, _SUFFIXES, "A pickled scikit-learn model")
    model, made_with = _unpickled(path, sklearn)
    methods = [name for name in _METHODS if callable(getattr(model, name, None))]
    if not methods:
        raise CannotServe(
            "The file holds a %s, which has no predict(). Save the fitted estimator itself, or "
            "give an entry script." % type(model).__name__
        )
    signatures = {name: _signature(model, name, numpy) for name in methods}
    # The first call of a model that another version made is where it mostly breaks.
    problem = warm_up(signatures[methods[0]], numpy)
    if made_with and isinstance(problem, AttributeError):
        raise CannotServe(_other_version(made_with, sklearn, problem))
    return TensorService(Loaded("sklearn", "sklearn", signatures, methods[0], False), spec)


def _unpickled(path, sklearn):
    """(the model, the version that saved it if that is another)."""
    joblib = needed("joblib", "sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = joblib.load(path)
        except Exception as problem:
            made_with = _version_in(path)
            if made_with and made_with != sklearn.__version__:
                raise CannotServe(_other_version(made_with, sklearn, problem))
            if isinstance(problem, ImportError):
                raise CannotServe(
                    "The model's pickle needs a module that is not in its environment: %s. Add "
                    "it, or keep custom classes in a package that is installed." % problem
                )
            if isinstance(problem, AttributeError):
                raise CannotServe(
                    "The model's pickle refers to code that is not here: %s. Classes and "
                    "functions of a training script must be importable: give an entry script "
                    "that has them." % problem
                )
            raise CannotServe(
                "%s is not a pickled model: %s: %s. Save it with joblib.dump(model, path)."
                % (path, type(problem).__name__, problem)
            )
    made_with = None
    for warning in caught:
        if "version" in str(warning.message) and "estimator" in str(warning.message).lower():
            made_with = made_with or _version_in(path) or "another version"
        sys.stderr.write("%s: %s\n" % (warning.category.__name__, warning.message))
    return model, made_with


def _version_in(path):
    with open(path, "rb") as stream:
        found = _VERSION_IN_PICKLE.search(stream.read())
    return found.group(1).decode("ascii") if found else None


def _other_version(made_with, sklearn, problem):
    return (
        "The model was saved with scikit-learn %s, and this environment's %s cannot use it (%s: "
        "%s). Put scikit-learn==%s into the environment, or train again."
        % (made_with, sklearn.__version__, type(problem).__name__, str(problem)[:300], made_with)
    )


def _signature(model, method, numpy):
    call = getattr(model, method)
    outputs = [_output(model, method)]
    more = {
        "finite_checked": True,
        "nan_allowed": _allows_nan(model),
        "bad_input": (ValueError, TypeError),
    }
    names = getattr(model, "feature_names_in_", None)
    columns = [str(name) for name in names] if names is not None else None
    if columns is not None and _picks_columns(model):
        return Signature(
            method,
            _column_inputs(model, columns),
            outputs,
            _framed(call, columns, numpy),
            columns=columns,
            loose=True,
            batches=True,
            **more,
        )
    if columns is not None:
        call = _unnamed(call)
    width = _width(model)
    inputs = [Tensor("X", "FP64", [-1, width])]
    if width < 0 and _takes_text(model):
        inputs = [Tensor("X", "BYTES", [-1])]
    return Signature(
        method, inputs, outputs, _arrayed(call, numpy), columns=columns, batches=True, **more
    )


def _width(model):
    """How many features the model takes; -1 where it does not say, as many of old did not."""
    for name in ("n_features_in_", "n_features_"):
        found = getattr(model, name, None)
        if isinstance(found, numbers.Integral):
            return int(found)
    shape = getattr(getattr(model, "coef_", None), "shape", ())
    if len(shape) == 1 or (shape and hasattr(model, "classes_")):  # of others it may lie across
        return int(shape[-1])
    return -1


def _output(model, method):
    classes = getattr(model, "classes_", None)
    dtype = getattr(classes, "dtype", None)
    if method == "predict":
        return Tensor(method, datatype_of(dtype) if dtype is not None else "FP64", [-1])
    if method in ("predict_proba", "predict_log_proba") and dtype is not None:
        return Tensor(method, "FP64", [-1, len(classes)])
    return Tensor(method, "FP64", [-1, -1] if method == "transform" else [-1])


def _arrayed(call, numpy):
    def score(arrays):
        found = call(arrays[0])
        if isinstance(found, list):  # several targets: one array of probabilities each
            found = numpy.stack(found, axis=1)
        elif not isinstance(found, numpy.ndarray):
            found = found.toarray() if hasattr(found, "toarray") else numpy.asarray(found)
        return [found]

    return score


def _unnamed(call):
    # Rows come in the order of the columns, so that the estimator's warning about names that an
    # array does not have says nothing.
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    return call


def _framed(call, columns, numpy):
    pandas = needed("pandas", "sklearn")
    scored = _arrayed(call, numpy)
    return lambda values: scored([pandas.DataFrame(values[0], columns=columns)])


def _steps(model):
    """The estimator and, of a pipeline, its steps."""
    yield model
    for step in getattr(model, "steps", None) or []:
        for inner in _steps(step[1]):
            yield inner


def _picks_columns(model):
    """Whether the model needs a data frame, to pick its columns by name."""
    return any(hasattr(step, "transformers_") for step in _steps(model))


def _takes_text(model):
    return any(type(step).__name__.endswith("Vectorizer") for step in _steps(model))


def _column_inputs(model, columns):
    """Columns with their types: those that are encoded by categories of text hold text."""
    texts = set()
    for step in _steps(model):
        for _, transformer, chosen in getattr(step, "transformers_", None) or []:
            chosen = [chosen] if isinstance(chosen, str) else list(chosen)
            for inner in _steps(transformer):
                for name, categories in zip(chosen, getattr(inner, "categories_", None) or []):
                    if categories.dtype.kind in "OUS":
                        texts.add(name)
            if _takes_text(transformer):
                texts.update(name for name in chosen if isinstance(name, str))
    return [Tensor(name, "BYTES" if name in texts else "FP64", [-1]) for name in columns]


def _allows_nan(model):
    """Whether missing values are fine: the estimator says so in its tags."""
    try:
        tags = model.__sklearn_tags__().input_tags.allow_nan
    except Exception:
        try:
            tags = model._get_tags()["allow_nan"]
        except Exception:
            return False
    return bool(tags)
