"""Scores with the user's entry script: `init()` once, then `run(data)` for each request."""

import importlib.util
import inspect
import json
import os
import sys
import time
import traceback
import urllib.parse

from runyard_runtime import scoring_requests, wire
from runyard_runtime.scorers.base import CannotServe

_METHODS = ["POST", "GET"]
_RAW_METHODS = ["POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS"]
_HEADERS = "request_headers"  # a parameter of run() that gets the request's headers


def load(spec):
    """The service of a script, after its `init()`."""
    module = _imported(spec)
    for name in ("init", "run"):
        if not callable(getattr(module, name, None)):
            raise CannotServe(
                "The entry script %s has no function %s(). It needs init(), called once, and "
                "run(data), called for each request." % (spec["entry_script"], name)
            )
    module.init()
    return ScriptService(module.run, spec["entry_script"])


def _imported(spec):
    folder = os.path.abspath(spec.get("source_directory") or os.getcwd())
    if not spec.get("entry_script"):
        raise CannotServe("There is no entry script. Give it in InferenceConfig(entry_script=…).")
    path = os.path.join(folder, spec["entry_script"])
    if not os.path.isfile(path):
        there = ", ".join(sorted(os.listdir(folder))[:20]) if os.path.isdir(folder) else "nothing"
        raise CannotServe(
            "The entry script %s is not in the source directory, which has: %s. Check "
            "entry_script and source_directory of the InferenceConfig."
            % (spec["entry_script"], there or "nothing")
        )
    for place in (os.path.dirname(path), folder):
        if place not in sys.path:
            sys.path.insert(0, place)
    name = os.path.splitext(os.path.basename(path))[0].replace("-", "_")
    if name in sys.modules:  # a script may be called json.py
        name = "entry_module"
    found = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # classes of the script can be pickled, as when it is imported
    found.loader.exec_module(module)
    return module


class ScriptService(object):
    """Answers requests with `run` of a script."""

    def __init__(self, run, script):
        self._run = run
        self._raw = scoring_requests.is_raw(run)
        self._schema = None if self._raw else _schema_of(run)
        parameters = _parameters(run, script)
        self._wants_headers = any(one.name == _HEADERS for one in parameters)
        self._parameters = [one for one in parameters if one.name != _HEADERS]
        if not self._parameters:
            raise CannotServe(
                "run() of the entry script %s takes no argument for the data." % script
            )
        self._first = self._parameters[0].name

    def hello(self):
        """What the front end is told, see `scoring_wire`."""
        schema = self._schema or {}
        return {
            "scorer": "script",
            "platform": "script",
            "max_batch": 1,  # run() takes one request
            "methods": _RAW_METHODS if self._raw else _METHODS,
            "headers": self._raw or self._wants_headers,
            "inputs": [],
            "outputs": [],
            "sample": (schema.get("input") or {}).get("example"),
            "swagger": self._schema,
        }

    def answer(self, batch):
        """The replies to [(head, body), …], in their order."""
        return [self._one(head, body) for head, body in batch]

    def _one(self, head, body):
        told = json.loads(head.decode("utf-8")) if head else {}
        try:
            arguments = self._arguments(told, body)
        except _Bad as problem:
            return problem.status, b"", _dumps(self._explained(str(problem)))
        if self._wants_headers:
            arguments[_HEADERS] = scoring_requests.Headers(told.get("headers") or {})
        started = time.perf_counter()
        try:
            result = self._run(**arguments)
            took = (time.perf_counter() - started) * 1000
            return _reply(result, took)
        except (Exception, SystemExit) as problem:  # a script's sys.exit() is no reason to go
            if self._schema is not None and _is_of_conversion(problem.__traceback__):
                words = "The data does not fit: %s" % problem
                return 400, b"", _dumps(self._explained(words))
            # The traceback is for the log; who asked gets the words of the error.
            traceback.print_exc()
            document = {"error": "%s: %s" % (type(problem).__name__, problem)}
            head = {"Content-Type": "application/json", "x-ms-run-function-failed": "True"}
            return 500, _head(head), _dumps(document)

    def _explained(self, words):
        document = {"error": words}
        example = ((self._schema or {}).get("input") or {}).get("example")
        if example is not None:
            document["expected"] = "An object with " + ", ".join(
                one.name for one in self._parameters
            )
            document["example"] = example
        return document

    def _arguments(self, told, body):
        method = told.get("method") or "POST"
        if (told.get("path") or "").startswith(("/v1/", "/v2")):
            raise _Bad("An entry script is served at /score alone.", 404)
        if self._raw:
            request = scoring_requests.AMLRequest(
                method,
                told.get("path") or "/score",
                told.get("query") or "",
                told.get("headers") or {"Content-Type": "application/json"},
                body,
            )
            return {self._first: request}
        if method not in _METHODS:
            raise _Bad("The method %s is not served; use POST." % method, 405)
        coding = (told.get("headers") or {}).get("content-encoding", "identity")
        if coding != "identity":
            raise _Bad("Bodies are not taken in the encoding %s; send them plain." % coding, 415)
        if self._schema is None:
            if method == "GET":
                return {self._first: json.dumps(_of_query(told))}
            return {self._first: _text(body)}
        return self._by_schema(_of_query(told) if method == "GET" else _document(body))

    def _by_schema(self, document):
        """The keys of the body as arguments: what inference-schema's decorators convert."""
        if not isinstance(document, dict):
            raise _Bad("The body should be a JSON object.")
        found = {}
        for one in self._parameters:
            if one.name in document:
                found[one.name] = document[one.name]
            elif one.default is inspect.Parameter.empty:
                raise _Bad("The body has no value for %r." % one.name)
        return found


class _Bad(Exception):
    def __init__(self, text, status=400):
        super(_Bad, self).__init__(text)
        self.status = status


def _parameters(run, script):
    try:
        found = list(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):
        raise CannotServe("run() of the entry script %s has no signature." % script)
    fixed = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one for one in found if one.kind in fixed]


def _schema_of(run):
    """{"input", "output"} of a run() that inference-schema decorates, or None."""
    schemas = sys.modules.get("inference_schema.schema_util")
    if schemas is None or not schemas.is_schema_decorated(run):
        return None
    return {
        "input": schemas.get_input_schema(run),
        "output": schemas.get_output_schema(run),
    }


def _is_of_conversion(trace):
    """Whether an error comes from inference-schema, on the way from the body to run()."""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "deserialize_input" and "inference_schema" in code.co_filename:
            return True
        trace = trace.tb_next
    return False


def _text(body):
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise _Bad(
            "The body is not UTF-8 text: %s. Decorate run() with rawhttp for bytes." % problem
        )


def _document(body):
    try:
        return json.loads(_text(body))
    except ValueError as problem:
        raise _Bad("The body is %s." % ("not JSON: %s" % problem if body.strip() else "empty"))


def _of_query(told):
    """The fields of a query as v1 passed them on: JSON where they are, lists where repeated."""
    found = {}
    query = urllib.parse.parse_qs(told.get("query") or "", keep_blank_values=True)
    for name, values in query.items():
        read = [_json_or_text(value) for value in values]
        found[name] = read[0] if len(read) == 1 else read
    return found


def _json_or_text(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


def _reply(result, took):
    headers = {"x-ms-run-fn-exec-ms": "%.3f" % took}
    if _is_response(result):
        headers.update(result.headers)
        status = int(result.status_code)
        if not 200 <= status <= 599:
            raise ValueError("run() returned the status %d; it should be 200 to 599" % status)
        return status, _head(headers), bytes(result.get_data())
    body = result
    if isinstance(result, dict) and "aml_response_headers" in result:  # v1's way to set headers
        headers.update(result["aml_response_headers"])
        body = result.get("aml_response_body")
    headers.setdefault("Content-Type", "application/json")
    return 200, _head(headers), _dumps({} if body is None else body)


def _is_response(result):
    """Our AMLResponse, or one of Flask's where a script makes it."""
    return isinstance(result, scoring_requests.AMLResponse) or all(
        hasattr(result, name) for name in ("status_code", "headers", "get_data")
    )


def _head(headers):
    told = {str(name): str(value) for name, value in headers.items()}
    return json.dumps({"headers": told}).encode("utf-8")


def _dumps(document):
    return json.dumps(document, default=_plain).encode("utf-8")


def _plain(value):
    """Arrays and numbers of numpy, torch and tensorflow, tables of pandas, dates."""
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        return value.to_dict("records")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8")
    return wire.from_json_value(wire.to_json_value(value))
