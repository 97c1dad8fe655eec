"""Scores with a Keras file, .keras or .h5, whichever Keras the environment has."""

import importlib
import json
import os
import zipfile

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


def load(spec):
    """The service of a Keras file."""
    path = model_file(spec, (".keras", ".h5", ".hdf5"), "A Keras model")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    numpy = needed("numpy", "keras")
    keras = _keras()
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as problem:
        text = " ".join(str(problem).split())[:600]
        made_with = _version_in(path)
        hint = "Was it saved with model.save(path)?"
        if made_with and made_with != keras.__version__:
            hint = "It was saved with Keras %s: serve it in an environment with that." % made_with
        raise CannotServe(
            "Keras %s cannot load %s: %s: %s. %s Layers of your own need an entry script."
            % (keras.__version__, path, type(problem).__name__, text, hint)
        )
    inputs = _described(model, "input")
    outputs = _described(model, "output")
    signature = Signature(
        "serving_default",
        inputs,
        outputs,
        _call(keras, model, inputs, outputs, numpy),
        bad_input=_bad_input(keras),
    )
    warm_up(signature, numpy)
    loaded = Loaded("keras", "keras", {signature.name: signature}, signature.name, False)
    return TensorService(loaded, spec)


def _keras():
    try:
        return importlib.import_module("keras")
    except ImportError:
        return needed("tensorflow", "keras").keras


def _version_in(path):
    """The version of Keras that saved the file; None if it does not say."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return json.loads(archive.read("metadata.json").decode("utf-8"))["keras_version"]
        with importlib.import_module("h5py").File(path, "r") as archive:
            found = archive.attrs["keras_version"]
            return found.decode("utf-8") if isinstance(found, bytes) else str(found)
    except Exception:  # whatever it is, it is no file of Keras
        return None


def _described(model, side):
    """The inputs or outputs of a model, named as its layers are."""
    found = getattr(model, side + "s", None)
    if not found:
        raise CannotServe(
            "The Keras model does not know its %ss: it was never built. Call it once before you "
            "save it." % side
        )
    names = getattr(model, side + "_names", None) or []
    tensors = []
    for place, one in enumerate(found):
        name = names[place] if place < len(names) else "%s_%d" % (side, place)
        shape = [-1 if size is None else int(size) for size in one.shape]
        dtype = getattr(one.dtype, "name", one.dtype)
        tensors.append(Tensor(name, datatype_of(_Named(dtype)), shape))
    return tensors


class _Named(object):
    def __init__(self, name):
        self.name = name


def _call(keras, model, inputs, outputs, numpy):
    backend = getattr(getattr(keras, "backend", None), "backend", lambda: "tensorflow")()
    run = _traced(model, inputs) if backend == "tensorflow" else model.predict_on_batch

    def score(arrays):
        found = run(arrays[0] if len(arrays) == 1 else list(arrays))
        if isinstance(found, dict):
            found = [found[tensor.name] for tensor in outputs]
        if not isinstance(found, (list, tuple)):
            found = [found]
        return [numpy.asarray(one) for one in found]

    return score


def _traced(model, inputs):
    """The model as one graph for all sizes of a batch, so that it is traced once."""
    tensorflow = importlib.import_module("tensorflow")
    wanted = [
        tensorflow.TensorSpec([None if size < 0 else size for size in one.shape], tensor.dtype)
        for one, tensor in zip(inputs, model.inputs)
    ]

    def forward(*tensors):
        return model(tensors[0] if len(tensors) == 1 else list(tensors), training=False)

    graph = tensorflow.function(forward, input_signature=wanted).get_concrete_function()
    constant = tensorflow.constant

    def run(arrays):
        given = arrays if isinstance(arrays, list) else [arrays]
        return graph(*[constant(one) for one in given])

    return run


def _bad_input(keras):
    try:
        errors = importlib.import_module("tensorflow").errors
    except ImportError:
        return (ValueError, TypeError)
    return (ValueError, TypeError, errors.InvalidArgumentError)
