"""Requests joined into one call of a model, and parted again; the model is a small function."""

import json
import random
from typing import Any

import numpy
import pytest

from runyard_runtime.scorers.base import Loaded, Signature, Tensor
from runyard_runtime.scoring_batches import TensorService

Replies = list[tuple[int, Any]]


class Doubling:
    """A model that doubles rows of two, and notes how many rows each call had."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, arrays: list[Any]) -> list[Any]:
        self.calls.append(len(arrays[0]))
        if (arrays[0] == 13).any():
            raise ValueError("thirteen")
        if (arrays[0] == 99).any():
            raise ZeroDivisionError("ninety-nine")
        return [arrays[0] * 2]


def service(call: Any, datatype: str = "FP32", **more: Any) -> TensorService:
    signature = Signature(
        "predict", [Tensor("x", datatype, [-1, 2])], [Tensor("y", datatype, [-1, 2])], call, **more
    )
    other = Signature("rows", signature.inputs, signature.outputs, lambda arrays: [arrays[0] + 1])
    loaded = Loaded("onnx", "a test", {"predict": signature, "rows": other}, "predict", True)
    return TensorService(loaded, {"models": [{"name": "m", "version": "1"}]})


def ask(served: TensorService, *documents: Any) -> Replies:
    texts = (json.dumps(one).replace("Infinity", "1e400") for one in documents)
    batch = [(b"", text.encode()) for text in texts]
    return [(status, json.loads(body)) for status, _, body in served.answer(batch)]


def test_a_batch_is_one_call() -> None:
    model = Doubling()
    found = ask(service(model), *({"data": [[n, n]] * (1 + n % 3)} for n in range(9)))
    assert model.calls == [18]
    assert [answer["y"] for _, answer in found] == [[[2 * n] * 2] * (1 + n % 3) for n in range(9)]


def test_what_is_malformed_is_refused_and_the_rest_stays_one_call() -> None:
    model = Doubling()
    good = {"data": [[1, 2]]}
    found = ask(service(model), good, {"data": [[1]]}, good, {"data": [["a", "b"]]}, good)
    assert [status for status, _ in found] == [200, 400, 200, 400, 200]
    assert model.calls == [3]
    assert found[1][1]["expected"] == "x: FP32 of shape [any, 2]"
    assert found[1][1]["example"] == {"instances": [[0.0, 0.0]]}


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        (13, 400, "The model refuses the input: thirteen"),
        (99, 500, "ZeroDivisionError: ninety-nine"),
    ],
)
def test_the_model_s_own_refusal_is_for_the_guilty_one_alone(
    value: int, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"data": [[1, 2]]}
    found = ask(service(Doubling()), good, {"data": [[value, 0]]}, good)
    assert [one for one, _ in found] == [200, status, 200]
    assert found[1][1]["error"] == words
    assert ("Traceback" in capsys.readouterr().err) == (status == 500)


def test_a_model_whose_answers_cannot_be_parted_is_called_for_each() -> None:
    calls: list[int] = []

    def total(arrays: list[Any]) -> list[Any]:
        calls.append(len(arrays[0]))
        return [arrays[0].sum(axis=0, keepdims=True)]

    served = service(total)
    for _ in range(2):
        found = ask(served, {"data": [[1, 2], [3, 4]]}, {"data": [[5, 6]]})
        assert [answer["y"] for _, answer in found] == [[[4.0, 6.0]], [[5.0, 6.0]]]
    assert calls == [3, 2, 1, 2, 1]


def test_an_answer_that_json_has_no_words_for_spoils_only_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def odd(arrays: list[Any]) -> list[Any]:
        found = arrays[0].astype(object)
        found[arrays[0] == 7] = object()
        return [found]

    found = ask(service(odd), {"data": [[1, 2]]}, {"data": [[7, 2]]})
    assert [status for status, _ in found] == [200, 500]
    assert "not JSON serializable" in found[1][1]["error"]
    assert "Traceback" in capsys.readouterr().err


def test_a_result_that_is_not_a_number_is_null() -> None:
    found = ask(service(lambda arrays: [arrays[0] * numpy.nan]), {"data": [[1, 2]]})
    assert found == [(200, {"y": [[None, None]]})]


@pytest.mark.parametrize(
    ("datatype", "row", "words"),
    [
        ("INT8", [1, 300], "Input x takes whole numbers that fit INT8."),
        ("INT64", [1, 2.5], "Input x takes whole numbers that fit INT64."),
        ("INT64", [1, 10**30], "Input x has the number 1e+30, which is too large."),
        ("BOOL", [1, 0], "Input x takes true and false only."),
        ("BYTES", ["a", 1], 'Input x takes text (or {"b64": …}) in rows of equal length.'),
        ("FP32", [1, {"a": 1}], "Input x has an object, where a number is needed."),
        ("FP32", [[1, 2], [3, 4]], "Input x should have the shape [any, 2], but has [1, 2, 2]."),
    ],
)
def test_values_that_do_not_fit_are_refused_in_words(
    datatype: str, row: list[Any], words: str
) -> None:
    [(status, answer)] = ask(service(lambda arrays: arrays, datatype), {"data": [row]})
    assert (status, answer["error"]) == (400, words)


def deep(depth: int) -> bytes:
    return b'{"data": ' + b"[" * depth + b"]" * depth + b"}"


TENSOR: dict[str, Any] = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
PROTO: dict[str, Any] = {"dims": [1, 2], "dataType": 1, "floatData": [1, 2]}
ODD: list[Any] = [[], [1], {}, {"a": 1}, "x", "²", "", 0, 1, -1, 1e400, 10**400, None, True]
MALFORMED: list[Any] = [
    {"inputs": [TENSOR], "parameters": [1]},
    {"inputs": [TENSOR], "parameters": {"signature_name": [1]}},
    {"inputs": [TENSOR], "outputs": {"name": "y"}},
    {"inputs": [TENSOR], "outputs": ["y"]},
    {"inputs": [TENSOR], "outputs": [{}]},
    {"inputs": [TENSOR], "outputs": [{"name": ["y"]}]},
    {"inputs": [TENSOR], "outputs": [{"name": "y", "parameters": [1]}]},
    {"inputs": [{**TENSOR, "datatype": ["FP32"]}]},
    {"inputs": [{**TENSOR, "shape": [1e400]}]},
    {"inputs": [{**TENSOR, "shape": 2}]},
    {"inputs": [{**TENSOR, "name": ["x"]}]},
    {"inputs": [{**TENSOR, "parameters": [1]}]},
    {"inputs": [{**TENSOR, "parameters": {"binary_data_size": 1e400}}]},
    {"inputs": {"x": {**PROTO, "dataType": [1]}}},
    {"inputs": {"x": {**PROTO, "dataType": "²"}}},
    {"inputs": {"x": {**PROTO, "dims": 2}}},
    {"inputs": {"x": {**PROTO, "dims": [10**400]}}},
    {"inputs": {"x": {**PROTO, "floatData": {"a": 1}}}},
    {"inputs": {"x": {**PROTO, "dataType": 8, "stringData": 1}}},
    {"inputs": {"x": PROTO}, "outputFilter": 1},
    {"inputs": {"x": PROTO}, "outputFilter": "y"},
    {"data": [[1, 2]], "method": ["rows"]},
    {"instances": [[1, 2]], "signature_name": {"a": 1}},
    {"instances": [{"x": [1, 2]}, 1]},
]


@pytest.mark.parametrize("document", MALFORMED, ids=json.dumps)
def test_a_malformed_document_is_a_bad_request(document: Any) -> None:
    [(status, answer)] = ask(service(Doubling()), document)
    assert status == 400, answer


def test_a_document_that_is_nested_too_deep_is_a_bad_request() -> None:
    [(status, _, _)] = service(Doubling()).answer([(b"", deep(100_000))])
    assert status == 400


@pytest.mark.parametrize("length", ["²", "-1", "1e3", "9" * 30, " 1"])
def test_a_length_that_is_none_is_a_bad_request(length: str) -> None:
    head = {"path": "/v2/models/m/infer", "headers": {"inference-header-content-length": length}}
    body = json.dumps({"inputs": [TENSOR]}).encode()
    [(status, _, _)] = service(Doubling()).answer([(json.dumps(head).encode(), body)])
    assert status == 400


def test_whatever_stands_in_a_field_no_request_is_a_failure_of_ours() -> None:
    for field in ("name", "shape", "datatype", "data", "parameters"):
        for odd in ODD:
            [(status, answer)] = ask(service(Doubling()), {"inputs": [{**TENSOR, field: odd}]})
            assert status in (200, 400), (field, odd, answer)
    for field in ("dims", "dataType", "floatData", "rawData", "stringData"):
        for odd in ODD:
            [(status, answer)] = ask(service(Doubling()), {"inputs": {"x": {**PROTO, field: odd}}})
            assert status in (200, 400), (field, odd, answer)
    for kind in ({"inputs": [TENSOR]}, {"data": [[1, 2]]}, {"inputs": {"x": PROTO}}):
        for field in ("inputs", "instances", "data", "outputs", "outputFilter", "parameters", "id"):
            for odd in ODD:
                [(status, answer)] = ask(service(Doubling()), {**kind, field: odd})
                assert status in (200, 400), (kind, field, odd, answer)


def test_any_mixture_is_answered_as_if_each_came_alone() -> None:
    chance = random.Random(5)
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    kinds: list[Any] = [
        {"data": [[1, 2]]},
        {"data": [[3, 4], [5, 6]]},
        {"data": [[1, 2]], "method": "rows"},
        {"instances": [[7, 8]]},
        {"instances": [{"x": [7, 8]}]},
        {"inputs": {"x": [[1, 1]]}},
        {"inputs": [tensor]},
        {"inputs": [{**tensor, "shape": [2, 2]}]},
        {"inputs": {"x": {"dims": [1, 2], "dataType": 1, "floatData": [9, 9]}}},
        {"data": [[13, 0]]},
        {"data": [[1, 2, 3]]},
        {"data": [[1, 2], [3]]},
        {"data": [[1, None]]},
        {"data": [[1, 10**400]]},
        {"data": [[1, 1e39]]},
        {"inputs": {"x": [[10**400, 1]]}, "signature_name": "rows"},
        {"inputs": [{**tensor, "data": [1, 10**400]}]},
        {"inputs": [{**tensor, "shape": [float("inf")]}]},
        {"method": "rows"},
        7,
    ]
    for _ in range(100):
        asked = chance.choices(kinds, k=chance.randrange(1, 12))
        together = ask(service(Doubling()), *asked)
        alone = [ask(service(Doubling()), one)[0] for one in asked]
        assert together == alone
