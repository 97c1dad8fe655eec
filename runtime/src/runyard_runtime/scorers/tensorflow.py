"""Scores with a TensorFlow SavedModel, of TensorFlow 1 or 2, as TF Serving does.

The model runs in a session, in both generations: a session's callable costs a fraction of a
signature of TensorFlow 2, takes arrays as they are, and is never traced again.
"""

import base64
import logging
import os

from runyard_runtime.scorers.base import (
    CannotServe,
    Loaded,
    Signature,
    Tensor,
    cores,
    datatype_of,
    model_path,
    needed,
    warm_up,
)
from runyard_runtime.scoring_batches import TensorService

_FILES = ("saved_model.pb", "saved_model.pbtxt")
_INTERNAL = "__saved_model_init_op"
_DEFAULTS = ("serving_default", "serve")
_EXPORT = (
    "Export it with signatures: model.export(folder) in Keras 3, model.save(folder) in older "
    "tf.keras, or tf.saved_model.save(model, folder, signatures=…)."
)


def load(spec):
    """The service of a SavedModel folder."""
    folder = find_saved_model(model_path(spec))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tensorflow = needed("tensorflow", "tensorflow")
    numpy = needed("numpy", "tensorflow")
    signatures = _signatures(tensorflow, folder, numpy)
    named = [name for name in _DEFAULTS if name in signatures]
    default = named[0] if named else sorted(signatures)[0]
    warm_up(signatures[default], numpy)
    loaded = Loaded("tensorflow", "tensorflow_savedmodel", signatures, default, True)
    return TensorService(loaded, spec)


def find_saved_model(root):
    """The SavedModel folder at or below `root`; of numbered versions the latest."""
    if os.path.isfile(root):
        if os.path.basename(root) in _FILES:
            return os.path.dirname(root)
        raise CannotServe(
            "%s is a file, where TensorFlow's SavedModel is a folder. %s" % (root, _EXPORT)
        )
    found = []
    for parent, folders, names in os.walk(root):
        folders.sort()
        if any(name in _FILES for name in names):
            found.append(parent)
            folders[:] = []
    if not found:
        listed = ", ".join(sorted(os.listdir(root))[:10]) or "nothing"
        raise CannotServe(
            "The model's folder has no SavedModel (saved_model.pb); it has: %s. %s"
            % (listed, _EXPORT)
        )
    numbered = [path for path in found if os.path.basename(path).isdigit()]
    if numbered:
        return max(numbered, key=lambda path: int(os.path.basename(path)))
    if len(found) > 1:
        listed = ", ".join(os.path.relpath(path, root) for path in found[:10])
        raise CannotServe(
            "The model's folder has several SavedModels: %s. Register one of them." % listed
        )
    return found[0]


def _load_quietly(v1, session, folder):
    """Load a SavedModel without the notice that this way to do it is an old one."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return v1.saved_model.loader.load(session, ["serve"], folder)
    finally:
        logger.setLevel(before)


def _signatures(tensorflow, folder, numpy):
    v1 = getattr(tensorflow, "compat", tensorflow)
    v1 = getattr(v1, "v1", tensorflow)
    config = v1.ConfigProto(
        intra_op_parallelism_threads=cores(), inter_op_parallelism_threads=cores()
    )
    session = v1.Session(graph=tensorflow.Graph(), config=config)
    with session.graph.as_default():
        try:
            meta = _load_quietly(v1, session, folder)
        except Exception as problem:
            text = " ".join(str(problem).split())
            if "could not be found in SavedModel" in text:
                raise CannotServe("The SavedModel has no graph for serving. %s" % _EXPORT)
            raise CannotServe(
                "TensorFlow %s cannot load the SavedModel: %s: %s"
                % (tensorflow.__version__, type(problem).__name__, text)
            )
        defined = {
            name: definition
            for name, definition in meta.signature_def.items()
            if name != _INTERNAL and definition.inputs and definition.outputs
        }
        if not defined:
            raise CannotServe(
                "The SavedModel has no signatures, so nothing says what goes in and out. %s"
                % _EXPORT
            )
        errors = tensorflow.errors
        bad_input = (ValueError, TypeError, errors.InvalidArgumentError, errors.UnimplementedError)
        return {
            name: _signature(name, definition, session, v1, numpy, bad_input)
            for name, definition in defined.items()
        }


def _signature(name, definition, session, v1, numpy, bad_input):
    graph = session.graph
    inputs = sorted(definition.inputs.items())
    outputs = sorted(definition.outputs.items())
    try:
        feeds = [graph.get_tensor_by_name(info.name) for _, info in inputs]
        fetches = [graph.get_tensor_by_name(info.name) for _, info in outputs]
    except (KeyError, ValueError) as problem:
        raise CannotServe("Signature %s cannot be served: %s" % (name, problem))
    described = [_tensor(key, info, v1) for key, info in inputs]
    results = [_tensor(key, info, v1) for key, info in outputs]
    return Signature(
        name,
        described,
        results,
        _call(session.make_callable(fetches, feed_list=feeds), results, numpy),
        unshaped=any(info.tensor_shape.unknown_rank for _, info in inputs),
        batches=all(tensor.shape[:1] == [-1] for tensor in described + results),
        bad_input=bad_input,
    )


def _tensor(name, info, v1):
    dtype = v1.as_dtype(info.dtype)
    if dtype == v1.string:
        datatype = "BYTES"
    else:
        datatype = datatype_of(_Named(dtype.name))
    if info.tensor_shape.unknown_rank:
        return Tensor(name, datatype, [-1])
    return Tensor(name, datatype, [int(one.size) for one in info.tensor_shape.dim])


class _Named(object):
    def __init__(self, name):
        self.name = name


def _call(run, results, numpy):
    texts = [place for place, tensor in enumerate(results) if tensor.datatype == "BYTES"]

    def score(arrays):
        found = run(*arrays)
        for place in texts:
            found[place] = _readable(found[place], results[place].name, numpy)
        return found

    return score


def _readable(array, name, numpy):
    """Bytes as text; TF Serving's rule for others: names that end in _bytes are base64."""
    flat = numpy.empty(array.size, dtype=object)
    for place, value in enumerate(numpy.asarray(array, dtype=object).reshape(-1)):
        flat[place] = value
        if isinstance(value, bytes):
            try:
                if name.endswith("_bytes"):
                    raise ValueError
                flat[place] = value.decode("utf-8")
            except ValueError:
                flat[place] = {"b64": base64.b64encode(value).decode("ascii")}
    return flat.reshape(array.shape)
