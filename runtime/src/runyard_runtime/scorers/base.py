"""The seam between a worker and the frameworks: signatures, and words for what cannot be served.

A framework's scorer finds the model's file, loads it and describes it as `Loaded`: signatures of
named tensors with a function each. Protocols, validation and batches are the same for all of them
and stand elsewhere (`scoring_protocols`, `scoring_batches`).
"""

import collections
import importlib
import os

_LONGEST = 1200  # characters; frameworks can be wordy

# A tensor in the words of the Open Inference Protocol; -1 is a dimension that varies.
Tensor = collections.namedtuple("Tensor", "name datatype shape")

# `signatures` is {name: Signature}; a request that names none gets `default`. `named` says whether
# the names of inputs are the model's own; else a request may call its one input what it likes.
Loaded = collections.namedtuple("Loaded", "scorer platform signatures default named")


class CannotServe(Exception):
    """The model or script cannot be served, and why. One line: it ends up in the diagnosis."""

    def __init__(self, text):
        super(CannotServe, self).__init__(" ".join(text.split())[:_LONGEST])


class Signature(object):
    """One way to call a model.

    `call` takes one array for each input and returns one for each output. `batches` says whether
    rows of several requests may go into one call. `columns` are the names of the features where
    the model knows them; `loose` models take rows of mixed values (text, numbers, null) and get
    them as plain lists; `unshaped` ones do not say which shapes and types they take. `bad_input`
    are the exceptions by which the model refuses what it is given.
    """

    def __init__(self, name, inputs, outputs, call, **more):
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.call = call
        self.batches = more.get("batches", all(_varies(tensor) for tensor in inputs))
        self.columns = more.get("columns")
        self.loose = more.get("loose", False)
        self.nan_allowed = more.get("nan_allowed", False)
        self.finite_checked = more.get("finite_checked", False)  # the model does it itself
        self.bad_input = more.get("bad_input", (ValueError, TypeError))
        self.unshaped = more.get("unshaped", False)
        # Rows of equal shape can be joined before they become an array, which is quicker.
        self.fixed = not self.unshaped and all(
            min(tensor.shape[1:] or [1]) >= 0 for tensor in inputs
        )


def _varies(tensor):
    return bool(tensor.shape) and tensor.shape[0] < 0


def needed(name, scorer):
    """The package of that name out of the model's environment, or words on how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        top = name.split(".")[0]
        install = {"sklearn": "scikit-learn"}.get(top, top)
        raise CannotServe(
            "The model's environment has no %s, which the scorer '%s' needs (%s). "
            "Add %s to the environment's pip packages." % (top, scorer, problem, install)
        )


def model_path(spec):
    """The file or folder of the one model that is served without a script."""
    models = spec.get("models") or []
    if len(models) != 1:
        raise CannotServe(
            "Without an entry script one model is served, but there are %d. "
            "Deploy one model, or give an InferenceConfig with an entry script." % len(models)
        )
    model = models[0]
    path = model.get("path") or own_folder(spec, model)
    if not os.path.exists(path):
        raise CannotServe(
            "The file of model %s:%s is not there: %s. Register the model again with the path of "
            "its file." % (model["name"], model["version"], path)
        )
    return path


def own_folder(spec, model):
    """Where the files of a model lie: v1's azureml-models/NAME/VERSION."""
    return os.path.join(spec.get("models_dir") or "", model["name"], str(model["version"]))


def model_file(spec, suffixes, what):
    """The one file of the model with one of `suffixes`; a model that is a file is that file."""
    root = model_path(spec)
    if os.path.isfile(root):
        return root
    files = _files_below(root)
    fitting = [path for path in files if path.lower().endswith(suffixes)]
    if len(fitting) == 1:
        return os.path.join(root, fitting[0])
    if not fitting and len(files) == 1:
        return os.path.join(root, files[0])
    listed = ", ".join((fitting or files)[:10]) or "nothing"
    raise CannotServe(
        "%s was expected, a file that ends in %s, but the model's folder has: %s. Register the "
        "model with the path of that one file." % (what, " or ".join(suffixes), listed)
    )


def _files_below(root):
    found = []
    for parent, folders, names in os.walk(root):
        folders.sort()
        found += [os.path.relpath(os.path.join(parent, name), root) for name in sorted(names)]
    return found


def cores():
    """How many cores this worker may use."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdigit() and int(told) > 0:
        return int(told)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warm_up(signature, numpy):
    """Call the model once with zeros, so that the first request need not wait; None, or the error.

    A model that does not like zeros is no broken model: what it says is only of interest where
    something else looked wrong.
    """
    shapes = [[1 if size < 0 else size for size in tensor.shape] for tensor in signature.inputs]
    try:
        arrays = [
            numpy.full(shape, b"" if tensor.datatype == "BYTES" else 0, NUMPY[tensor.datatype])
            for tensor, shape in zip(signature.inputs, shapes)
        ]
        signature.call(arrays)
    except Exception as problem:
        return problem
    return None


# numpy's words for the datatypes of the Open Inference Protocol.
NUMPY = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}
DATATYPES = {name: datatype for datatype, name in NUMPY.items()}


def datatype_of(dtype):
    """The protocol's word for the dtype of an array."""
    return DATATYPES.get(dtype.name, "BYTES")
