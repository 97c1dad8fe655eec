"""Many requests, one call of the model: rows are joined, scored together and parted again.

A request that is wrong gets its own answer and does not spoil the others: where the joined call
fails, each request is checked alone and the good ones are joined again; where that fails too,
they are scored one by one, and only the guilty one is refused.
"""

import itertools
import sys
import traceback

from runyard_runtime import scoring_json, scoring_protocols, scoring_schema
from runyard_runtime.scorers import base
from runyard_runtime.scoring_protocols import BadRequest

MAX_BATCH = 64  # requests, where the spec does not say
CHECKED = "checked"  # `Ask.arrays`: its values are arrays that the signature takes


class TensorService(object):
    """Answers requests with a model that takes tensors."""

    def __init__(self, loaded, spec):
        self._numpy = base.needed("numpy", loaded.scorer)
        self._loaded = loaded
        self._spec = spec
        loads, self._dumps = scoring_json.codec()
        self._protocols = scoring_protocols.Protocols(
            loaded, spec.get("models") or [], self._numpy, loads, self._dumps
        )
        self._dtypes = {
            word: self._numpy.dtype(name) for word, name in base.NUMPY.items() if word != "BYTES"
        }

    def hello(self):
        """What the front end is told, see `scoring_wire`."""
        signature = self._loaded.signatures[self._loaded.default]
        most = int(self._spec.get("max_batch") or MAX_BATCH)
        return {
            "scorer": self._loaded.scorer,
            "platform": self._loaded.platform,
            "max_batch": most if signature.batches else 1,
            "methods": ["POST"],
            "inputs": scoring_schema.tensors(signature.inputs),
            "outputs": scoring_schema.tensors(signature.outputs),
            "sample": scoring_schema.sample(signature, self._loaded.scorer),
            "swagger": scoring_schema.swagger(signature, self._loaded.scorer),
        }

    def answer(self, batch):
        """The replies to [(head, body), …], in their order."""
        replies = [None] * len(batch)
        groups = {}
        for place, (head, body) in enumerate(batch):
            try:
                found = self._protocols.read(head, body)
            except BadRequest as problem:
                replies[place] = self._refusal(problem)
                continue
            except Exception:
                replies[place] = self._failure()
                continue
            if type(found) is tuple:  # metadata: answered already
                replies[place] = found
            else:
                key = self._key(found)
                groups.setdefault(place if key is None else key, []).append((place, found))
        for asks in groups.values():
            self._score(asks, replies)
        return replies

    def _score(self, asks, replies):
        """Score requests in as few calls as possible."""
        if len(asks) > 1 and self._together(asks, replies):
            return
        good = [asked for asked in asks if self._fits(asked, replies)]
        if 1 < len(good) < len(asks) and self._together(good, replies):
            return
        for place, ask in good:
            replies[place] = self._alone(ask)

    def _fits(self, asked, replies):
        """Whether a request's values are what the signature takes; else it is refused."""
        place, ask = asked
        if ask.arrays is CHECKED or ask.signature.loose:
            return True
        try:
            ask.values = self._checked(ask.values, ask.signature)
        except BadRequest as problem:
            replies[place] = self._refusal(problem, ask.signature)
            return False
        except Exception:  # whatever it is, it is this request's alone
            replies[place] = self._failure()
            return False
        ask.arrays = CHECKED
        return True

    def _key(self, ask):
        """What requests must have in common to be scored together; None: this one stays alone."""
        signature = ask.signature
        if not signature.batches:
            return None
        if not ask.arrays and (signature.fixed or signature.loose):
            return signature.name
        try:
            ask.values = self._checked(ask.values, signature)
        except Exception:
            return None  # it will be refused when its turn comes
        ask.arrays = CHECKED
        return signature.name, tuple((one.dtype.str, one.shape[1:]) for one in ask.values)

    def _together(self, asks, replies):
        """Score requests in one call; whether that worked."""
        signature = asks[0][1].signature
        ends = list(itertools.accumulate(ask.count for _, ask in asks))
        try:
            columns = zip(*(ask.values for _, ask in asks))
            if asks[0][1].arrays:
                arrays = [self._numpy.concatenate(column) for column in columns]
            else:
                joined = [list(itertools.chain.from_iterable(column)) for column in columns]
                arrays = joined if signature.loose else self._checked(joined, signature)
            outputs = signature.call(arrays)
        except Exception:
            return False
        if any(len(output.shape) == 0 or output.shape[0] != ends[-1] for output in outputs):
            signature.batches = False  # its outputs cannot be parted: never try again
            return False
        lists = None
        start = 0
        for (place, ask), end in zip(asks, ends):
            if ask.wants_lists:
                if lists is None:
                    lists = [output.tolist() for output in outputs]
                found = [one[start:end] for one in lists]
            else:
                found = [output[start:end] for output in outputs]
            replies[place] = self._rendered(ask, found)
            start = end
        return True

    def _alone(self, ask):
        signature = ask.signature
        try:
            outputs = signature.call(ask.values)
        except signature.bad_input as problem:
            text = "The model refuses the input: %s" % _first_lines(problem)
            return self._refusal(BadRequest(text), signature)
        except Exception:
            return self._failure()
        return self._rendered(
            ask, [one.tolist() for one in outputs] if ask.wants_lists else outputs
        )

    def _rendered(self, ask, outputs):
        try:
            return ask.render(ask, outputs)
        except Exception:  # an output that the format has no words for
            return self._failure()

    def _checked(self, values, signature):
        return [
            self._array(value, tensor, signature) for value, tensor in zip(values, signature.inputs)
        ]

    def _array(self, values, tensor, signature):
        """One input as an array of the wanted type and shape, or a refusal in words."""
        numpy = self._numpy
        if tensor.datatype == "BYTES":
            array = _texts(values, tensor, numpy)
        else:
            array = self._numbers(values, tensor, signature)
        shape = array.shape
        wanted = tensor.shape
        if not signature.unshaped and (
            len(shape) != len(wanted)
            or any(want >= 0 and want != have for want, have in zip(wanted, shape))
        ):
            raise BadRequest(_wrong_shape(tensor, shape))
        if array.dtype.kind == "f" and not (signature.nan_allowed or signature.finite_checked):
            if not numpy.isfinite(array).all():
                raise BadRequest("Input %s has NaN or infinite values." % tensor.name)
        return array

    def _numbers(self, values, tensor, signature):
        numpy = self._numpy
        try:
            array = values if type(values) is numpy.ndarray else numpy.array(values)
        except ValueError:
            raise BadRequest(_ragged(tensor))
        kind = array.dtype.kind
        if kind in "OUS":
            if kind == "O" and signature.nan_allowed and _holds_null(values):
                return _with_nan(array, tensor, numpy)
            raise BadRequest(_not_numbers(values, tensor))
        wanted = self._dtypes[tensor.datatype]
        if signature.unshaped or array.dtype == wanted:
            return array
        if wanted.kind == "b":
            raise BadRequest("Input %s takes true and false only." % tensor.name)
        if wanted.kind == "f":
            with numpy.errstate(over="ignore"):  # infinite then, which is refused in words
                return array.astype(wanted)
        with numpy.errstate(invalid="ignore"):
            whole = array.astype(wanted)
        if (whole != array).any():
            raise BadRequest(
                "Input %s takes whole numbers that fit %s." % (tensor.name, tensor.datatype)
            )
        return whole

    def _refusal(self, problem, signature=None):
        document = {"error": str(problem)}
        if problem.status == 400:
            signature = signature or self._loaded.signatures[self._loaded.default]
            document["expected"] = scoring_schema.expected(signature)
            example = scoring_schema.sample(signature, self._loaded.scorer)
            if example is not None:
                document["example"] = example
        return problem.status, b"", self._dumps(document)

    def _failure(self):
        """The answer when the model itself fails; the traceback is for the log."""
        traceback.print_exc()
        kind, problem = sys.exc_info()[:2]
        text = "%s: %s" % (kind.__name__, problem)
        return 500, b"", self._dumps({"error": text})


def _texts(values, tensor, numpy):
    if type(values) is numpy.ndarray:
        return values
    try:
        array = numpy.array(scoring_protocols.with_bytes(values), dtype=object)
    except ValueError:
        raise BadRequest(_ragged(tensor))
    if not all(isinstance(value, (str, bytes)) for value in array.flat):
        raise BadRequest(
            'Input %s takes text (or {"b64": …}) in rows of equal length.' % tensor.name
        )
    return array


def _with_nan(array, tensor, numpy):
    try:
        return array.astype(numpy.float64)
    except (TypeError, ValueError):
        raise BadRequest(_ragged(tensor))


def _wrong_shape(tensor, shape):
    if len(shape) and shape[0] == 0:
        return "Input %s has no rows." % tensor.name
    return "Input %s should have the shape [%s], but has [%s]." % (
        tensor.name,
        ", ".join("any" if size < 0 else str(size) for size in tensor.shape),
        ", ".join(str(size) for size in shape),
    )


def _ragged(tensor):
    return "Input %s is not a full array: its rows differ in length." % tensor.name


def _not_numbers(values, tensor):
    for value in _leaves(values):
        if value is None:
            return "Input %s has a null, where a number is needed." % tensor.name
        if isinstance(value, str):
            return "Input %s has the text %r, where a number is needed." % (
                tensor.name,
                value[:40],
            )
        if isinstance(value, dict):
            return "Input %s has an object, where a number is needed." % tensor.name
        if isinstance(value, int) and abs(value) >= 1 << 63:
            bits = value.bit_length()
            words = "the number %.3g" % value if bits < 1000 else "a number of %d bits" % bits
            return "Input %s has %s, which is too large." % (tensor.name, words)
    return _ragged(tensor)


def _holds_null(values):
    return any(value is None for value in _leaves(values))


def _leaves(values):
    if isinstance(values, list):
        for value in values:
            for leaf in _leaves(value):
                yield leaf
    else:
        yield values


def _first_lines(problem):
    lines = str(problem).strip().splitlines()[:5]
    return " ".join(line.strip() for line in lines)[:600] or type(problem).__name__
