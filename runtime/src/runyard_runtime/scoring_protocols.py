"""The request formats a model speaks: read into tensors, and answers written the same way.

    v1's            {"data": rows, "method": "predict"}             → {"predict": rows}
    TF Serving      {"instances": rows, "signature_name": …}        → {"predictions": rows}
                    {"inputs": {name: tensor}}                      → {"outputs": {name: tensor}}
    ONNX Runtime    {"inputs": {name: {"dims", "dataType", …}}}     → the same under "outputs"
    Open Inference  {"inputs": [{"name", "shape", "datatype", …}]}  → the same under "outputs"

Every model that takes tensors speaks all of them on the scoring path, told apart by their shape;
each also has the path that its own clients use.
"""

import json
import re

from runyard_runtime import scoring_tensors
from runyard_runtime.scoring_tensors import Ask, BadRequest, with_bytes

__all__ = ["Ask", "BadRequest", "Protocols", "with_bytes"]

_V1 = re.compile(
    r"^/v1/models/(?P<name>[^/:]+)(?:/(?:versions|labels)/(?P<version>[^/:]+))?"
    r"(?P<verb>:\w+|/metadata)?/?$"
)
_V2 = re.compile(
    r"^/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?P<verb>/infer|/ready)?/?$"
)
_ANY_MODEL = "default"  # ONNX Runtime's server took any name, and its clients say this one
_ROUTES_KEPT = 256
_HEADER_LENGTH = "inference-header-content-length"  # v2: what follows the JSON are raw tensors


class Protocols(object):
    """Reads requests for one model."""

    def __init__(self, loaded, models, numpy, loads, dumps):
        self._loaded = loaded
        self._models = models
        self._numpy = numpy
        self._loads = loads
        self._dumps = dumps
        self._routes = {}
        self._default = loaded.signatures[loaded.default]

    def read(self, head, body):
        """An `Ask` for the model, or the finished reply where no model is needed."""
        if not head:
            return self._scored(self._document(body))
        route = self._routes.get(head)
        if route is None:
            route = self._route(json.loads(head.decode("utf-8")))
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            self._routes[head] = route
        reader, detail = route
        return reader(body, detail)

    def _route(self, head):
        path = head.get("path") or "/score"
        method = head.get("method") or "POST"
        headers = {name.lower(): value for name, value in (head.get("headers") or {}).items()}
        if "protobuf" in headers.get("content-type", ""):
            raise BadRequest("Bodies are JSON here, not protobuf.", 415)
        coding = headers.get("content-encoding", "identity")
        if coding != "identity":
            text = "Bodies are not taken in the encoding %s; send them plain." % coding
            raise BadRequest(text, 415)
        found = _V1.match(path)
        if found:
            return self._route_v1(found, method)
        found = _V2.match(path)
        if found:
            return self._route_v2(found, method, headers)
        if path.rstrip("/") == "/v2" and method == "GET":
            return self._say, {
                "name": "runyard",
                "version": "2",
                "extensions": ["binary_tensor_data"],
            }
        if path.startswith(("/v1/", "/v2/")):
            raise BadRequest("There is nothing at %s." % path, 404)
        if method != "POST":
            raise BadRequest("Scoring takes POST, not %s." % method, 405)
        return lambda body, detail: self._scored(self._document(body)), None

    def _route_v1(self, found, method):
        name, version = self._model(found)
        verb = found.group("verb")
        if verb in (":predict", ":classify", ":regress"):
            if verb != ":predict":
                raise BadRequest("The verb %s is not served; use :predict." % verb, 404)
            if method != "POST":
                raise BadRequest("%s takes POST, not %s." % (verb, method), 405)
            return lambda body, detail: self._served(self._document(body)), None
        if verb not in (None, "/metadata"):
            raise BadRequest("The verb %s is not known; use :predict." % verb, 404)
        if verb is None:
            status = {"error_code": "OK", "error_message": ""}
            state = {"version": version, "state": "AVAILABLE", "status": status}
            return self._say, {"model_version_status": [state]}
        return self._say, scoring_tensors.serving_metadata(self._loaded, name, version)

    def _route_v2(self, found, method, headers):
        name, version = self._model(found)
        verb = found.group("verb")
        if verb == "/ready":
            return self._say, {"name": name, "ready": True}
        if verb is None:
            return self._say, scoring_tensors.inference_metadata(self._loaded, name, [version])
        if method != "POST":
            raise BadRequest("/infer takes POST, not %s." % method, 405)
        return self._inferred, (name, version, headers.get(_HEADER_LENGTH))

    def _model(self, found):
        """(name, version) of the model that a path names."""
        name, version = found.group("name"), found.group("version")
        for model in self._models:
            known = str(model["version"])
            if name == _ANY_MODEL or (name == model["name"] and version in (None, known)):
                return name, known
        served = ", ".join("%s:%s" % (one["name"], one["version"]) for one in self._models)
        asked = name if version is None else "%s:%s" % (name, version)
        raise BadRequest("Model %s is not served here, only %s." % (asked, served), 404)

    def _say(self, body, document):
        return 200, b"", self._dumps(document)

    def _document(self, body):
        try:
            return self._loads(body)
        except ValueError as problem:
            raise BadRequest(str(problem))
        except RecursionError:
            raise BadRequest("The body is nested too deep.")

    def _scored(self, document):
        """A request on the scoring path: the shape of the document says which format it is."""
        if type(document) is dict:
            if "data" in document:
                return self._data(document)
            if "inputs" in document or "instances" in document:
                return self._served(document)
        elif type(document) is list:
            return self._data({"data": document})
        raise BadRequest('The body should be an object with "data", "instances" or "inputs".')

    def _served(self, document):
        """TF Serving's and ONNX Runtime's formats, which share a path."""
        if type(document) is not dict:
            raise BadRequest('The body should be an object with "instances" or "inputs".')
        if "instances" in document:
            return self._instances(document)
        inputs = document.get("inputs")
        if type(inputs) is list and inputs and _is_v2_tensor(inputs[0]):
            return self._tensors(document, self._models[0], b"")
        if type(inputs) is dict and any(_is_proto(value) for value in inputs.values()):
            return self._protos(document)
        if "inputs" in document:
            return self._columns(document)
        raise BadRequest('The body should have "instances" or "inputs".')

    def _signature(self, name):
        if name is None:
            return self._default
        found = self._loaded.signatures.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted(self._loaded.signatures))
            raise BadRequest("The model has no %r; it has: %s." % (name, known))
        return found

    # v1's format --------------------------------------------------------------------------------

    def _data(self, document):
        signature = self._signature(document.get("method"))
        data = document["data"]
        if type(data) is dict:
            if signature.columns is None:
                return Ask(signature, self._by_name(data, signature), self._render_data)
            data = scoring_tensors.rows_of_columns(data, signature.columns)
        if type(data) is not list:
            raise BadRequest('"data" should be a list of rows.')
        if data and type(data[0]) is dict:
            if signature.columns is not None:
                data = scoring_tensors.rows_of_records(data, signature.columns)
            elif len(signature.inputs) > 1:
                return Ask(signature, _rows_by_name(data, signature), self._render_data)
        if signature.loose:
            scoring_tensors.check_width(data, signature.columns)
        elif len(signature.inputs) > 1:
            raise BadRequest('"data" should be {input: rows}: the model has several inputs.')
        return Ask(signature, [data], self._render_data)

    def _render_data(self, ask, lists):
        names = [tensor.name for tensor in ask.signature.outputs]
        return 200, b"", self._dumps(dict(zip(names, lists)))

    # TF Serving's -------------------------------------------------------------------------------

    def _instances(self, document):
        signature = self._signature(document.get("signature_name"))
        rows = document["instances"]
        if type(rows) is not list or not rows:
            raise BadRequest('"instances" should be a list with at least one row.')
        first = rows[0]
        named = type(first) is dict and "b64" not in first
        if signature.columns is not None and named:
            values = [scoring_tensors.rows_of_records(rows, signature.columns)]
        elif named:
            values = _rows_by_name(rows, signature)
        elif len(signature.inputs) == 1 or signature.loose:
            values = [rows]
        else:
            raise BadRequest('"instances" should be objects: the model has several inputs.')
        if signature.loose:
            scoring_tensors.check_width(values[0], signature.columns)
        return Ask(signature, values, self._render_rows)

    def _render_rows(self, ask, lists):
        if len(lists) == 1:
            rows = lists[0]
        else:
            names = [tensor.name for tensor in ask.signature.outputs]
            rows = [dict(zip(names, row)) for row in zip(*lists)]
        return 200, b"", self._dumps({"predictions": rows})

    def _columns(self, document):
        signature = self._signature(document.get("signature_name"))
        inputs = document["inputs"]
        named = type(inputs) is dict and "b64" not in inputs
        if signature.columns is not None and named:
            values = [scoring_tensors.rows_of_columns(inputs, signature.columns)]
        elif named:
            values = self._by_name(inputs, signature)
        elif len(signature.inputs) == 1:
            values = [inputs]
        else:
            raise BadRequest('"inputs" should be {input: tensor}: the model has several inputs.')
        return Ask(signature, values, self._render_columns)

    def _render_columns(self, ask, lists):
        if len(lists) == 1:
            return 200, b"", self._dumps({"outputs": lists[0]})
        names = [tensor.name for tensor in ask.signature.outputs]
        return 200, b"", self._dumps({"outputs": dict(zip(names, lists))})

    def _by_name(self, given, signature):
        names = [tensor.name for tensor in signature.inputs]
        if not self._loaded.named and len(names) == len(given) == 1:
            return list(given.values())
        _check_names(given, names)
        return [given[name] for name in names]

    # ONNX Runtime's server ----------------------------------------------------------------------

    def _protos(self, document):
        signature = self._signature(None)
        given = self._by_name(document["inputs"], signature)
        values = [
            scoring_tensors.from_proto(value, tensor, self._numpy)
            for value, tensor in zip(given, signature.inputs)
        ]
        ask = Ask(signature, values, self._render_protos, arrays=True, wants_lists=False)
        ask.wanted = _wanted(document.get("outputFilter"), signature)
        return ask

    def _render_protos(self, ask, arrays):
        outputs = {
            tensor.name: scoring_tensors.to_proto(array, self._numpy)
            for tensor, array in zip(ask.signature.outputs, arrays)
            if ask.wanted is None or tensor.name in ask.wanted
        }
        return 200, b"", self._dumps({"outputs": outputs})

    # The Open Inference Protocol ----------------------------------------------------------------

    def _inferred(self, body, detail):
        name, version, header_length = detail
        raw = b""
        if header_length is not None:
            found = re.match("^[0-9]{1,18}$", header_length)
            if not found or int(header_length) > len(body):
                raise BadRequest("%s is not a length within the body." % _HEADER_LENGTH)
            body, raw = body[: int(header_length)], body[int(header_length) :]
        document = self._document(body)
        if type(document) is not dict or type(document.get("inputs")) is not list:
            raise BadRequest('The body should have "inputs", a list of tensors.')
        return self._tensors(document, {"name": name, "version": version}, raw)

    def _tensors(self, document, model, raw):
        parameters = scoring_tensors.parameters_of(document)
        signature = self._signature(parameters.get("signature_name") or parameters.get("method"))
        given = scoring_tensors.from_tensors(document["inputs"], raw, self._numpy)
        values = scoring_tensors.arranged(given, signature, self._loaded.named, self._numpy)
        ask = Ask(
            signature, values, self._render_tensors, arrays=not signature.loose, wants_lists=False
        )
        asked = _asked_outputs(document)
        ask.wanted = _wanted([one["name"] for one in asked], signature)
        every = bool(parameters.get("binary_data_output"))
        ask.binary = (
            every
            and not asked
            or {
                one["name"]
                for one in asked
                if scoring_tensors.parameters_of(one).get("binary_data", every)
            }
        )
        ask.context = {"model_name": model["name"], "model_version": str(model["version"])}
        if "id" in document:
            ask.context["id"] = document["id"]
        return ask

    def _render_tensors(self, ask, arrays):
        outputs, tail = [], []
        for tensor, array in zip(ask.signature.outputs, arrays):
            if ask.wanted is not None and tensor.name not in ask.wanted:
                continue
            binary = ask.binary is True or tensor.name in ask.binary
            output, raw = scoring_tensors.to_tensor(tensor.name, array, binary, self._numpy)
            outputs.append(output)
            tail.append(raw)
        body = self._dumps(dict(ask.context, outputs=outputs))
        if not ask.binary:
            return 200, b"", body
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(body)),
        }
        head = json.dumps({"headers": headers}).encode("utf-8")
        return 200, head, body + b"".join(tail)


def _is_proto(value):
    return type(value) is dict and ("dims" in value or "dataType" in value)


def _is_v2_tensor(value):
    return type(value) is dict and "datatype" in value


def _rows_by_name(rows, signature):
    names = [tensor.name for tensor in signature.inputs]
    for row in rows:
        if type(row) is not dict:
            raise BadRequest("Some rows are objects and some are not.")
        _check_names(row, names)
    return [[row[name] for row in rows] for name in names]


def _check_names(given, names):
    missing = [name for name in names if name not in given]
    unknown = sorted(str(name) for name in given if name not in names)
    if missing or unknown:
        said = []
        if missing:
            said.append("input %s is missing" % ", ".join(missing))
        if unknown:
            said.append("the model has no input %s" % ", ".join(unknown))
        text = "; ".join(said)
        raise BadRequest(text[:1].upper() + text[1:] + ".")


def _asked_outputs(document):
    """The outputs that a request asks for, each with its name."""
    asked = document.get("outputs") or []
    if type(asked) is not list or not all(
        type(one) is dict and isinstance(one.get("name"), str) for one in asked
    ):
        raise BadRequest('"outputs" should be a list of {"name": …}.')
    return asked


def _wanted(names, signature):
    """The names of the outputs that a request asks for; None: all."""
    if not names:
        return None
    if type(names) is not list:
        raise BadRequest('"outputFilter" should be a list of names.')
    known = [tensor.name for tensor in signature.outputs]
    unknown = [str(name) for name in names if name not in known]
    if unknown:
        raise BadRequest(
            "The model has no output %s; it has: %s." % (", ".join(unknown), ", ".join(known))
        )
    return names
