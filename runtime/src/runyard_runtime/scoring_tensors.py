"""Tensors as the request formats write them, to and from numpy arrays and rows."""

import base64
import binascii
import re
import struct

from runyard_runtime import scoring_schema
from runyard_runtime.scorers import base

# ONNX's numbers for types (onnx.TensorProto.DataType) and TensorFlow's names.
_ONNX_TYPES = {
    1: "FP32",
    2: "UINT8",
    3: "INT8",
    4: "UINT16",
    5: "INT16",
    6: "INT32",
    7: "INT64",
    8: "BYTES",
    9: "BOOL",
    10: "FP16",
    11: "FP64",
    12: "UINT32",
    13: "UINT64",
}
_ONNX_NAMES = "UNDEFINED FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE"
_ONNX_NUMBERS = dict(
    {name: number for number, name in enumerate(_ONNX_NAMES.split())}, UINT32=12, UINT64=13
)
_PROTO_FIELDS = ("floatData", "int32Data", "int64Data", "doubleData", "uint64Data")
_TF_TYPES = {
    "FP16": "DT_HALF",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BOOL": "DT_BOOL",
    "BYTES": "DT_STRING",
}
_LENGTH = struct.Struct("<I")


class BadRequest(Exception):
    """A request that cannot be scored, and why: told to who sent it."""

    def __init__(self, text, status=400):
        super(BadRequest, self).__init__(text)
        self.status = status


class Ask(object):
    """One request for the model: a value for each input, and how its answer is written.

    Values are nested lists with one item a row, or arrays where the format said the type. An
    answer is written from lists, or from arrays by formats that write types and shapes.
    """

    __slots__ = (
        "arrays",
        "binary",
        "context",
        "count",
        "render",
        "signature",
        "values",
        "wanted",
        "wants_lists",
    )

    def __init__(self, signature, values, render, arrays=False, wants_lists=True):
        self.signature = signature
        self.values = values
        self.render = render
        self.arrays = arrays
        self.wants_lists = wants_lists
        self.count = 0
        if signature.batches:
            for value in values:
                if not arrays and type(value) is not list:
                    raise BadRequest("Every input should be a list with one item for each row.")
                if arrays and not value.shape:
                    raise BadRequest("Every input should have a dimension for its rows.")
            self.count = len(values[0])
            if len(values) > 1 and any(len(value) != self.count for value in values):
                raise BadRequest("The inputs differ in their number of rows.")


# Rows ---------------------------------------------------------------------------------------------


def rows_of_records(records, columns):
    """[{name: value}, …] as rows in the order of `columns`."""
    try:
        rows = [[record[name] for name in columns] for record in records]
    except KeyError as problem:
        raise BadRequest("A row has no value for %s." % problem)
    except TypeError:
        raise BadRequest("Some rows are objects and some are not.")
    known = set(columns)
    for record in records:
        if len(record) != len(known):
            unknown = sorted(str(name) for name in record if name not in known)
            raise BadRequest("The model has no column %s." % ", ".join(unknown))
    return rows


def rows_of_columns(data, columns):
    """{name: [values]} as rows; also pandas' "split" form, {"columns": names, "data": rows}."""
    if type(data.get("columns")) is list and type(data.get("data")) is list:
        names = data["columns"]
        return rows_of_records([dict(zip(names, row)) for row in data["data"]], columns)
    missing = [name for name in columns if name not in data]
    unknown = sorted(str(name) for name in data if name not in columns)
    if missing or unknown:
        raise BadRequest(
            "The columns do not fit: missing %s; not known %s."
            % (", ".join(missing) or "none", ", ".join(unknown) or "none")
        )
    found = []
    for name in columns:
        values = data[name]
        if type(values) is dict:  # pandas' own to_dict(): {name: {index: value}}
            values = list(values.values())
        if type(values) is not list:
            raise BadRequest("Column %s should be a list of values." % name)
        found.append(values)
    if len({len(values) for values in found}) > 1:
        raise BadRequest("The columns differ in length.")
    return [list(row) for row in zip(*found)]


def check_width(rows, columns):
    """Rows of mixed values have one for each column."""
    if not rows:
        raise BadRequest("There are no rows.")
    for row in rows:
        if type(row) is not list or len(row) != len(columns):
            have = len(row) if type(row) is list else "no list of"
            raise BadRequest("A row has %s values, where %d are needed." % (have, len(columns)))


def with_bytes(value):
    """Nested lists with {"b64": …} replaced by the bytes it stands for."""
    if type(value) is list:
        return [with_bytes(item) for item in value]
    if type(value) is dict and len(value) == 1 and "b64" in value:
        return _from_base64(value["b64"])
    return value


def _from_base64(text):
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as problem:
        raise BadRequest("A value is not base64: %s." % problem)


# ONNX Runtime's server: TensorProto as JSON -------------------------------------------------------


def from_proto(value, tensor, numpy):
    """The array of a TensorProto."""
    if type(value) is not dict:
        raise BadRequest('Input %s should have "dims" and "dataType".' % tensor.name)
    number = value.get("dataType", 1)
    datatype = _ONNX_TYPES.get(_onnx_number(number))
    if datatype is None:
        raise BadRequest("Input %s has the unknown dataType %s." % (tensor.name, repr(number)[:40]))
    if datatype == "BYTES":
        texts = value.get("stringData") or []
        if type(texts) is not list:
            raise BadRequest('Input %s: "stringData" should be a list.' % tensor.name)
        texts = [_from_base64(one) for one in texts]
        array = numpy.array([_text(one) for one in texts], dtype=object)
    elif "rawData" in value:
        array = _from_raw(_from_base64(value["rawData"]), datatype, tensor.name, numpy)
    else:
        found = [value[field] for field in _PROTO_FIELDS if field in value]
        if not found:
            raise BadRequest('Input %s has neither "rawData" nor numbers.' % tensor.name)
        array = _typed(found[0], datatype, tensor.name, numpy)
    return _shaped(array, value.get("dims", []), tensor.name)


def _onnx_number(given):
    """ONNX's number of a type that is given as a number, its digits or its name; None: none."""
    if type(given) is str:
        return _ONNX_NUMBERS.get(given) or (int(given) if re.match("^[0-9]{1,3}$", given) else None)
    return given if type(given) is int else None


def to_proto(array, numpy):
    """An array as a TensorProto."""
    datatype = base.datatype_of(array.dtype)
    number = next(key for key, name in _ONNX_TYPES.items() if name == datatype)
    proto = {"dims": [str(size) for size in array.shape], "dataType": number}
    if datatype == "BYTES":
        proto["stringData"] = [_to_base64(_bytes(one)) for one in array.reshape(-1).tolist()]
    else:
        proto["rawData"] = _to_base64(numpy.ascontiguousarray(array).tobytes())
    return proto


def _to_base64(data):
    return base64.b64encode(data).decode("ascii")


# The Open Inference Protocol ----------------------------------------------------------------------


def from_tensors(tensors, raw, numpy):
    """{name: array} of a request's inputs; `raw` is what follows the JSON."""
    found, start = {}, 0
    for one in tensors:
        if type(one) is not dict or not isinstance(one.get("name"), str):
            raise BadRequest('Every input should be {"name", "shape", "datatype", "data"}.')
        name, datatype = one["name"], one.get("datatype")
        if type(datatype) is not str or datatype not in base.NUMPY:
            raise BadRequest(
                "Input %s has the datatype %s; known are: %s."
                % (name, repr(datatype)[:40], ", ".join(sorted(base.NUMPY)))
            )
        size = parameters_of(one).get("binary_data_size")
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(raw) - start:
                raise BadRequest("Input %s: binary_data_size does not fit the body." % name)
            array = _from_raw(raw[start : start + size], datatype, name, numpy)
            start += size
        elif "data" not in one:
            raise BadRequest('Input %s has no "data".' % name)
        elif datatype == "BYTES":
            array = numpy.array(_flat(one["data"]), dtype=object)
        else:
            array = _typed(_flat(one["data"]), datatype, name, numpy)
        found[name] = _shaped(array, one.get("shape", []), name)
    return found


def parameters_of(document):
    """The "parameters" of a request, an input or an output."""
    found = document.get("parameters")
    if found is None:
        return {}
    if type(found) is not dict:
        raise BadRequest('"parameters" should be an object.')
    return found


def arranged(given, signature, named, numpy):
    """The arrays in the order of the signature's inputs, of the types that the model takes."""
    names = [tensor.name for tensor in signature.inputs]
    if len(given) == 1 and (signature.columns is not None or (len(names) == 1 and not named)):
        array = list(given.values())[0]
        if signature.loose:
            rows = array.tolist()
            check_width(rows, signature.columns)
            return [rows]
        return [array]
    if signature.columns is not None:
        data = {name: array.reshape(-1).tolist() for name, array in given.items()}
        rows = rows_of_columns(data, signature.columns)
        return [rows if signature.loose else numpy.array(rows)]
    missing = [name for name in names if name not in given]
    unknown = sorted(name for name in given if name not in names)
    if missing or unknown:
        raise BadRequest(
            "The inputs do not fit: missing %s; not known %s."
            % (", ".join(missing) or "none", ", ".join(unknown) or "none")
        )
    for tensor in signature.inputs:
        have = base.datatype_of(given[tensor.name].dtype)
        if have != tensor.datatype and not signature.unshaped:
            raise BadRequest(
                "Input %s should have the datatype %s, but has %s."
                % (tensor.name, tensor.datatype, have)
            )
    return [given[name] for name in names]


def to_tensor(name, array, binary, numpy):
    """(the tensor as JSON, the bytes that follow the JSON) of an output."""
    datatype = base.datatype_of(array.dtype)
    tensor = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    flat = array.reshape(-1)
    if not binary:
        values = flat.tolist()
        tensor["data"] = [_text(one) for one in values] if datatype == "BYTES" else values
        return tensor, b""
    if datatype == "BYTES":
        texts = [_bytes(one) for one in flat.tolist()]
        raw = b"".join(_LENGTH.pack(len(text)) + text for text in texts)
    else:
        raw = numpy.ascontiguousarray(flat).tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    return tensor, raw


def _from_raw(raw, datatype, name, numpy):
    if datatype == "BYTES":
        return numpy.array(_length_prefixed(raw, name), dtype=object)
    dtype = numpy.dtype(base.NUMPY[datatype])
    if len(raw) % dtype.itemsize:
        raise BadRequest(
            "Input %s: %d bytes are no whole number of %s." % (name, len(raw), datatype)
        )
    return numpy.frombuffer(raw, dtype=dtype)


def _length_prefixed(raw, name):
    found, start = [], 0
    while start < len(raw):
        if len(raw) - start < 4:
            raise BadRequest("Input %s: its bytes end within a text." % name)
        (size,) = _LENGTH.unpack_from(raw, start)
        start += 4 + size
        if start > len(raw):
            raise BadRequest("Input %s: its bytes end within a text." % name)
        found.append(_text(raw[start - size : start]))
    return found


def _typed(values, datatype, name, numpy):
    try:
        return numpy.array(values, dtype=base.NUMPY[datatype])
    except (OverflowError, TypeError, ValueError) as problem:
        raise BadRequest("Input %s does not hold %s: %s." % (name, datatype, problem))


def _shaped(array, shape, name):
    try:
        if type(shape) is not list:
            raise TypeError()
        return array.reshape([int(size) for size in shape])
    except (OverflowError, TypeError, ValueError):
        words = repr(shape)[:100]
        raise BadRequest("Input %s: %d values do not fill %s." % (name, array.size, words))


def _flat(values):
    if type(values) is not list:
        raise BadRequest('"data" should be a list.')
    while values and type(values[0]) is list:
        if not all(type(value) is list for value in values):
            raise BadRequest("An input is not a full array: its rows differ in length.")
        values = [item for value in values for item in value]
    return values


def _text(value):
    """Bytes as text where they are; else as they are."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    return value


def _bytes(value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8")


# What a model is, in the words of each protocol ---------------------------------------------------


def inference_metadata(loaded, name, versions):
    """A model in the words of the Open Inference Protocol."""
    signature = loaded.signatures[loaded.default]
    return {
        "name": name,
        "versions": versions,
        "platform": loaded.platform,
        "inputs": scoring_schema.tensors(signature.inputs),
        "outputs": scoring_schema.tensors(signature.outputs),
    }


def serving_metadata(loaded, name, version):
    """A model in the words of TF Serving."""
    signatures = {
        key: {
            "inputs": {tensor.name: _tensor_info(tensor) for tensor in signature.inputs},
            "outputs": {tensor.name: _tensor_info(tensor) for tensor in signature.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        for key, signature in loaded.signatures.items()
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def _tensor_info(tensor):
    shape = [{"size": str(size), "name": ""} for size in tensor.shape]
    return {
        "dtype": _TF_TYPES.get(tensor.datatype, "DT_" + tensor.datatype),
        "tensor_shape": {"dim": shape, "unknown_rank": False},
        "name": tensor.name,
    }
