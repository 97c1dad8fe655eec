"""What a model expects, in words, as an example, and as a schema for swagger. Pure."""

_NUMBERS = {"BOOL": ("boolean", True), "BYTES": ("string", "text")}
_EXAMPLE_LIMIT = 64  # values; of larger tensors an example shows the beginning of none


def describe(tensor):
    """One input or output in words: "x: FP32 of shape [any, 4]"."""
    shape = ", ".join("any" if size < 0 else str(size) for size in tensor.shape)
    return "%s: %s of shape [%s]" % (tensor.name, tensor.datatype, shape)


def expected(signature):
    """All inputs of a signature in words."""
    if signature.columns and len(signature.inputs) == 1:
        return "rows of %d values: %s" % (len(signature.columns), ", ".join(signature.columns))
    if signature.loose:
        return "rows with the columns %s" % ", ".join(
            "%s (%s)" % (tensor.name, tensor.datatype) for tensor in signature.inputs
        )
    return "; ".join(describe(tensor) for tensor in signature.inputs)


def tensors(found):
    """Inputs or outputs as JSON has them."""
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in found
    ]


def sample(signature, scorer):
    """An example of a body for the scoring path, in the format of the model's framework.

    None where the tensors are too large for an example to help, or of a width nobody knows.
    """
    rows = [row_of(tensor) for tensor in signature.inputs]
    if not signature.batches or any(row is None for row in rows):
        return None
    if scorer == "sklearn" and any(min(one.shape[1:] or [0]) < 0 for one in signature.inputs):
        return None
    if signature.loose:
        return {"data": [dict(zip((tensor.name for tensor in signature.inputs), rows))]}
    if len(rows) == 1:
        return {"data" if scorer == "sklearn" else "instances": [rows[0]]}
    return {"instances": [dict(zip((tensor.name for tensor in signature.inputs), rows))]}


def row_of(tensor):
    """One row of zeros or words, nested as the tensor is; None if it is too large to show."""
    shape = [1 if size < 0 else size for size in tensor.shape[1:]]
    size = 1
    for one in shape:
        size *= one
    if size > _EXAMPLE_LIMIT:
        return None
    value = _NUMBERS[tensor.datatype][1] if tensor.datatype in _NUMBERS else _zero(tensor.datatype)
    for one in reversed(shape):
        value = [value] * one
    return value


def swagger(signature, scorer):
    """{"input": schema, "output": schema} of the scoring path."""
    example = sample(signature, scorer)
    key = "data" if scorer == "sklearn" else "instances"
    rows = {"type": "array", "items": _row_schema(signature.inputs, signature.loose)}
    body = {"type": "object", "properties": {key: rows}, "required": [key]}
    if scorer == "sklearn":
        body["properties"]["method"] = {"type": "string", "default": signature.name}
    if example is not None:
        body["example"] = example
    answer = signature.name if scorer == "sklearn" else "predictions"
    results = {"type": "array", "items": _row_schema(signature.outputs, False)}
    return {"input": body, "output": {"type": "object", "properties": {answer: results}}}


def _row_schema(found, by_name):
    if len(found) == 1 and not by_name:
        return _value_schema(found[0])
    return {
        "type": "object",
        "properties": {tensor.name: _value_schema(tensor) for tensor in found},
    }


def _value_schema(tensor):
    schema = {"type": _NUMBERS.get(tensor.datatype, (_number(tensor.datatype),))[0]}
    for size in reversed(tensor.shape[1:]):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema["minItems"] = schema["maxItems"] = size
    return schema


def _number(datatype):
    return "number" if datatype.startswith("FP") else "integer"


def _zero(datatype):
    return 0.0 if datatype.startswith("FP") else 0
