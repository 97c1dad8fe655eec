"""Scores with an ONNX model, by onnxruntime."""

import os

from runyard_runtime.scorers.base import (
    CannotServe,
    Loaded,
    Signature,
    Tensor,
    cores,
    model_file,
    needed,
    warm_up,
)
from runyard_runtime.scoring_batches import TensorService

_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
}


def load(spec):
    """The service of an ONNX file."""
    runtime = needed("onnxruntime", "onnx")
    numpy = needed("numpy", "onnx")
    path = model_file(spec, (".onnx",), "An ONNX model")
    session = _session(runtime, path)
    inputs = [Tensor(one.name, _datatype(one), _shape(one.shape)) for one in session.get_inputs()]
    outputs = [_output(one) for one in session.get_outputs()]
    signature = Signature(
        "serving_default",
        inputs,
        outputs,
        _call(session, inputs, outputs, numpy),
        bad_input=_bad_input(runtime),
    )
    warm_up(signature, numpy)
    signatures = {signature.name: signature}
    loaded = Loaded("onnx", "onnxruntime_onnxv1", signatures, signature.name, True)
    return TensorService(loaded, spec)


def _session(runtime, path):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.inter_op_num_threads = 1
    providers = runtime.get_available_providers()
    order = ("CUDAExecutionProvider", "CPUExecutionProvider")
    usable = [name for name in order if name in providers]
    try:
        return runtime.InferenceSession(path, options, providers=usable)
    except Exception as problem:
        text = " ".join(str(problem).split())
        if "NO_SUCHFILE" in text or not os.path.isfile(path):
            raise CannotServe("The ONNX file is not there: %s." % path)
        if "Protobuf" in text or "INVALID_PROTOBUF" in text or "ModelProto" in text:
            raise CannotServe(
                "%s is not an ONNX file (onnxruntime says: %s). Export the model to ONNX, or give "
                "the framework that it was saved with." % (path, text)
            )
        raise CannotServe("onnxruntime %s cannot load %s: %s" % (runtime.__version__, path, text))


def _datatype(one):
    kind = one.type
    word = kind[len("tensor(") : -1] if kind.startswith("tensor(") else None
    if word not in _DATATYPES:
        raise CannotServe(
            "Input %s of the model is a %s; tensors of numbers and text are served. Give an entry "
            "script for others." % (one.name, kind)
        )
    return _DATATYPES[word]


def _shape(shape):
    return [size if isinstance(size, int) else -1 for size in shape]


def _output(one):
    if one.type.startswith("tensor("):
        return Tensor(one.name, _DATATYPES.get(one.type[7:-1], "FP32"), _shape(one.shape))
    return Tensor(one.name, "FP32", [-1, -1])  # scikit-learn's maps of probabilities


def _call(session, inputs, outputs, numpy):
    names = [tensor.name for tensor in inputs]
    wanted = [tensor.name for tensor in outputs]
    run = session.run

    def score(arrays):
        found = run(wanted, dict(zip(names, arrays)))
        for place, value in enumerate(found):
            if type(value) is list:
                found[place] = _plain(value, numpy)
        return found

    return score


def _plain(values, numpy):
    """Rows of {class: probability} as a matrix, in the order of the classes."""
    if values and isinstance(values[0], dict):
        return numpy.array([list(row.values()) for row in values], dtype=numpy.float32)
    return numpy.array(values)


def _bad_input(runtime):
    state = getattr(getattr(runtime, "capi", None), "onnxruntime_pybind11_state", None)
    names = ("InvalidArgument", "RuntimeException", "Fail")
    found = tuple(getattr(state, name) for name in names if hasattr(state, name))
    return (ValueError, TypeError) + found
